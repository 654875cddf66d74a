"""The numbers of a broker that was restored from a backup: given again to other messages, in another epoch.

A consumer that keeps its number and the epoch with its own writes is given everything that the broker has and that it
has not processed: it is never sent past it. What it processed and the backup has not may come again.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

from hypothesis import given as examples
from hypothesis import settings
from hypothesis import strategies as st

from lbg_broker.core.queue_types.session_headers import EPOCH, SEQUENCE
from lbg_core.amqp import ReplyCode
from lbg_core.amqp.methods import QueueDelete, QueueDeleteOk
from testing.broker_core.sessions import sessions_queue
from testing.broker_core.world import Client, Delivery, MemoryStore, World
from testing.exploration import example_count


@dataclass
class Consumer:
    """Commits number and epoch of each message with what it does."""

    world: World
    committed: int = 0
    epoch: str | None = None
    processed: list[bytes] = field(default_factory=list)
    client: Client | None = None
    given: list[Delivery] = field(default_factory=list)

    def attach(self, *, prefetch: int = 5) -> Client:
        client = self.world.client()
        arguments: dict[str, object] = {"x-session": "s", "x-session-committed": self.committed}
        if self.epoch is not None:
            arguments["x-session-epoch"] = self.epoch
        client.consume("q", tag="s", prefetch=prefetch, arguments=arguments)
        self.world.commit()
        self.client, self.given = client, []
        return client

    def work(self, most: int = 1000, *, acknowledges: bool = True) -> int:
        assert self.client is not None
        done = 0
        while done < most:
            self.given += self.client.take()
            if not self.given:
                return done
            while self.given and done < most:
                delivery = self.given.pop(0)
                done += 1
                number, epoch = delivery.headers[SEQUENCE], delivery.headers[EPOCH]
                assert isinstance(epoch, str)
                self.committed, self.epoch = number, epoch
                self.processed.append(delivery.body)
                if acknowledges:
                    self.client.ack(delivery.delivery_tag)
            self.world.commit()
        return done


def bodies(first: int, count: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


def publish(world: World, first: int, count: int) -> None:
    world.client().publish(*bodies(first, count))
    world.commit()


def restore(world: World, backup: MemoryStore) -> None:
    world.store = copy.deepcopy(backup)
    world.crash()


def test_messages_that_get_used_numbers_after_a_restore_are_delivered() -> None:
    world = sessions_queue()
    consumer = Consumer(world)
    consumer.attach()
    publish(world, 0, 3)
    assert consumer.work() == 3
    backup = copy.deepcopy(world.store)
    publish(world, 3, 4)
    assert consumer.work() == 4
    assert consumer.committed == 7
    restore(world, backup)
    publish(world, 100, 10)
    consumer.attach()
    consumer.work()
    assert consumer.processed[7:] == bodies(100, 10)


def test_a_restart_without_a_restore_goes_on_right_after_the_number() -> None:
    world = sessions_queue()
    consumer = Consumer(world)
    publish(world, 0, 6)
    consumer.attach(prefetch=6)
    assert consumer.work(4, acknowledges=False) == 4
    world.crash()
    publish(world, 6, 3)
    consumer.attach(prefetch=6)
    consumer.work()
    assert consumer.processed == bodies(0, 9)


def test_a_number_that_this_life_of_the_broker_has_not_given_is_refused() -> None:
    world = sessions_queue()
    consumer = Consumer(world)
    publish(world, 0, 2)
    consumer.attach()
    consumer.work()
    assert consumer.client is not None
    consumer.client.lose()
    consumer.committed = 9
    refused = consumer.attach()
    assert refused.refusal is not None
    code, why = refused.refusal
    assert (code, "the session's last number is 2" in why) == (ReplyCode.PRECONDITION_FAILED, True)


def test_a_consumer_that_comes_back_before_what_it_acknowledged_in_an_earlier_life_is_refused() -> None:
    """It was restored, and the messages are gone."""
    world = sessions_queue()
    consumer = Consumer(world)
    publish(world, 0, 6)
    consumer.attach(prefetch=6)
    consumer.work(2)
    before = consumer.committed, consumer.epoch
    consumer.work()
    world.crash()
    publish(world, 6, 1)
    Consumer(world, consumer.committed, consumer.epoch).attach()
    world.crash()
    consumer.committed, consumer.epoch = before
    refused = consumer.attach()
    assert refused.refusal is not None
    code, why = refused.refusal
    assert (code, "the session has acknowledged up to 6" in why) == (ReplyCode.PRECONDITION_FAILED, True)


def test_an_epoch_that_is_not_known_repeats_what_was_not_acknowledged_and_loses_nothing() -> None:
    world = sessions_queue()
    consumer = Consumer(world)
    publish(world, 0, 5)
    consumer.attach()
    assert consumer.work(3, acknowledges=False) == 3
    world.crash()
    consumer.epoch = "of a life that this store knows nothing of"
    consumer.attach()
    consumer.work()
    assert consumer.processed == bodies(0, 3) + bodies(0, 5)


def test_a_position_in_a_queue_that_was_deleted_covers_no_message_of_the_queue_that_replaces_it() -> None:
    world = sessions_queue()
    consumer = Consumer(world)
    publish(world, 0, 5)
    consumer.attach()
    consumer.work()
    client = world.client()
    client.ask(QueueDelete("q"), QueueDeleteOk)
    world.commit()
    client.queue(arguments={"x-queue-type": "sessions"})
    for first in (5, 8):
        publish(world, first, 3)
        client = consumer.attach()
        consumer.work()
        client.lose()
        world.commit()
    assert consumer.processed == bodies(0, 11)


def test_what_a_session_remembers_of_epochs_is_bounded() -> None:
    world = sessions_queue()
    Consumer(world).attach(prefetch=1000)
    for life in range(40):
        publish(world, life, 1)
        world.crash()
        Consumer(world, committed=0).attach(prefetch=1000)
    publish(world, 40, 1)
    (kept,) = world.queue("q").policy.stored_state()["sessions"]
    assert [first for _, first in kept["epochs"]] == list(range(26, 42))


MOVES = st.lists(st.integers(0, 6), min_size=5, max_size=60)


@examples(MOVES)
@settings(max_examples=example_count(200), deadline=None)
def test_no_history_of_restarts_and_restores_sends_a_consumer_past_a_message(moves: list[int]) -> None:
    world = sessions_queue()
    consumer = Consumer(world)
    backups: list[tuple[MemoryStore, frozenset[bytes]]] = []
    published, there = 0, frozenset[bytes]()
    consumer.attach()
    for move in moves:
        match move:
            case 0 | 1:
                publish(world, published, 3)
                there |= frozenset(bodies(published, 3))
                published += 3
            case 2:
                consumer.work(2)
            case 3:
                consumer.work(2, acknowledges=False)
            case 4:
                backups.append((copy.deepcopy(world.store), there))
            case 5:
                world.crash()
                consumer.attach()
            case _ if backups:
                store, there = backups[(published + len(moves)) % len(backups)]
                restore(world, store)
                consumer.attach()
    if consumer.client is not None:
        consumer.client.lose()
    consumer.attach()
    if consumer.client is not None and consumer.client.refusal is not None:
        # What the broker has acknowledged the consumer has processed: a position before that it cannot have.
        raise AssertionError(consumer.client.refusal)
    consumer.work()
    assert there <= set(consumer.processed)
