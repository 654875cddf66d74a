"""Dead letters: where they go, and what their history says."""

from datetime import UTC, datetime
from typing import Any

from lbg_core.amqp import BasicProperties
from lbg_core.amqp.methods import (
    BasicGet,
    BasicReject,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
)
from testing.broker_core.world import Client, Delivery, World


def world_with(**arguments: Any) -> tuple[World, Client]:
    """A queue `q` that dead-letters through fanout `dlx` to the queue `dead`."""
    world = World()
    client = world.client()
    client.ask(ExchangeDeclare("dlx", "fanout", durable=True), ExchangeDeclareOk)
    client.queue("dead")
    client.ask(QueueBind("dead", "dlx", ""), QueueBindOk)
    client.queue("q", arguments={"x-dead-letter-exchange": "dlx", **arguments})
    return world, client


def dead_of(client: Client) -> list[Delivery]:
    client.take()
    client.consume("dead", tag="undertaker", no_ack=True)
    client.cancel("undertaker")
    return client.take()


def test_a_rejected_message_is_dead_lettered_with_its_history() -> None:
    world, client = world_with()
    header = BasicProperties(headers={"mine": 1}, delivery_mode=2).encode()
    client.publish(b"x", header=header)
    client.consume()
    client.say(BasicReject(1, False))
    (dead,) = dead_of(client)
    assert (dead.exchange, dead.routing_key, dead.redelivered) == ("dlx", "q", False)
    assert dead.headers == {
        "mine": 1,
        "x-death": [
            {
                "count": 1,
                "reason": "rejected",
                "queue": "q",
                "time": datetime.fromtimestamp(int(world.now), UTC),
                "exchange": "",
                "routing-keys": ["q"],
            }
        ],
        "x-first-death-reason": "rejected",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "",
    }
    assert BasicProperties.decode(dead.header).delivery_mode == 2


def test_dying_again_in_the_same_way_counts_up() -> None:
    world, client = world_with()
    client.queue("q2", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q2"})
    client.publish(b"x", key="q2")
    client.consume("q2", prefetch=1)
    for tag in (1, 2, 3):
        client.nack(tag, requeue=False)
        world.commit()
    assert client.take()[-1].headers["x-death"][0]["count"] == 3
    assert world.queue("q2").messages_unacknowledged == 1


def test_the_routing_key_can_be_replaced() -> None:
    world = World()
    client = world.client()
    client.queue("elsewhere")
    client.queue("q", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "elsewhere"})
    client.publish(b"x")
    client.consume()
    client.nack(1, requeue=False)
    assert world.queue("elsewhere").messages_ready == 1


def test_what_drop_head_drops_is_dead_lettered_in_order() -> None:
    _, client = world_with(**{"x-max-length": 1})
    client.publish(b"0", b"1", b"2")
    dead = dead_of(client)
    assert [delivery.body for delivery in dead] == [b"0", b"1"]
    assert {delivery.headers["x-first-death-reason"] for delivery in dead} == {"maxlen"}


def test_what_a_lost_connection_held_on_several_channels_returns_as_one_before_anything_is_dropped() -> None:
    world, publisher = world_with(**{"x-max-length": 3})
    publisher.publish(b"0", b"1")
    client = world.client()
    client.open(2)
    client.say(BasicGet("q"), channel=2)
    client.consume(prefetch=1)
    publisher.publish(b"2", b"3", b"4")
    client.lose()
    assert [delivery.body for delivery in dead_of(publisher)] == [b"0", b"1"]


def test_reject_publish_dead_letters_only_when_asked_to() -> None:
    _, client = world_with(**{"x-max-length": 1, "x-overflow": "reject-publish"})
    client.publish(b"0", b"1")
    assert dead_of(client) == []
    _, client = world_with(**{"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
    client.publish(b"0", b"1")
    assert [delivery.body for delivery in dead_of(client)] == [b"1"]


def test_a_message_that_would_circle_without_anybody_rejecting_it_is_dropped() -> None:
    world = World()
    client = world.client()
    client.queue(
        "q", arguments={"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    )
    client.publish(b"0", b"1")
    client.consume()
    assert client.bodies() == [b"1"]


def test_a_history_with_the_largest_count_of_all_is_dead_lettered_as_others() -> None:
    world, client = world_with()
    history: list[Any] = [{"queue": "q", "reason": "rejected", "count": (1 << 63) - 1}]
    client.publish(b"x", header=BasicProperties(headers={"x-death": history}).encode())
    other = world.client()
    other.consume()
    other.nack(1, requeue=False)
    (dead,) = dead_of(client)
    assert [death["count"] for death in dead.headers["x-death"]] == [(1 << 63) - 1]


def dead_letters_to(queue: str) -> dict[str, Any]:
    return {"x-max-length": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue}


def test_a_message_that_was_rejected_once_circles_no_more_than_others() -> None:
    world = World()
    client = world.client()
    client.queue("a", arguments=dead_letters_to("b"))
    client.queue("b", arguments=dead_letters_to("a"))
    client.publish(b"0", key="a")
    client.consume("a")
    client.nack(1, requeue=False)
    client.cancel()
    assert world.queue("b").messages_ready == 1
    client.publish(b"1", b"2", key="a")  # "1" is dropped to b, and "0" from there to a, and "2" from there
    world.commit()
    assert (world.queue("a").messages_ready, world.queue("b").messages_ready) == (1, 1)
    history: list[Any] = [{"queue": "elsewhere", "reason": "rejected", "count": 1}]
    header = BasicProperties(headers={"x-death": history}).encode()
    for _ in range(4):
        client.publish(b"from a client that wrote its history itself", key="a", header=header)
    world.commit()
    assert (world.queue("a").messages_ready, world.queue("b").messages_ready) == (1, 1)
    assert client.refusal is None


def test_a_letter_may_drop_another_one_from_any_number_of_queues() -> None:
    world = World()
    client = world.client()
    last = 600
    for number in range(last):
        client.say(QueueDeclare(f"q{number}", arguments=dead_letters_to(f"q{number + 1}")))
        client.publish(b"%d" % number, key=f"q{number}")
    client.say(QueueDeclare(f"q{last}"))
    client.publish(b"new", key="q0")
    client.consume(f"q{last}")
    assert client.bodies() == [b"%d" % (last - 1)]


def test_without_an_exchange_or_with_a_missing_one_the_message_is_gone() -> None:
    world = World()
    client = world.client()
    client.queue("q", arguments={"x-dead-letter-exchange": "missing"})
    client.publish(b"x")
    client.consume()
    client.nack(1, requeue=False)
    world.commit()
    assert client.refusal is None
    assert world.store.bodies(world.queue().spool.id) == []


def test_a_dead_letter_and_its_deletion_reach_the_disk_together() -> None:
    world, client = world_with()
    client.publish(b"x")
    world.commit()
    client.consume()
    client.nack(1, requeue=False)
    batch = world.broker.seal()
    assert batch is not None
    assert {change.spool for change in batch.spools} == {
        world.queue("q").spool.id,
        world.queue("dead").spool.id,
    }


def keyed_world(**arguments: Any) -> tuple[World, Client]:
    """As `world_with`, and `dlx` is direct: `copy` and `hidden` are queues bound to it by their names."""
    world = World()
    client = world.client()
    client.ask(ExchangeDeclare("dlx", "direct", durable=True), ExchangeDeclareOk)
    for name in ("q", "copy", "hidden"):
        client.queue(name, arguments={"x-dead-letter-exchange": "dlx", **arguments} if name == "q" else {})
        client.ask(QueueBind(name, "dlx", name), QueueBindOk)
    client.ask(ExchangeDeclare("in", "direct", durable=True), ExchangeDeclareOk)
    client.ask(QueueBind("q", "in", "q"), QueueBindOk)
    return world, client


def test_a_letter_goes_by_the_keys_of_cc_and_bcc_too_also_after_a_crash() -> None:
    """In RabbitMQ too (tests/oracle/test_dead_lettering.py)."""
    world, client = keyed_world()
    header = BasicProperties(headers={"CC": ["copy"], "BCC": ["hidden"]}).encode()
    client.publish(b"x", exchange="in", key="q", header=header)
    world.commit()
    world.crash()
    client = world.client()
    client.consume()
    world.commit()
    client.say(BasicReject(1, False))
    for name in ("copy", "hidden"):
        client.take()
        client.consume(name, tag=name, no_ack=True)
        (letter,) = client.take()
        assert (letter.exchange, letter.routing_key) == ("dlx", "q")
        assert letter.headers["CC"] == ["copy"]
        assert letter.headers["x-death"][0]["routing-keys"] == ["q", "copy"]
        assert "BCC" not in letter.headers


def test_a_key_of_the_queues_own_takes_the_place_of_cc_and_bcc() -> None:
    world, client = keyed_world(**{"x-dead-letter-routing-key": "copy"})
    header = BasicProperties(headers={"CC": ["hidden"], "BCC": ["hidden"]}).encode()
    client.publish(b"x", exchange="in", key="q", header=header)
    client.consume()
    client.say(BasicReject(1, False))
    client.take()
    client.consume("copy", tag="copy", no_ack=True)
    (letter,) = client.take()
    assert letter.routing_key == "copy"
    assert "CC" not in letter.headers
    assert letter.headers["x-death"][0]["routing-keys"] == ["q", "hidden"]
    assert world.queue("hidden").messages_ready == 0
