"""Random histories of a partitioned queue against a model of what must be true, whatever happens.

The model knows what waits in each partition, who holds what, and what time it is. The laws: one consumer for each
partition at a time; what leaves a partition is its front, so a key's messages come in order and only go back where
somebody gave them back; nothing confirmed is lost; nobody holds more than its prefetch; and loads differ by at most one
as soon as the number of consumers has stood still for the rebalance delay and the longest handoff.
"""

from __future__ import annotations

import zlib

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lbg_broker.core import spool, state
from lbg_core.amqp.methods import QueuePurge
from testing.broker_core.partitioned_judge import Entry, Judge, Seat
from testing.broker_core.partitioned_world import DELAY_S, PartitionedWorld, header
from testing.exploration import example_count

WINDOW, LEAD, UNSETTLED_BYTES = 6, 4, 40
KEYS = [f"key-{number}" for number in range(8)]


class Histories(Judge, RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._sizes = (spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES)
        spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES = WINDOW, LEAD, UNSETTLED_BYTES
        self.serial = 0
        self.published = 0
        self.gone: dict[str, list[int]] = {}  # tags of the lost, and what they had

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
        self.partitions = [[] for _ in range(count)]
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
        self.note_change()
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
            self.note_change()
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
        if not any(self.partitions):  # drained, as «Configuring Partitioned Queues» advises
            self.world.act("repartition", count=count)
            self.partitions = [[] for _ in range(count)]
            self.note_change()
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
        self.note_change()
        for seat in returning:
            assert seat.tag is not None
            self.sit_down(seat.tag, prefetch=seat.prefetch)
        if not self.seats:
            self.sit_down("the first", prefetch=0)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=example_count(200), stateful_step_count=60, deadline=None)
