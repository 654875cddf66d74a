"""The core without disk space: publishes wait, and operations that free space go on."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lbg_broker.core.commands import Committed, StoreBlocked
from lbg_broker.core.effects import PauseReading, StoreBatch
from lbg_core.amqp.methods import (
    BasicAck,
    BasicGet,
    ConnectionBlocked,
    ConnectionUnblocked,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueuePurge,
)
from testing.broker_core.world import EMPTY_HEADER, Client, World, numbered, publish_event
from testing.exploration import example_count


class FullWorld(World):
    """A world whose disk can be full: then only batches on the reserve are written."""

    full = False
    low = False

    def commit(self) -> None:
        while self.step():
            pass

    def step(self, *, trial: bool = False) -> bool:
        """Write one batch, or find that there is no room for it."""
        state = self.broker.state
        batch = self.broker.seal(on_reserve=state.blocked_reason is not None and not trial, trial=trial)
        if batch is None:
            return False
        self.write(batch)
        return True

    def write(self, batch: StoreBatch) -> None:
        if self.full and not batch.on_reserve and (batch.writes or batch.trial):
            self.apply(StoreBlocked("low on disk", batch, letter_bytes_max=1 << 20))
            return
        pages = self.store.carry_out(batch)
        if not batch.on_reserve and self.broker.state.blocked_reason is not None:
            self.apply(StoreBlocked(None))
        self.apply(Committed(batch.number, pages, self.low))

    def make_room(self) -> None:
        self.full = self.low = False
        if self.broker.state.blocked_reason is not None:
            self.step(trial=True)
        self.commit()


def full_world() -> FullWorld:
    world = FullWorld()
    world.client().queue()
    world.commit()
    return world


def confirmed(client: Client) -> int:
    return max([ack.delivery_tag for ack in client.said(BasicAck)], default=0)


def is_held(client: Client) -> bool:
    holds = [effect.is_paused for effect in client.effects if isinstance(effect, PauseReading)]
    return bool(holds) and holds[-1]


def publisher_of(world: World) -> Client:
    return world.client(connection__blocked=True).confirms()


def test_a_publish_without_room_is_not_confirmed_until_there_is_and_its_publisher_waits() -> None:
    world = full_world()
    publisher, other = publisher_of(world), world.client(connection__blocked=True)
    world.full = True
    publisher.publish(b"1", b"2")
    world.commit()
    assert confirmed(publisher) == 0
    assert [said.reason for said in publisher.said(ConnectionBlocked, 0)] == ["low on disk"]
    assert is_held(publisher)
    assert not other.said(ConnectionBlocked, 0)
    assert not is_held(other)
    assert world.store.bodies(1) == []
    world.make_room()
    assert confirmed(publisher) == 2
    assert publisher.said(ConnectionUnblocked, 0)
    assert not is_held(publisher)
    assert world.store.bodies(1) == [b"1", b"2"]


def test_a_backlog_is_consumed_without_room() -> None:
    world = full_world()
    publisher, consumer = publisher_of(world), world.client()
    publisher.publish(*numbered(5000))
    world.commit()
    world.full = True
    publisher.publish(b"late")
    world.commit()
    consumer.consume(prefetch=10)
    got = []
    while deliveries := consumer.take():
        got += [delivery.body for delivery in deliveries]
        consumer.ack(deliveries[-1].delivery_tag, multiple=True)
        world.commit()
    assert got == [*numbered(5000), b"late"]  # nobody was promised the last, but it is there
    assert world.store.bodies(1) == []
    assert confirmed(publisher) == 5000
    world.make_room()
    assert confirmed(publisher) == 5001
    assert world.store.bodies(1) == []


def test_after_a_crash_on_a_full_disk_the_last_message_of_a_stream_is_found() -> None:
    world = full_world()
    publisher = publisher_of(world)
    publisher.queue("log", arguments={"x-queue-type": "stream"})
    publisher.publish(b"0", key="log")
    world.commit()
    world.full = True
    publisher.publish(b"never stored", key="log")
    world.commit()
    world.crash()
    reader = world.client()
    reader.consume("log", prefetch=10, arguments={"x-stream-offset": "last"})
    world.commit()
    assert reader.bodies() == [b"0"]


def test_a_stream_that_is_declared_on_a_full_disk_is_there_after_a_crash() -> None:
    world = full_world()
    world.full = True
    world.client().queue("log", arguments={"x-queue-type": "stream"})
    world.crash()
    assert world.queue("log").messages_ready == 0


def test_a_stream_is_read_without_room_up_to_what_is_on_disk() -> None:
    world = full_world()
    publisher, reader = publisher_of(world), world.client()
    publisher.queue("log", arguments={"x-queue-type": "stream", "x-max-length-bytes": 1})
    publisher.publish(b"0", key="log")
    world.commit()
    world.full = True
    publisher.publish(b"1", key="log")
    world.commit()
    reader.consume("log", prefetch=10, arguments={"x-stream-offset": "last"})
    world.commit()
    assert reader.bodies() == [b"0"]
    reader.ack(1)
    assert confirmed(publisher) == 1
    world.make_room()
    assert reader.bodies() == [b"1"]
    assert confirmed(publisher) == 2
    assert world.store.bodies(world.queue("log").spool.id) == [b"1"]


def test_after_a_crash_on_a_full_disk_the_last_message_of_a_stream_is_the_last_that_was_stored() -> None:
    world = full_world()
    publisher = publisher_of(world)
    publisher.queue("log", arguments={"x-queue-type": "stream"})
    publisher.ask(ExchangeDeclare("log.dlx", "fanout", durable=True), ExchangeDeclareOk)
    publisher.ask(QueueBind("log", "log.dlx", ""), QueueBindOk)
    publisher.publish(b"0", key="log")
    world.commit()
    world.full = True
    world.client().publish(b"never stored", key="log")
    world.client().publish(b"letter", key="", exchange="log.dlx")
    world.commit()
    waiting = world.client()
    waiting.consume("log", prefetch=10, arguments={"x-stream-offset": "last"})
    assert waiting.bodies() == [b"0"]  # the letter follows a message that is not on disk
    world.crash()
    for offset, expected in (("last", [b"letter"]), ("first", [b"0", b"letter"])):
        reader = world.client()
        reader.consume("log", prefetch=10, arguments={"x-stream-offset": offset})
        world.commit()
        assert reader.bodies() == expected


def test_what_memory_has_no_room_for_is_delivered_in_order_though_the_store_has_not_all_of_it() -> None:
    world = full_world()
    publisher, consumer = publisher_of(world), world.client()
    publisher.publish(*numbered(3000, size=2000))
    world.commit()
    world.full = True
    publisher.publish(*numbered(3000, size=2000, start=3000))
    world.commit()
    assert len(world.store.bodies(1)) == 3000
    consumer.consume(prefetch=100)
    got = []
    while deliveries := consumer.take():
        got += [int(delivery.body.split(b".")[0]) for delivery in deliveries]
        consumer.ack(deliveries[-1].delivery_tag, multiple=True)
        world.commit()
    assert got == list(range(6000))


def test_messages_that_need_no_disk_go_on_and_hold_nobody() -> None:
    world = full_world()
    world.full = True
    publisher, talker, hearer = publisher_of(world), publisher_of(world), world.client()
    hearer.queue("mailbox", durable=False, exclusive=True)
    hearer.consume("mailbox")
    publisher.publish(b"stuck")
    world.commit()
    talker.publish(b"beat", key="mailbox")
    assert hearer.bodies() == [b"beat"]
    assert confirmed(talker) == 1
    assert not is_held(talker)
    assert is_held(publisher)


def test_who_fills_a_mailbox_that_is_not_read_is_held_too() -> None:
    world = full_world()
    world.full = True
    publisher, talker, hearer = publisher_of(world), publisher_of(world), world.client()
    hearer.queue("mailbox", durable=False, exclusive=True)
    publisher.publish(b"stuck")
    world.commit()
    talker.publish(*numbered(2000), key="mailbox")
    world.commit()
    assert is_held(talker)
    hearer.consume("mailbox", prefetch=0)
    world.commit()
    assert hearer.bodies() == list(numbered(2000))


def dead_lettering(world: World, **arguments: Any) -> Client:
    client = world.client()
    client.queue("dead")
    client.queue(
        "orders", arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"} | arguments
    )
    world.commit()
    return client


def test_a_dead_letter_and_its_deletion_are_one_batch_without_room_too() -> None:
    world = full_world()
    client = dead_lettering(world)
    client.publish(b"bad", b"good", key="orders")
    world.commit()
    world.full = True
    client.publish(b"late")
    world.commit()
    client.consume("orders")
    world.commit()
    client.nack(1, requeue=False)
    world.step()
    dead, orders = world.queue("dead").spool.id, world.queue("orders").spool.id
    assert world.store.bodies(dead) == [b"bad"]
    assert world.store.bodies(orders) == [b"good"]


def test_letters_wait_while_little_is_left_of_the_reserve_and_other_channels_go_on() -> None:
    world = full_world()
    refuser, other = dead_lettering(world), world.client()
    refuser.publish(*numbered(10), key="orders")
    world.commit()
    world.full = world.low = True
    other.publish(b"late")
    world.commit()
    refuser.consume("orders", prefetch=5)
    other.open(2).consume("orders", prefetch=5, channel=2)
    world.commit()
    assert len(refuser.take()) + len(other.take()) == 10
    refuser.nack(1, requeue=False)
    other.ack(1, channel=2)
    world.commit()
    assert world.queue("dead").messages_ready == 0
    assert world.queue("orders").messages_unacknowledged == 9
    world.low = False
    other.ack(2, channel=2)
    world.commit()
    assert world.queue("dead").messages_ready == 1
    assert world.queue("orders").messages_unacknowledged == 7


@pytest.mark.parametrize("full", [True, False])
def test_letters_are_no_more_in_one_batch_than_the_reserve_has_room_for(full: bool) -> None:
    world = full_world()
    client = dead_lettering(world)
    client.publish(*numbered(100, size=20_000), key="orders")
    world.commit()
    world.full = full
    client.publish(b"late")
    world.commit()
    client.consume("orders")
    world.commit()
    client.nack(0, multiple=True, requeue=False)
    dead = world.queue("dead").spool.id
    counts = [0]
    while world.step():
        counts.append(len(world.store.bodies(dead)))
    assert counts[-1] == 100
    assert max(after - before for before, after in itertools.pairwise(counts)) <= 7


def full_world_with_letters() -> FullWorld:
    """Full behind the declaration of a queue for dead letters."""
    world = full_world()
    admin = world.client()
    admin.ask(ExchangeDeclare("lbg.g.dlx", "fanout", durable=True), ExchangeDeclareOk)
    admin.queue("dead")
    admin.ask(QueueBind("dead", "lbg.g.dlx", ""), QueueBindOk)
    world.full = True
    return world


def test_a_letter_that_a_client_publishes_is_confirmed_without_room() -> None:
    world = full_world_with_letters()
    publisher, member = publisher_of(world), publisher_of(world)
    publisher.publish(b"stuck")
    world.commit()
    member.publish(b"letter", exchange="lbg.g.dlx", key="k")
    world.commit()
    assert confirmed(member) == 1
    assert not is_held(member)
    assert world.store.bodies(world.queue("dead").spool.id) == [b"letter"]


def test_a_publish_behind_a_letter_of_its_channel_is_confirmed_when_there_is_room() -> None:
    world = full_world_with_letters()
    publisher, other = publisher_of(world), publisher_of(world)
    other.publish(b"stuck")
    world.commit()
    publisher.tell(
        publish_event(1, "lbg.g.dlx", "", header=EMPTY_HEADER, body=b"letter"),
        publish_event(1, "", "q", header=EMPTY_HEADER, body=b"behind"),
    )
    world.commit()
    world.make_room()
    assert confirmed(publisher) == 2


def test_an_orderly_stop_without_room_keeps_what_was_promised() -> None:
    world = full_world()
    publisher, consumer = publisher_of(world), world.client()
    publisher.publish(b"1", b"2", b"3")
    world.commit()
    world.full = True
    publisher.publish(b"late")
    world.commit()
    consumer.consume(prefetch=1)
    world.commit()
    consumer.ack(1)
    world.commit()
    consumer.lose()
    final = world.broker.seal(final=True, on_reserve=True)
    assert final is not None
    world.write(final)
    world.crash()
    assert world.queue().messages_ready == 2
    again = world.client()
    again.consume()
    world.commit()
    assert again.bodies() == [b"2", b"3"]


def test_a_purge_without_room_takes_what_waits_in_memory_too() -> None:
    world = full_world()
    publisher = publisher_of(world)
    publisher.publish(b"1")
    world.commit()
    world.full = True
    publisher.publish(b"2")
    world.commit()
    world.administer(QueuePurge("q"))
    world.commit()
    world.make_room()
    assert confirmed(publisher) == 2
    assert world.store.bodies(1) == []
    assert world.queue().messages_ready == 0


def test_what_was_purged_while_a_batch_found_no_room_does_not_come_back() -> None:
    world = full_world()
    client = world.client()
    client.publish(*numbered(20))
    batch = world.broker.seal()
    assert batch is not None
    for _ in range(11):
        client.say(BasicGet("q"))
    client.nack(10, multiple=True)
    client.say(QueuePurge("q"))
    client.nack(11)
    client.say(QueuePurge("q"))
    world.full = True
    world.write(batch)
    world.commit()
    world.make_room()
    assert world.store.bodies(1) == []
    assert world.store.records[1].messages == 0


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "partitioned": ({"x-queue-type": "partitioned", "x-partition-count": 1, "x-rebalance-delay": 0}, {}),
    "grouped": ({"x-group-header": "key"}, {}),
    "sessions": ({"x-queue-type": "sessions"}, {"x-session": "s"}),
}

STEPS = st.lists(
    st.sampled_from(
        ["publish", "publish", "many", "step", "ack", "ack", "nack", "full", "room", "low", "crash"]
    ),
    max_size=40,
)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=example_count(40), deadline=None)
@given(steps=STEPS)
def test_what_was_confirmed_is_delivered_until_it_is_acknowledged_whenever_the_disk_fills(
    kind: str, steps: list[str]
) -> None:
    arguments, asked = KINDS[kind]
    world = FullWorld()
    world.client().queue(arguments=arguments)
    world.commit()
    promised: set[int] = set()
    settled: set[int] = set()
    sent: list[int] = []
    count = 0
    publisher, consumer, held = publisher_of(world), world.client(), []

    def consume() -> None:
        consumer.consume(prefetch=4, arguments=asked)
        world.pass_time(1)

    def note() -> None:
        promised.update(sent[: confirmed(publisher)])
        held.extend(consumer.take())

    consume()
    for step in steps:
        if step in ("publish", "many") and not is_held(publisher):
            new = range(count, count + (1 if step == "publish" else 300))
            count = new.stop
            sent += new
            publisher.publish(*[b"%d" % number for number in new])
        elif step == "step":
            world.step()
        elif step in ("ack", "nack") and held:
            delivery = held.pop(0)
            if step == "ack":
                settled.add(int(delivery.body or -1))
                consumer.ack(delivery.delivery_tag)
            else:
                consumer.nack(delivery.delivery_tag)
        elif step in ("full", "low"):
            world.full, world.low = True, step == "low"
        elif step == "room":
            world.make_room()
        elif step == "crash":
            world.crash()
            sent, held = [], []
            publisher, consumer = publisher_of(world), world.client()
            consume()
        note()
    for _ in range(10_000):
        if not (world.step() or held):
            break
        while held:
            delivery = held.pop(0)
            settled.add(int(delivery.body or -1))
            consumer.ack(delivery.delivery_tag)
        note()
    assert promised <= settled
    world.make_room()
    while held or consumer.deliveries:
        note()
        while held:
            delivery = held.pop(0)
            settled.add(int(delivery.body or -1))
            consumer.ack(delivery.delivery_tag)
        world.commit()
    assert set(sent) <= settled
    assert confirmed(publisher) == len(sent)
