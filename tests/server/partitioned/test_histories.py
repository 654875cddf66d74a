"""Random histories of a partitioned queue against a model of what must be true, whatever happens.

The model knows what waits in each partition, who holds what, and what time it is. The laws: one consumer for each
partition at a time; what leaves a partition is its front, so a key's messages come in order and only go back where
somebody gave them back; nothing confirmed is lost; nobody holds more than its prefetch; and loads differ by at most one
as soon as the number of consumers has stood still for the rebalance delay and the longest handoff.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbg_broker.amqp.methods import BasicAck, BasicNack, QueuePurge
from lbg_broker.server.core import spool, state
from lbg_broker.server.core.effects import Deliver, Send
from lbg_broker.server.core.errors import ChannelRefusal
from support.broker_world import Client
from support.partitioned_world import DELAY_S, HANDOFF_S, PartitionedWorld, header

WINDOW, LEAD, UNSETTLED_BYTES = 6, 4, 40
KEYS = [f"key-{number}" for number in range(8)]


@dataclass
class Entry:
    """A message in a partition. `holder` is the consumer that was given it: its connection, and which one there."""

    body: bytes
    confirmed: bool = False
    given_out: bool = False
    holder: tuple[int, int] | None = None


@dataclass
class Seat:
    """A client with a connection of its own, its consumer's tag while it has one, and what it has in its hands."""

    client: Client
    prefetch: int = 0
    tag: str | None = None
    held: dict[int, tuple[int, Entry]] = field(default_factory=dict)
    late: set[int] = field(default_factory=set)
    """Tags that were taken back, and that it will acknowledge all the same."""
    consumed: int = 0

    @property
    def consumer(self) -> tuple[int, int]:
        return self.client.number, self.consumed


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._sizes = (spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES)
        spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES = WINDOW, LEAD, UNSETTLED_BYTES
        self.seats: dict[int, Seat] = {}
        self.serial = 0
        self.published = 0
        self.open_tags: dict[int, bytes] = {}
        self.settled: dict[bytes, bool] = {}
        """What was settled or purged since the last crash, and whether anybody had seen it."""
        self.gone: dict[str, list[int]] = {}  # tags of the lost, and what they had
        self.paused_since: dict[int, float] = {}
        self.after_crash = False

    def teardown(self) -> None:
        spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES = self._sizes

    @initialize(
        count=st.integers(1, 5),
        durable=st.booleans(),
        prefetches=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    )
    def declare(self, count: int, durable: bool, prefetches: list[int]) -> None:
        self.world = PartitionedWorld(count, durable=durable)
        self.durable = durable
        self.partitions: list[list[Entry]] = [[] for _ in range(count)]
        for prefetch in prefetches:
            self.sit_down(f"first {len(self.seats)}", prefetch=prefetch)
        self.pass_time(DELAY_S)

    # --- messages ----------------------------------------------------------------------------------------------

    @rule(key=st.none() | st.sampled_from(KEYS), sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8))
    def publish(self, key: str | None, sizes: list[int]) -> None:
        for size in sizes:
            self.serial += 1
            self.published += 1
            body = b"%d:" % self.serial + b"x" * size
            before = [line.next_position for line in self.world.queue().lines]
            self.open_tags[self.published] = body
            self.world.publisher.publish(body, header=header(key))
            after = [line.next_position for line in self.world.queue().lines]
            (partition,) = [number for number, _ in enumerate(before) if before[number] != after[number]]
            if key is not None:
                assert partition == zlib.crc32(key.encode()) % len(before)
            self.partitions[partition].append(Entry(body))
        self.hear()

    @rule()
    def publish_every_key(self) -> None:
        for key in KEYS:
            self.publish(key, [1])

    @rule(data=st.data())
    def ack_everything(self, data: st.DataObject) -> None:
        seat = data.draw(st.sampled_from(list(self.seats.values())), label="seat")
        for tag in list(seat.held):
            self.let_go(seat, tag, keep=False)
        seat.late.clear()
        seat.client.ack(0, multiple=True)
        self.hear()

    @rule(data=st.data(), multiple=st.booleans(), how=st.sampled_from(["ack", "requeue", "reject"]))
    def settle(self, data: st.DataObject, multiple: bool, how: str) -> None:
        seats = [seat for seat in self.seats.values() if seat.held or seat.late]
        if not seats:
            return
        seat = data.draw(st.sampled_from(seats), label="seat")
        tag = data.draw(st.sampled_from(sorted([*seat.held, *seat.late])), label="tag")
        for other in [other for other in seat.held if other == tag or (multiple and other < tag)]:
            self.let_go(seat, other, keep=how == "requeue")
        seat.late -= {other for other in seat.late if other == tag or (multiple and other < tag)}
        if how == "ack":
            seat.client.ack(tag, multiple=multiple)
        else:
            seat.client.nack(tag, multiple=multiple, requeue=how == "requeue")
        self.hear()
        assert seat.client.refusal is None

    def let_go(self, seat: Seat, tag: int, *, keep: bool) -> None:
        partition, entry = seat.held.pop(tag)
        entry.holder = None
        if not keep:
            self.partitions[partition].remove(entry)
            self.settled[entry.body] = True

    @rule()
    def purge(self) -> None:
        self.world.administer(QueuePurge("q"))
        for number, entries in enumerate(self.partitions):
            self.settled |= {entry.body: entry.given_out for entry in entries if entry.holder is None}
            self.partitions[number] = [entry for entry in entries if entry.holder is not None]
        self.hear()

    # --- consumers ---------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.seats) < 6)
    @rule(data=st.data(), prefetch=st.integers(0, 5), how=st.sampled_from(["new", "tag", "mapping"]))
    def join(self, data: st.DataObject, prefetch: int, how: str) -> None:
        tag, claim = self.identity(data, how)
        self.sit_down(tag, claim=claim, prefetch=prefetch)

    @rule(data=st.data(), how=st.sampled_from(["new", "tag", "mapping"]))
    def join_again(self, data: st.DataObject, how: str) -> None:
        """On a channel that may still hold what its cancelled consumer was given."""
        seats = [seat for seat in self.seats.values() if seat.tag is None]
        if seats:
            seat = data.draw(st.sampled_from(seats), label="seat")
            tag, claim = self.identity(data, how)
            self.attach(seat, tag, claim)

    def identity(self, data: st.DataObject, how: str) -> tuple[str, list[int] | None]:
        """The tag of a consumer, and the partitions it says it had: a new one's, or those of one that was lost."""
        self.serial += 1
        former = data.draw(st.sampled_from(sorted(self.gone)), label="former") if self.gone else ""
        had = self.gone.pop(former, [0, 7])
        if how == "tag" and former:
            return former, None
        return f"c{self.serial}", had if how == "mapping" else None

    def sit_down(self, tag: str, *, claim: list[int] | None = None, prefetch: int) -> None:
        client = self.world.client()
        seat = self.seats[client.number] = Seat(client, prefetch)
        self.attach(seat, tag, claim)

    def attach(self, seat: Seat, tag: str, claim: list[int] | None) -> None:
        seat.tag = tag
        seat.consumed += 1
        self.settle_down()
        arguments = {} if claim is None else {"x-partitions": claim}
        seat.client.consume(tag=tag, prefetch=seat.prefetch, arguments=arguments)
        self.hear()

    @precondition(lambda self: len(self.seats) > 1)
    @rule(data=st.data(), how=st.sampled_from(["cancel", "close", "lose"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        seats = [seat for seat in self.seats.values() if seat.tag is not None or how != "cancel"]
        if not seats:
            return
        seat = data.draw(st.sampled_from(seats), label="seat")
        if seat.tag is not None:
            self.gone[seat.tag] = self.world.partitions_of(seat.tag)
            self.settle_down()
        if how == "cancel":
            assert seat.tag is not None
            tag, seat.tag = seat.tag, None
            seat.client.cancel(tag)
        else:
            for held in list(seat.held):
                self.let_go(seat, held, keep=True)
            del self.seats[seat.client.number]
            if how == "lose":
                seat.client.lose()
            else:
                seat.client.close()
        self.hear()

    @rule(data=st.data(), paused=st.booleans())
    def pause(self, data: st.DataObject, paused: bool) -> None:
        if self.seats:
            data.draw(st.sampled_from(list(self.seats.values())), label="seat").client.pause(paused)
            self.hear()

    # --- time, disk and scale ----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.5, 3.0, 5.0, 8.0]))
    def pass_time(self, seconds: float) -> None:
        end = self.world.now + seconds
        while (at := self.world.broker.next_alarm) is not None and at <= end:
            self.world.pass_time(max(at - self.world.now, 0))
            self.hear()
        self.world.pass_time(end - self.world.now)
        self.hear()

    @rule()
    def wait_for_a_rebalance(self) -> None:
        self.pass_time(DELAY_S)

    @rule()
    def hand_to_disk(self) -> None:
        self.world.seal()
        self.hear()

    @rule()
    def disk_done(self) -> None:
        self.world.finish()
        self.hear()

    @rule()
    def the_disk_catches_up(self) -> None:
        self.world.commit()
        self.hear()

    @rule(count=st.integers(1, 6))
    def repartition(self, count: int) -> None:
        self.world.act("ingress", open=False)
        if any(self.partitions[count:]):
            with pytest.raises(ChannelRefusal):
                self.world.act("repartition", count=count)
        elif not any(self.partitions):  # as the document has it: drained
            self.world.act("repartition", count=count)
            self.partitions = [[] for _ in range(count)]
            self.settle_down()
        self.world.act("ingress", open=True)
        self.hear()

    @rule(written=st.booleans(), back=st.integers(0, 6))
    def crash(self, written: bool, back: int) -> None:
        """The broker dies, and starts again; some of the consumers return as who they were."""
        returning = [seat for seat in self.seats.values() if seat.tag is not None][:back]
        self.world.crash(written=written)
        self.seats.clear()
        self.gone.clear()
        self.world.names.clear()
        self.paused_since.clear()
        self.world.publisher = self.world.client().confirms()
        self.published = 0
        self.open_tags.clear()
        if self.durable:
            for number, line in enumerate(self.world.queue().lines):
                self.compare_with_disk(number, self.world.store.bodies(line.id))
            self.after_crash = True
        else:
            assert all(durable for _, durable in self.world.store.rows)
            self.partitions = [[] for _ in self.partitions]
            arguments = {"x-queue-type": "partitioned", "x-partition-count": len(self.partitions)}
            self.world.publisher.queue(durable=False, arguments=arguments)
        self.settled.clear()
        assert set(self.world.statuses) <= {"Unassigned", "Unbound"}
        self.settle_down()
        for seat in returning:
            assert seat.tag is not None
            self.sit_down(seat.tag, prefetch=seat.prefetch)
        if not self.seats:
            self.sit_down("the first", prefetch=0)

    def compare_with_disk(self, partition: int, there: list[bytes]) -> None:
        entries = self.partitions[partition]
        known = {entry.body: entry for entry in entries}
        assert not [entry for entry in entries if entry.confirmed and entry.body not in there]
        assert set(there) <= {*known, *self.settled}
        assert [body for body in there if body in known] == [body for body in known if body in there]
        self.partitions[partition] = [
            Entry(
                body,
                confirmed=True,
                given_out=known[body].given_out if body in known else self.settled[body],
            )
            for body in there
        ]

    # --- what is heard -----------------------------------------------------------------------------------------

    def hear(self) -> None:
        self.see_what_was_taken_back()
        clients = [self.world.publisher, *(seat.client for seat in self.seats.values())]
        for client in clients:
            effects, client.effects = client.effects, []
            for effect in effects:
                match effect:
                    case Deliver(_, consumer_tag, first_tag, redelivered, messages):
                        for index, message in enumerate(messages):
                            self.judge(
                                self.seats[client.number],
                                consumer_tag,
                                first_tag + index,
                                redelivered=index < redelivered,
                                body=message.body,
                            )
                    case Send(_, BasicAck(tag, multiple)):
                        self.confirmed(tag, multiple)
                    case Send(_, BasicNack() as nack):
                        raise AssertionError(f"{nack} of an open queue without a limit")

    def see_what_was_taken_back(self) -> None:
        """Whoever holds messages of a partition that is another's now has hit the limit."""
        world = self.world
        seats = {seat.tag: seat for seat in self.seats.values()}
        for number, (status, tag) in enumerate(zip(world.statuses, world.tags, strict=True)):
            if status == "Paused":
                self.paused_since.setdefault(number, world.now)
                continue
            since = self.paused_since.pop(number, None)
            if status != "Ready":
                continue
            for seat in self.seats.values():
                for held, (partition, entry) in list(seat.held.items()):
                    if partition == number and entry.holder != seats[tag].consumer:
                        assert since is not None
                        assert world.now - since >= HANDOFF_S - 0.001, "taken back before the limit"
                        self.let_go(seat, held, keep=True)
                        seat.late.add(held)

    def judge(self, seat: Seat, consumer_tag: str, tag: int, *, redelivered: bool, body: bytes) -> None:
        found = [
            (number, entry)
            for number, entries in enumerate(self.partitions)
            for entry in entries
            if entry.body == body
        ]
        assert found, f"{body!r} is delivered and not there to deliver"
        ((partition, entry),) = found
        entries = self.partitions[partition]
        assert self.world.tags[partition] == consumer_tag or seat.tag is None
        holders = {other.holder for other in entries if other.holder is not None}
        assert holders <= {seat.consumer}, f"partition {partition} is with two consumers at a time"
        front = next(other for other in entries if other.holder is None)
        assert front is entry, f"{body!r} left partition {partition} before {front.body!r}"
        if entry.given_out:
            assert redelivered
        elif not self.after_crash:
            assert not redelivered
        entry.given_out, entry.holder = True, seat.consumer
        seat.held[tag] = (partition, entry)
        if seat.prefetch and seat.consumed == 1:
            assert len(seat.held) + len(seat.late) <= seat.prefetch

    def confirmed(self, tag: int, multiple: bool) -> None:
        for other in [other for other in self.open_tags if other <= tag] if multiple else [tag]:
            body = self.open_tags.pop(other)
            for entries in self.partitions:
                for entry in entries:
                    entry.confirmed = entry.confirmed or entry.body == body

    # --- what is always true -----------------------------------------------------------------------------------

    def settle_down(self) -> None:
        """The number of consumers or partitions changes now."""
        self.changed_at = self.world.now

    @invariant()
    def loads_are_balanced_in_time(self) -> None:
        world = self.world
        tags = [seat.tag for seat in self.seats.values() if seat.tag is not None]
        loads = [world.tags.count(tag) for tag in tags]
        if world.now - self.changed_at >= DELAY_S + HANDOFF_S:
            assert world.status == "Ready"
            if loads:
                assert sum(loads) == len(self.partitions)
                assert max(loads) - min(loads) <= 1
                assert set(world.statuses) == {"Ready"}
            else:
                assert set(world.statuses) == {"Unassigned"}

    @invariant()
    def statuses_agree(self) -> None:
        world = self.world
        bound = {seat.tag for seat in self.seats.values() if seat.tag is not None}
        for status, tag in zip(world.statuses, world.tags, strict=True):
            assert (tag is None) == (status == "Unassigned")
            assert (tag in bound) == (status in ("Ready", "Paused"))
        assert ("Paused" in world.statuses) == (world.status == "Rebalancing")

    @invariant()
    def counts_are_exact(self) -> None:
        for entries, line in zip(self.partitions, self.world.queue().lines, strict=True):
            assert line.ready == sum(entry.holder is None for entry in entries)
            assert line.outstanding == sum(entry.holder is not None for entry in entries)

    @invariant()
    def what_can_be_delivered_is(self) -> None:
        """After the disk has caught up nothing waits in a ready partition whose consumer has room."""
        world = self.world
        if world.sealed is not None or world.broker.has_changes:
            return
        consumers = {consumer.tag: consumer for consumer in world.queue().policy.consumers}
        for status, tag, ready in zip(world.statuses, world.tags, world.waiting, strict=True):
            if status == "Ready" and ready:
                assert consumers[str(tag)].credit() == 0


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
