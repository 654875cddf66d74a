"""Expiry: messages that wait longer than their queue allows, and queues without use."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_broker.core.spool import WINDOW_MESSAGES
from lbg_core.amqp import BasicProperties
from lbg_core.amqp.methods import BasicGet, BasicGetEmpty, QueueDeclare, QueueDeclareOk
from testing.broker_core.world import Client, World, numbered

TTL_MS = 1000


def world_with(**arguments: Any) -> tuple[World, Client]:
    """A queue `q` of these arguments, underscores for dashes, and a queue `dead` for what expires."""
    world = World()
    client = world.client()
    client.queue("dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    client.queue("q", arguments={**dead, **{k.replace("_", "-"): v for k, v in arguments.items()}})
    return world, client


def ready(world: World, name: str = "q") -> int:
    return world.queue(name).messages_ready


def test_a_message_expires_when_it_has_waited_for_its_time() -> None:
    world, client = world_with(x_message_ttl=TTL_MS)
    client.publish(b"early")
    world.pass_time(0.6)
    client.publish(b"late")
    world.pass_time(0.39)
    assert ready(world) == 2
    world.pass_time(0.02)
    assert (ready(world), ready(world, "dead")) == (1, 1)
    world.pass_time(0.6)
    assert (ready(world), ready(world, "dead")) == (0, 2)


def test_an_expired_message_is_dead_lettered_with_the_reason() -> None:
    world, client = world_with(x_message_ttl=TTL_MS)
    client.publish(b"x")
    world.pass_time(1)
    client.consume("dead", no_ack=True)
    world.commit()
    (letter,) = client.take()
    assert letter.body == b"x"
    assert [(death["reason"], death["queue"]) for death in letter.headers["x-death"]] == [("expired", "q")]


def test_what_a_consumer_holds_does_not_expire_and_what_it_gives_back_does_at_once() -> None:
    world, client = world_with(x_message_ttl=TTL_MS)
    client.publish(b"held", b"given back")
    client.consume(prefetch=2)
    world.commit()
    world.pass_time(5)
    assert world.queue().messages_unacknowledged == 2
    client.nack(2)
    assert (world.queue().messages_unacknowledged, ready(world), ready(world, "dead")) == (1, 0, 1)


def test_a_message_without_any_time_reaches_only_a_consumer_that_waits() -> None:
    world, client = world_with(x_message_ttl=0)
    client.publish(b"nobody is there")
    client.say(BasicGet("q", True))
    assert client.said(BasicGetEmpty) == [BasicGetEmpty()]
    client.consume(no_ack=True)
    client.publish(b"now somebody is")
    world.commit()
    assert client.bodies() == [b"now somebody is"]


@pytest.mark.parametrize("durable", [True, False])
def test_what_lies_in_the_store_expires_too(durable: bool) -> None:
    world = World()
    client = world.client()
    client.queue(durable=durable, arguments={"x-message-ttl": TTL_MS})
    client.publish(*numbered(WINDOW_MESSAGES * 2))
    world.commit()
    world.pass_time(0.5)
    client.publish(b"later")
    world.commit()
    world.pass_time(0.5)
    world.commit()
    assert ready(world) == 1
    world.pass_time(0.5)
    world.commit()
    assert ready(world) == 0


def test_a_message_expires_at_its_time_after_a_restart() -> None:
    world, client = world_with(x_message_ttl=TTL_MS)
    client.publish(b"old")
    world.pass_time(0.5)
    client.publish(b"young")
    world.commit()
    world.crash()
    world.pass_time(0.5)
    world.commit()
    assert (ready(world), ready(world, "dead")) == (1, 1)
    client = world.client()
    client.consume(no_ack=True)
    world.commit()
    (young,) = client.take()
    assert (young.body, young.exchange, young.routing_key) == (b"young", "", "q")


def test_a_message_that_expired_while_the_broker_was_down_is_never_delivered() -> None:
    world, client = world_with(x_message_ttl=TTL_MS)
    client.publish(b"old")
    world.commit()
    world.crash()
    world.now += 10
    client = world.client()
    client.consume(no_ack=True)
    world.commit()
    assert client.bodies() == []
    assert ready(world, "dead") == 1


def test_an_expired_message_still_goes_by_the_hidden_keys_of_its_publish_after_a_restart() -> None:
    world = World()
    client = world.client()
    client.queue("copy")
    client.queue("q", arguments={"x-message-ttl": TTL_MS, "x-dead-letter-exchange": ""})
    client.publish(b"x", header=BasicProperties(headers={"BCC": ["copy"]}, delivery_mode=2).encode())
    world.commit()
    assert ready(world, "copy") == 1
    world.crash()
    world.pass_time(1)
    world.commit()
    assert (ready(world), ready(world, "copy")) == (0, 2)


def test_expiry_goes_no_circle() -> None:
    world = World()
    client = world.client()
    arguments = {"x-message-ttl": 0, "x-dead-letter-exchange": ""}
    client.queue("a", arguments={**arguments, "x-dead-letter-routing-key": "b"})
    client.queue("b", arguments={**arguments, "x-dead-letter-routing-key": "a"})
    client.publish(b"x", key="a")
    world.pass_time(1)
    assert (ready(world, "a"), ready(world, "b")) == (0, 0)
    assert world.broker.state.counters.expired == 2


def there(world: World) -> bool:
    return "q" in world.broker.state.vhosts["/"].queues


@pytest.mark.parametrize("use", ["declare", "passive declare", "get"])
def test_a_queue_expires_when_nobody_has_used_it_for_its_time(use: str) -> None:
    world, client = world_with(x_expires=TTL_MS)
    arguments = world.queue().arguments
    world.pass_time(0.9)
    match use:
        case "declare":
            client.queue("q", arguments=arguments)
        case "passive declare":
            client.ask(QueueDeclare("q", passive=True), QueueDeclareOk)
        case "get":
            client.say(BasicGet("q", True))
    world.pass_time(0.9)
    assert there(world)
    client.publish(b"a publish is no use of it")
    world.pass_time(0.11)
    assert not there(world)
    assert ready(world, "dead") == 0


def test_a_queue_with_a_consumer_does_not_expire_until_the_consumer_has_gone_for_its_time() -> None:
    world, client = world_with(x_expires=TTL_MS)
    client.consume()
    world.pass_time(10)
    client.cancel()
    world.pass_time(0.9)
    assert there(world)
    world.pass_time(0.11)
    assert not there(world)


def test_the_time_of_an_unused_queue_begins_again_when_the_broker_starts() -> None:
    world, _ = world_with(x_expires=TTL_MS)
    world.crash()
    world.now += 10
    world.pass_time(0)
    assert there(world)
    world.pass_time(1)
    world.commit()
    assert not there(world)
    world.crash()
    assert not there(world)


@pytest.mark.parametrize("name", ["x-message-ttl", "x-expires"])
@pytest.mark.parametrize(
    "kind",
    [
        {"x-group-header": "key"},
        {"x-queue-type": "partitioned", "x-partition-count": 2},
        {"x-queue-type": "sessions"},
    ],
)
def test_queues_of_other_kinds_refuse_to_expire(kind: dict[str, Any], name: str) -> None:
    world = World()
    client = world.client()
    client.say_declare({**kind, name: 1000})
    assert client.refusal is not None
    assert client.refusal[0] == 406
    assert name in client.refusal[1]


STEPS = st.one_of(
    st.tuples(st.just("publish"), st.integers(1, 3)),
    st.tuples(st.just("pass"), st.sampled_from([0.1, 0.3, 0.7])),
    st.tuples(st.just("get"), st.just(0)),
    st.tuples(st.just("nack"), st.just(0)),
    st.tuples(st.just("crash"), st.just(0)),
)


@given(st.lists(STEPS, max_size=30))
def test_every_message_is_fetched_in_its_time_or_dead_lettered_after_it(
    steps: list[tuple[str, Any]],
) -> None:
    world, client = world_with(x_message_ttl=TTL_MS)
    waiting: list[tuple[bytes, float]] = []  # with its deadline
    expired: list[bytes] = []
    held: list[tuple[int, bytes, float]] = []
    count = 0

    def expire() -> None:
        while waiting and waiting[0][1] <= world.now:
            expired.append(waiting.pop(0)[0])

    for step, argument in steps:
        match step:
            case "publish":
                for _ in range(argument):
                    client.publish(body := b"%d" % count)
                    count += 1
                    waiting.append((body, world.now + TTL_MS / 1000))
            case "pass":
                world.pass_time(argument)
                expire()
            case "get":
                client.take()
                client.say(BasicGet("q"))
                world.commit()
                got = [(delivery.delivery_tag, delivery.body) for delivery in client.take()]
                assert [body for _, body in got] == [body for body, _ in waiting[:1]]
                if got:
                    held.append((*got[0], waiting.pop(0)[1]))
            case "nack" if held:
                tag, body, deadline = held.pop()
                client.nack(tag)
                waiting.insert(0, (body, deadline))
                expire()
            case "crash":
                world.commit()
                world.crash()
                client = world.client()
                waiting[:0] = [(body, deadline) for _, body, deadline in held]
                held.clear()
                world.pass_time(0)
                expire()
        world.commit()
        assert ready(world) == len(waiting)
    client.take()
    client.consume("dead", tag="undertaker", no_ack=True)
    world.commit()
    assert client.bodies() == expired
