"""A queue keeps a window of its head in memory; the rest is in the store and comes back in order."""

from collections.abc import Callable

import pytest

from lbg_broker.core import spool, state
from lbg_core.amqp.methods import BasicGet, BasicGetOk, QueueDelete, QueueDeleteOk, QueuePurge, QueuePurgeOk
from testing.broker_core.world import World, numbered

WINDOW = 8


@pytest.fixture(autouse=True)
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "WINDOW_MESSAGES", WINDOW)


durable_or_not = pytest.mark.parametrize("durable", [True, False])


@durable_or_not
def test_a_backlog_leaves_only_the_window_in_memory(durable: bool) -> None:
    world = World()
    client = world.client()
    client.queue(durable=durable)
    client.consume(prefetch=1)
    for body in numbered(100):
        client.publish(body)
        world.commit()
    assert world.queue().messages_ready == 99
    assert world.queue().spool.resident <= 2 * WINDOW


@durable_or_not
def test_a_queue_nobody_consumes_from_keeps_less(durable: bool) -> None:
    world = World()
    client = world.client()
    client.queue(durable=durable)
    for body in numbered(100):
        client.publish(body)
        world.commit()
    assert world.queue().messages_ready == 100
    assert world.queue().spool.resident == 2


@durable_or_not
@pytest.mark.parametrize("commit_every", [1, 3, 7, 200])
def test_a_backlog_is_delivered_in_order_while_more_comes(durable: bool, commit_every: int) -> None:
    world = World()
    client = world.client()
    client.queue(durable=durable)
    client.publish(*numbered(60))
    world.commit()
    client.consume(prefetch=5)
    received: list[bytes] = []
    published = 60
    step = 0
    while len(received) < 200:
        step += 1
        for delivery in client.take():
            received.append(delivery.body)
            client.ack(delivery.delivery_tag)
        if published < 200:
            client.publish(b"%d" % published)
            published += 1
        if step % commit_every == 0:
            world.commit()
        elif step % 2:
            world.seal()
        else:
            world.finish()
        if step > 10_000:
            break
    assert received == list(numbered(200))
    world.commit()
    assert world.store.bodies(world.queue().spool.id, durable=durable) == []
    assert world.queue().spool.resident == 0


def test_a_consumer_that_caught_up_is_served_from_memory_again() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.publish(*numbered(20))
    world.commit()
    client.consume(no_ack=True)
    world.commit()
    client.take()
    client.publish(b"last")
    assert client.bodies() == [b"last"]


def test_large_messages_fill_the_window_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool, "WINDOW_BYTES", 10_000)
    world = World()
    client = world.client()
    client.queue()
    client.consume(prefetch=1)
    client.publish(*numbered(8, size=4000))
    assert world.queue().spool.resident == 2
    world.commit()
    client.close()
    client = world.client()
    client.consume(no_ack=True)
    world.commit()
    assert len(client.take()) == 8


@durable_or_not
@pytest.mark.parametrize(
    "interrupt",
    [
        lambda world, client: client.ask(QueuePurge("q"), QueuePurgeOk),
        lambda world, client: client.ask(QueueDelete("q"), QueueDeleteOk),
    ],
    ids=["purged", "deleted"],
)
def test_a_page_that_arrives_after_the_queue_was_emptied_is_dropped(
    durable: bool, interrupt: Callable[[World, object], object]
) -> None:
    world = World()
    client = world.client()
    client.queue(durable=durable)
    client.publish(*numbered(40))
    world.commit()
    client.consume(prefetch=6)
    world.seal()
    interrupt(world, client)
    world.commit()
    client.queue("q", durable=durable)
    client.take()
    client.publish(b"new")
    world.commit()
    client.consume(tag="fresh", no_ack=True)
    assert b"new" in client.bodies()
    assert world.queue().messages_ready == 0


def test_drop_head_waits_for_a_head_that_is_being_read() -> None:
    world = World()
    client = world.client()
    client.queue(arguments={"x-max-length": 30})
    client.publish(*numbered(30))
    world.commit()
    world.crash()
    client = world.client()
    client.publish(*numbered(5, start=30))
    world.commit()
    assert world.queue().messages_ready == 30
    assert world.store.bodies(world.queue().spool.id) == list(numbered(30, start=5))


def test_what_is_given_back_comes_before_what_is_still_in_the_store() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.publish(*numbered(40))
    world.commit()
    client.consume(prefetch=12)
    world.commit()
    client.close()
    client = world.client()
    client.consume(no_ack=True)
    world.commit()
    assert client.bodies() == list(numbered(40))


class TestUnsettled:
    @pytest.fixture(autouse=True)
    def little_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state, "UNSETTLED_BYTES", 10)

    @staticmethod
    def in_memory(world: World, number: int) -> int:
        (channel,) = world.broker.state.connections[number].channels.values()
        return sum(not message.hollow for _, message, _ in channel.unsettled.values())

    @durable_or_not
    def test_messages_leave_memory_and_come_back_whole_and_in_order(self, durable: bool) -> None:
        world = World()
        client = world.client()
        client.queue(durable=durable)
        client.publish(*numbered(100))
        world.commit()
        client.consume()
        world.commit()
        assert client.bodies() == list(numbered(100))
        assert self.in_memory(world, client.number) <= 3 * WINDOW
        client.ack(3)
        client.close()
        heir = world.client()
        heir.consume()
        world.commit()
        again = heir.take()
        assert [delivery.body for delivery in again] == [b"0", b"1", *numbered(97, start=3)]
        assert all(delivery.redelivered and delivery.header == b"\x00\x00" for delivery in again)

    def test_what_came_back_hollow_can_be_fetched_dropped_and_purged(self) -> None:
        world = World()
        client = world.client()
        client.queue(arguments={"x-max-length": 50})
        client.publish(*numbered(40))
        world.commit()
        client.consume()
        world.commit()
        client.take()
        client.close()
        client = world.client()
        assert client.ask(BasicGet("q", True), BasicGetOk).redelivered
        assert client.bodies() == [b"0"]
        client.publish(*numbered(13, start=40))
        world.commit()
        assert world.store.bodies(world.queue().spool.id) == list(numbered(50, start=3))
        assert client.ask(QueuePurge("q"), QueuePurgeOk).message_count == 50
        world.commit()
        assert world.store.bodies(world.queue().spool.id) == []

    def test_a_queue_that_dead_letters_keeps_them(self) -> None:
        world = World()
        client = world.client()
        client.queue("dead")
        client.queue(arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"})
        client.publish(*numbered(30))
        world.commit()
        client.consume()
        world.commit()
        client.nack(30, multiple=True, requeue=False)
        world.commit()
        assert world.store.bodies(world.queue("dead").spool.id) == list(numbered(30))

    def test_what_is_not_on_disk_yet_stays(self) -> None:
        world = World()
        client = world.client()
        client.queue()
        client.consume()
        client.publish(*numbered(WINDOW))
        client.close()
        client = world.client()
        client.consume()
        assert len(client.take()) == WINDOW
