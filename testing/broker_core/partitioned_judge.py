"""The laws of a partitioned queue, for its random histories: a model of what waits where and of who holds what, and
everything that consumers hear judged by it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis.stateful import invariant

from lbg_broker.core.effects import Deliver, Send
from lbg_core.amqp.methods import BasicAck, BasicNack
from testing.broker_core.partitioned_world import DELAY_S, HANDOFF_S, PartitionedWorld
from testing.broker_core.world import Client


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


class Judge:
    """`partitions` has what is in each, in order; `seats` are the connections that consume, by number."""

    def __init__(self) -> None:
        super().__init__()
        self.world: PartitionedWorld
        self.partitions: list[list[Entry]] = []
        self.seats: dict[int, Seat] = {}
        self.open_tags: dict[int, bytes] = {}
        self.settled: dict[bytes, bool] = {}
        """Messages settled or purged since the last crash, and whether a consumer had seen them."""
        self.paused_since: dict[int, float] = {}
        self.changed_at = 0.0
        self.after_crash = False

    def note_change(self) -> None:
        """The number of consumers or partitions changes now."""
        self.changed_at = self.world.now

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
        """A consumer with messages of a partition that was reassigned has hit the limit."""
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

    def let_go(self, seat: Seat, tag: int, *, keep: bool) -> None:
        partition, entry = seat.held.pop(tag)
        entry.holder = None
        if not keep:
            self.partitions[partition].remove(entry)
            self.settled[entry.body] = True

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

    # --- what is always true -----------------------------------------------------------------------------------

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
