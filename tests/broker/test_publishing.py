"""Publishing: confirms wait for the disk, limits refuse or drop, what leads nowhere comes back."""

import pytest

from lbg_core.amqp import BasicProperties
from lbg_core.amqp.methods import (
    BasicAck,
    BasicNack,
    ConfirmSelect,
    ConfirmSelectOk,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
)
from testing.broker_core.world import Client, World, numbered


def confirms_of(client: Client) -> list[tuple[str, int, bool]]:
    return [
        ("ack" if isinstance(said, BasicAck) else "nack", said.delivery_tag, said.multiple)
        for _, said in client.methods
        if isinstance(said, BasicAck | BasicNack)
    ]


def test_a_confirm_waits_until_its_message_is_on_disk() -> None:
    world = World()
    client = world.client().confirms()
    client.queue("q")
    client.publish(b"one", b"two")
    assert confirms_of(client) == []
    world.seal()
    assert confirms_of(client) == []
    world.finish()
    assert confirms_of(client) == [("ack", 2, True)]


def test_a_publish_while_a_batch_is_written_is_confirmed_with_the_next_one() -> None:
    world = World()
    client = world.client().confirms()
    client.queue("q")
    client.publish(b"one")
    world.seal()
    client.publish(b"two")
    world.finish()
    assert confirms_of(client) == [("ack", 1, False)]
    world.commit()
    assert confirms_of(client) == [("ack", 1, False), ("ack", 2, False)]


def test_what_goes_to_no_durable_queue_is_confirmed_at_once() -> None:
    world = World()
    client = world.client().confirms()
    client.queue("t", durable=False)
    client.publish(b"one", b"two", key="t")
    assert confirms_of(client) == [("ack", 2, True)]


def test_a_confirm_at_once_never_stands_for_one_that_waits() -> None:
    world = World()
    client = world.client().confirms()
    client.queue("q")
    client.queue("t", durable=False)
    client.publish(b"durable", key="q")
    client.publish(b"fleeting", b"fleeting too", key="t")
    assert confirms_of(client) == [("ack", 2, False), ("ack", 3, False)]
    world.commit()
    assert confirms_of(client)[2:] == [("ack", 1, False)]


def test_a_confirm_at_once_never_stands_for_one_that_waits_for_the_batch_after_the_one_on_disk() -> None:
    world = World()
    client = world.client().confirms()
    client.queue("q")
    client.publish(b"1")
    world.seal()
    client.publish(b"2")
    world.finish()
    client.publish(b"3", b"4", key="nowhere")
    assert confirms_of(client) == [("ack", 1, False), ("ack", 3, False), ("ack", 4, False)]
    world.commit()
    client.publish(b"5", b"6", key="nowhere")
    assert confirms_of(client)[3:] == [("ack", 2, False), ("ack", 6, True)]


def test_a_message_acked_before_its_batch_is_written_never_reaches_the_store_and_is_confirmed() -> None:
    world = World()
    client = world.client().confirms()
    client.queue("q")
    client.consume("q")
    client.publish(*numbered(3))
    client.ack(2, multiple=True)
    world.commit()
    assert world.store.bodies(world.queue().spool.id) == [b"2"]
    assert confirms_of(client) == [("ack", 3, True)]
    assert world.store.records[world.queue().spool.id].messages == 1


def test_a_mandatory_publish_that_leads_nowhere_is_returned_before_it_is_confirmed() -> None:
    world = World()
    client = world.client().confirms()
    client.publish(b"lost", key="nowhere", mandatory=True)
    ((returned, body),) = client.returns
    assert (returned.reply_code, returned.reply_text, returned.routing_key, body) == (
        312,
        "NO_ROUTE",
        "nowhere",
        b"lost",
    )
    kinds = [type(effect).__name__ for effect in client.effects]
    assert kinds[-2:] == ["SendContent", "Send"]
    assert confirms_of(client) == [("ack", 1, False)]


def test_a_message_to_two_bindings_of_a_queue_comes_once() -> None:
    world = World()
    client = world.client()
    client.queue("q")
    client.ask(ExchangeDeclare("e", "topic"), ExchangeDeclareOk)
    for pattern in ("a.#", "#.b"):
        client.ask(QueueBind("q", "e", pattern), QueueBindOk)
    client.publish(b"x", exchange="e", key="a.b")
    assert world.queue().messages_ready == 1


def test_what_no_binding_takes_goes_to_the_alternate_exchange_and_counts_as_routed() -> None:
    world = World()
    client = world.client()
    client.queue("unrouted")
    client.ask(ExchangeDeclare("alt", "fanout"), ExchangeDeclareOk)
    client.ask(QueueBind("unrouted", "alt", ""), QueueBindOk)
    client.ask(ExchangeDeclare("e", "topic", arguments={"alternate-exchange": "alt"}), ExchangeDeclareOk)
    client.publish(b"x", exchange="e", key="nobody", mandatory=True)
    assert world.queue("unrouted").messages_ready == 1
    assert client.returns == []


def test_exchanges_pass_a_message_on_once_as_long_as_they_are_bound() -> None:
    world = World()
    client = world.client()
    client.queue()
    for name in ("first", "second", "last"):
        client.ask(ExchangeDeclare(name, "topic"), ExchangeDeclareOk)
    client.ask(QueueBind("q", "last", "#"), QueueBindOk)
    for source, destination in (
        ("first", "second"),
        ("first", "second"),
        ("second", "last"),
        ("last", "first"),
    ):
        client.ask(ExchangeBind(destination, source, "k"), ExchangeBindOk)

    def reached() -> bool:
        before = world.queue().messages_ready
        client.publish(b"x", exchange="first", key="k")
        return world.queue().messages_ready == before + 1

    assert reached()
    client.ask(ExchangeUnbind("second", "first", "k"), ExchangeUnbindOk)
    assert not reached()
    client.ask(ExchangeBind("second", "first", "k"), ExchangeBindOk)
    assert reached()
    client.ask(ExchangeDelete("second"), ExchangeDeleteOk)
    client.ask(ExchangeDeclare("second", "topic"), ExchangeDeclareOk)
    client.ask(ExchangeBind("last", "second", "k"), ExchangeBindOk)
    assert not reached()


def test_a_route_found_before_is_forgotten_when_the_topology_changes() -> None:
    world = World()
    client = world.client()
    client.ask(ExchangeDeclare("e", "topic"), ExchangeDeclareOk)
    client.publish(b"x", exchange="e", key="k")
    client.queue("q")
    client.ask(QueueBind("q", "e", "k"), QueueBindOk)
    client.publish(b"y", exchange="e", key="k")
    assert world.queue().messages_ready == 1


class TestFullQueue:
    def test_with_reject_publish_nacks_and_keeps_what_it_has(self) -> None:
        world = World()
        client = world.client().confirms()
        client.queue("q", arguments={"x-max-length": 2, "x-overflow": "reject-publish"})
        client.publish(*numbered(4))
        assert confirms_of(client) == [("nack", 3, False), ("nack", 4, False)]
        world.commit()
        assert confirms_of(client)[2:] == [("ack", 2, True)]
        assert world.store.bodies(world.queue().spool.id) == [b"0", b"1"]

    def test_limits_bytes_of_bodies_exactly(self) -> None:
        world = World()
        client = world.client().confirms()
        client.queue("q", arguments={"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
        client.publish(b"12345", b"123456", b"12345")
        world.commit()
        assert world.store.bodies(world.queue().spool.id) == [b"12345", b"12345"]

    def test_takes_a_message_that_goes_out_at_once(self) -> None:
        world = World()
        client = world.client().confirms()
        client.queue("q", arguments={"x-max-length": 0, "x-overflow": "reject-publish"})
        client.consume("q")
        client.publish(b"straight through")
        assert client.bodies() == [b"straight through"]
        assert not [kind for kind, _, _ in confirms_of(client) if kind == "nack"]

    def test_accepts_again_what_comes_after_room_was_made(self) -> None:
        world = World()
        client = world.client().confirms()
        client.queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        client.publish(b"a", b"b")
        consumer = world.client()
        consumer.consume("q")
        client.publish(b"c")
        world.commit()
        assert consumer.bodies() == [b"a", b"c"]

    def test_refuses_all_that_follow_on_an_ordered_channel_until_confirm_select(self) -> None:
        world = World()
        client = world.client(lbg__ordered_refusal=True).confirms()
        client.queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        client.queue("other")
        client.publish(b"a", b"refused")
        consumer = world.client()
        consumer.consume("q")
        client.publish(b"refused too")
        client.publish(b"elsewhere", key="other")
        assert confirms_of(client) == [("nack", 2, False), ("nack", 3, False)]
        client.ask(ConfirmSelect(), ConfirmSelectOk)
        client.publish(b"b")
        world.commit()
        assert consumer.bodies() == [b"a", b"b"]
        assert world.queue("other").messages_ready == 1

    def test_accepts_what_follows_on_an_ordered_connection_where_the_channel_gets_no_confirms(self) -> None:
        world = World()
        client = world.client(lbg__ordered_refusal=True)
        client.queue("q", arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        client.publish(b"a", b"refused")
        consumer = world.client()
        consumer.consume("q")
        client.publish(b"b")
        world.commit()
        assert consumer.bodies() == [b"a", b"b"]

    def test_with_drop_head_drops_the_oldest(self) -> None:
        world = World()
        client = world.client()
        client.queue("q", arguments={"x-max-length": 2})
        client.publish(*numbered(5))
        world.commit()
        assert world.store.bodies(world.queue().spool.id) == [b"3", b"4"]

    def test_does_not_drop_what_a_consumer_can_take(self) -> None:
        world = World()
        client = world.client()
        client.queue("q", arguments={"x-max-length": 1})
        client.consume("q", prefetch=2)
        client.publish(*numbered(4))
        assert client.bodies() == [b"0", b"1"]
        world.commit()
        assert world.store.bodies(world.queue().spool.id) == [b"0", b"1", b"3"]


def test_the_sender_may_select_further_queues_and_hide_some() -> None:
    world = World()
    client = world.client()
    for name in ("to", "copy", "hidden"):
        client.queue(name)
    header = BasicProperties(headers={"CC": ["copy"], "BCC": ["hidden"]}).encode()
    client.publish(b"x", key="to", header=header)
    for name in ("to", "copy", "hidden"):
        client.consume(name, tag=name)
    deliveries = client.take()
    assert [delivery.consumer_tag for delivery in deliveries] == ["to", "copy", "hidden"]
    assert {delivery.routing_key for delivery in deliveries} == {"to"}
    assert all(delivery.headers == {"CC": ["copy"]} for delivery in deliveries)


@pytest.mark.parametrize(
    "properties",
    [
        BasicProperties(
            reply_to="amq.rabbitmq.reply-to.g1h2AA"
        ),  # given to a consumer by some broker: a name as others
        BasicProperties(reply_to="replies", correlation_id="amq.rabbitmq.reply-to"),
        BasicProperties(message_id="amq.rabbitmq.reply-to"),
    ],
)
def test_any_other_queue_to_reply_to_is_the_applications_own_affair(properties: BasicProperties) -> None:
    world = World()
    client = world.client()
    client.queue()
    client.publish(b"x", header=properties.encode())
    client.consume()
    assert client.refusal is None
    assert [delivery.header for delivery in client.take()] == [properties.encode()]


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (BasicProperties(expiration="1000"), "PRECONDITION_FAILED - property 'expiration' is not supported"),
        (
            BasicProperties(user_id="somebody"),
            "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'",
        ),
        (
            BasicProperties(headers={"CC": "no list"}),
            "PRECONDITION_FAILED - header 'CC' is not a list of routing keys",
        ),
        (
            BasicProperties(headers={"BCC": ["x" * 256]}),
            "PRECONDITION_FAILED - header 'BCC' is not a list of routing keys",
        ),
        (
            BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1"),
            "PRECONDITION_FAILED - direct reply-to is not supported: declare a queue for replies and name it in "
            "place of 'amq.rabbitmq.reply-to'",
        ),
    ],
)
def test_a_property_that_would_be_ignored_or_is_false_closes_the_channel(
    properties: BasicProperties, text: str
) -> None:
    world = World()
    client = world.client()
    client.queue("q")
    client.publish(b"x", header=properties.encode())
    assert client.refusal == (406, text)
    assert world.queue().messages_ready == 0


def test_publishes_behind_the_one_that_closed_the_channel_are_dropped() -> None:
    world = World()
    client = world.client()
    client.queue("q")
    client.publish(b"x", exchange="missing", key="q")
    client.publish(b"y")
    assert client.refusal == (404, "NOT_FOUND - no exchange 'missing' in vhost '/'")
    assert world.queue().messages_ready == 0


def test_commands_behind_a_durable_declare_wait_for_its_answer_in_order() -> None:
    world = World()
    client = world.client()
    client.say(QueueDeclare("q", False, True)).say(QueueDeclare("q", True)).publish(b"x")
    client.say(QueueDeclare("q", True))
    assert client.said(QueueDeclareOk) == []
    world.commit()
    assert [answer.message_count for answer in client.said(QueueDeclareOk)] == [0, 0, 1]
