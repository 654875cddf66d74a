"""basic.qos with a prefetch size: a limit on the bytes that a consumer holds, for clients that announce it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from lbg_core.amqp import BasicProperties
from lbg_core.amqp.methods import BasicConsume, BasicQos, BasicQosOk
from testing.broker_core.world import Client, World

KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "single active consumer": {"x-single-active-consumer": True},
    "partitioned": {"x-queue-type": "partitioned", "x-partition-count": 4, "x-rebalance-delay": 0},
    "message groups": {"x-group-header": "cart"},
    "sessions": {"x-queue-type": "sessions"},
}


def header(key: int) -> bytes:
    return BasicProperties(headers={"cart": f"k{key}", "lbg-key": f"k{key}"}).encode()


def client_of(world: World) -> Client:
    return world.client(lbg__prefetch_size=True)


def limited(world: World, size: int, *, arguments: dict[str, object] | None = None, **more: Any) -> Client:
    client = client_of(world)
    client.queue(arguments=arguments or {})
    client.say(BasicQos(size, 0, True))
    client.consume(**more)
    return client


def test_bounds_the_bytes_that_a_consumer_holds_and_acks_make_room() -> None:
    world = World()
    client = limited(world, 10)
    client.publish(b"12345", b"67890", b"abc", b"def")
    assert client.bodies() == [b"12345", b"67890"]
    client.ack(1)
    world.commit()
    assert client.bodies() == [b"abc", b"def"]


def test_a_message_that_is_larger_than_all_of_it_passes_alone() -> None:
    world = World()
    client = limited(world, 10)
    client.publish(b"x" * 50, b"y" * 50)
    assert client.bodies() == [b"x" * 50]
    client.ack(1)
    world.commit()
    assert client.bodies() == [b"y" * 50]


def test_of_the_channel_can_change_while_it_consumes() -> None:
    world = World()
    client = limited(world, 2)
    client.publish(b"aa", b"bb", b"cc", b"dd", b"ee")
    assert client.bodies() == [b"aa"]
    client.ask(BasicQos(6, 0, True), BasicQosOk)
    assert client.bodies() == [b"bb", b"cc"]
    client.ask(BasicQos(0, 0, True), BasicQosOk)
    assert client.bodies() == [b"dd", b"ee"]


def test_of_a_consumer_counts_for_each_alone_and_for_those_made_later() -> None:
    world = World()
    client = client_of(world)
    client.queue("a")
    client.queue("b")
    client.say(BasicQos(4, 0, False))
    client.say(BasicConsume("a", "a"))
    client.say(BasicConsume("b", "b"))
    for queue in "ab":
        client.publish(b"1234", b"5678", key=queue)
    assert [delivery.consumer_tag for delivery in client.take()] == ["a", "b"]


def test_is_ignored_without_acks() -> None:
    world = World()
    client = limited(world, 2, no_ack=True)
    client.publish(b"aa", b"bb", b"cc")
    assert client.bodies() == [b"aa", b"bb", b"cc"]


def test_is_refused_from_a_client_that_does_not_announce_it_as_rabbitmq_does() -> None:
    world = World()
    client = world.client()
    client.say(BasicQos(1, 0, True))
    assert client.refusal == (540, "NOT_IMPLEMENTED - prefetch_size!=0 (1)")


def test_partitions_take_turns_where_there_is_room_for_one_message() -> None:
    """A partition in front must not have all of the room again and again."""
    world = World()
    client = limited(world, 1, arguments=KINDS["partitioned"])
    world.pass_time(1.0)
    for number in range(40):
        client.publish(b"%d" % (number % 16), header=header(number % 16))
    given = []
    for _ in range(8):
        (delivery,) = client.take()
        given += [number for number, line in enumerate(world.queue().lines) if line.outstanding]
        client.ack(delivery.delivery_tag)
        world.commit()
    assert {*given} == {0, 1, 2, 3}


class Holder:
    """A client that never holds more than its limit and one message beside it."""

    def __init__(self, world: World, limit: int, rng: random.Random, session: str) -> None:
        self.client = client_of(world)
        self.limit = limit
        self.rng = rng
        self.held: dict[int, bytes] = {}
        arguments = {"x-session": session}
        self.client.say(BasicQos(limit, 0, True))
        self.client.consume(arguments=arguments if session else {})

    def receive(self) -> None:
        for delivery in self.client.take():
            before = sum(len(body) for body in self.held.values())
            assert before < self.limit, "it was given a message while its limit was reached"
            self.held[delivery.delivery_tag] = delivery.body

    def settle(self) -> Iterator[bytes]:
        """Acknowledge or give back some. Yields what is done."""
        for tag in sorted(self.held):
            chance = self.rng.random()
            if chance < 0.4:
                yield self.held.pop(tag)
                self.client.ack(tag)
            elif chance < 0.5:
                del self.held[tag]
                self.client.nack(tag)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_no_history_exceeds_the_limit_by_more_than_a_message_and_everything_is_given_out(
    kind: str, seed: int
) -> None:
    rng = random.Random(f"{kind} {seed}")
    world = World()
    publisher = world.client()
    publisher.queue(arguments=KINDS[kind])
    is_session, moves = kind == "sessions", kind in ("partitioned", "message groups")
    names = ["s1", "s2"] if is_session else [""] * (1 if moves else 3)
    holders = [Holder(world, rng.choice((1, 60, 300)), rng, name) for name in names]
    world.pass_time(1.0)
    published, done = set(), []
    for number in range(150):
        body = b"%d:" % number + b"x" * rng.choice((0, 5, 40, 500))
        published.add(body)
        publisher.publish(body, header=header(rng.randrange(12)))
        for holder in holders:
            holder.receive()
        if rng.random() < 0.5:
            done += [body for holder in holders for body in holder.settle()]
        if rng.random() < 0.5:
            world.commit()
        if number == 75 and len(holders) == 3:
            holders.pop().client.lose()
            world.pass_time(1.0)
    for _ in range(4000):
        world.commit()
        world.pass_time(1.0)
        for holder in holders:
            holder.receive()
            done += holder.settle()
        if len(done) == len(published):
            break
    assert sorted(done) == sorted(published)
    world.commit()
    for holder in holders:
        channel = world.broker.state.connections[holder.client.number].channels[1]
        assert (channel.outstanding, channel.outstanding_bytes) == (0, 0)
