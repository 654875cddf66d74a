"""Random histories of members that obey basic.revoke, judged by what their applications did.

What the broker says and what a member says are on their way for as long as it pleases, so every crossing happens.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lbg_broker.core.effects import Deliver, Effect, Revoke
from lbg_core.amqp.methods import BasicAck, BasicNack, BasicRevokeOk, Method
from testing.broker_core.partitioned_world import DELAY_S, HANDOFF_S, PartitionedWorld
from testing.broker_core.world import Client
from testing.exploration import example_count

PARTITIONS = 2


@dataclass(eq=False)
class Call:
    """A delivery in a member's hands. `taken`: the broker has said so, whether or not that was read."""

    tag: int
    body: bytes
    taken: bool = False


@dataclass(eq=False)
class Seat:
    """A member: what is on its way to it and from it, its lanes by partition, and the calls that run."""

    client: Client
    inbox: deque[Effect] = field(default_factory=deque)
    outbox: list[Method] = field(default_factory=list)
    lanes: dict[int, deque[Call]] = field(default_factory=lambda: defaultdict(deque))
    running: dict[int, Call] = field(default_factory=dict)
    unsettled: dict[int, Call] = field(default_factory=dict)
    """By tag, as the broker sees it: what it gave out, less what it has been told of."""
    over: set[int] = field(default_factory=set)
    """Tags of which the member was told that they are taken."""


class Members(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = PartitionedWorld(PARTITIONS)
        self.seats: dict[int, Seat] = {}
        self.joined = 0
        self.published: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.begun: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
        self.finished: set[bytes] = set()
        self.cut_off: set[bytes] = set()
        """Bodies that were begun, or done and not said yet, when they were taken."""

    # --- what happens ------------------------------------------------------------------------------------------

    @initialize()
    def a_partition_is_on_its_way(self) -> None:
        self.join(prefetch=8)
        self.pass_time(DELAY_S)
        for partition in range(PARTITIONS):
            self.publish(partition, 3)
        self.join(prefetch=8)
        self.pass_time(DELAY_S)

    @rule(partition=st.integers(0, PARTITIONS - 1), count=st.integers(1, 4))
    def publish(self, partition: int, count: int) -> None:
        bodies = [b"%d-%d" % (partition, len(self.published[partition]) + more) for more in range(count)]
        self.published[partition] += bodies
        self.world.send(partition, *bodies)
        self.hear()

    @precondition(lambda self: len(self.seats) < 4)
    @rule(prefetch=st.sampled_from([1, 8]))
    def join(self, prefetch: int) -> None:
        self.joined += 1
        client = self.world.join(f"m{self.joined}", prefetch=prefetch, revocable=True)
        self.seats[client.number] = Seat(client)
        self.hear()

    @precondition(lambda self: len(self.seats) > 1)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """In order: nothing runs, what is done is said, and the channel closes."""
        idle = [seat for seat in self.seats.values() if not seat.running]
        if not idle:
            return
        seat = data.draw(st.sampled_from(idle), label="leaves")
        self.say(seat)
        del self.seats[seat.client.number]
        seat.client.close()
        self.hear()

    @rule(data=st.data(), count=st.integers(1, 3))
    def read(self, data: st.DataObject, count: int) -> None:
        seat = data.draw(st.sampled_from(list(self.seats.values())), label="reads")
        for _ in range(min(count, len(seat.inbox))):
            self.understand(seat, seat.inbox.popleft())

    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        able = [
            (seat, partition)
            for seat in self.seats.values()
            for partition, lane in seat.lanes.items()
            if lane and partition not in seat.running
        ]
        if able:
            self.start(*data.draw(st.sampled_from(able), label="begins"))

    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        able = [(seat, partition) for seat in self.seats.values() for partition in seat.running]
        if able:
            self.end(*data.draw(st.sampled_from(able), label="ends"))

    @rule(data=st.data())
    def write(self, data: st.DataObject) -> None:
        self.say(data.draw(st.sampled_from(list(self.seats.values())), label="writes"))

    @rule(seconds=st.sampled_from([0.5, 2.5, HANDOFF_S, DELAY_S]))
    def pass_time(self, seconds: float) -> None:
        end = self.world.now + seconds
        while (at := self.world.broker.next_alarm) is not None and at <= end:
            self.world.pass_time(max(at - self.world.now, 0))
            self.hear()
        self.world.pass_time(end - self.world.now)
        self.hear()

    @rule()
    def the_disk_catches_up(self) -> None:
        self.world.commit()
        self.hear()

    # --- members -----------------------------------------------------------------------------------------------

    def hear(self) -> None:
        """Put what the broker says on its way. What it takes is taken from now on."""
        for seat in self.seats.values():
            effects, seat.client.effects = seat.client.effects, []
            for effect in effects:
                match effect:
                    case Deliver(_, _, first, _, messages):
                        for offset, message in enumerate(messages):
                            call = Call(first + offset, message.body)
                            seat.unsettled[call.tag] = call
                        seat.inbox.append(effect)
                    case Revoke(_, _, taken, tags):
                        if taken:
                            for tag in tags:
                                self.take(seat, seat.unsettled.pop(tag))
                        seat.inbox.append(effect)
                    case _:
                        pass

    def take(self, seat: Seat, call: Call) -> None:
        call.taken = True
        if call in seat.running.values() or call.body in self.finished:
            self.cut_off.add(call.body)
        elif any(isinstance(effect, Revoke) and call.tag in effect.delivery_tags for effect in seat.inbox):
            self.cut_off.add(call.body)  # it was not told in time to start no more of it

    def understand(self, seat: Seat, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            for offset, message in enumerate(effect.messages):
                tag = effect.first_tag + offset
                call = seat.unsettled.get(tag) or Call(tag, message.body, taken=True)
                seat.lanes[int(message.body[:1])].append(call)
            return
        assert isinstance(effect, Revoke)
        tags = tuple(effect.delivery_tags)
        for lane in seat.lanes.values():
            for call in [call for call in lane if call.tag in tags]:
                lane.remove(call)
                if not effect.taken:
                    seat.outbox.append(BasicNack(call.tag, False, True))
        if effect.taken:
            seat.over.update(tags)
        seat.outbox.append(BasicRevokeOk(effect.taken, tags))

    def start(self, seat: Seat, partition: int) -> None:
        call = seat.running[partition] = seat.lanes[partition].popleft()
        others = [
            other.running[partition].body
            for other in self.seats.values()
            if other is not seat and partition in other.running and not other.running[partition].taken
        ]
        assert call.taken or not others, f"{call.body!r} begins while {others} runs elsewhere"
        assert call.body not in self.begun[partition] or call.body in self.cut_off, (
            f"{call.body!r} is repeated"
        )
        if call.body not in self.begun[partition]:
            self.begun[partition].append(call.body)

    def end(self, seat: Seat, partition: int) -> None:
        call = seat.running.pop(partition)
        self.finished.add(call.body)
        if call.tag not in seat.over:
            seat.outbox.append(BasicAck(call.tag, False))

    def say(self, seat: Seat) -> None:
        said, seat.outbox = seat.outbox, []
        for method in said:
            if isinstance(method, BasicAck | BasicNack):
                before = self.world.queue().messages_unacknowledged
                is_late = method.delivery_tag not in seat.unsettled
                seat.unsettled.pop(method.delivery_tag, None)
                seat.client.say(method)
                self.hear()
                if is_late:
                    assert self.world.queue().messages_unacknowledged >= before, (
                        "a late verdict settled something"
                    )
            else:
                seat.client.say(method)
                self.hear()
            assert seat.client.refusal is None, seat.client.refusal

    # --- what is always true -----------------------------------------------------------------------------------

    @invariant()
    def first_calls_are_in_order(self) -> None:
        for published, begun in zip(self.published, self.begun, strict=True):
            assert begun == published[: len(begun)]

    @invariant()
    def only_what_was_cut_off_counts_as_forced(self) -> None:
        assert self.world.handoffs["messages_forced"] >= len(self.cut_off)

    def teardown(self) -> None:
        """Nothing is lost: everybody does what there is, and then all of it is done."""
        if not self.seats:
            return
        for _ in range(400):
            for seat in list(self.seats.values()):
                while seat.inbox:
                    self.understand(seat, seat.inbox.popleft())
                for partition in range(PARTITIONS):
                    if partition in seat.running:
                        self.end(seat, partition)
                    if seat.lanes[partition]:
                        self.start(seat, partition)
                self.say(seat)
            self.world.commit()
            self.hear()
            if self.finished == {body for bodies in self.published for body in bodies} and not any(
                seat.running for seat in self.seats.values()
            ):
                break
            self.pass_time(1.0)
        assert self.finished == {body for bodies in self.published for body in bodies}
        assert self.world.queue().messages_ready == self.world.queue().messages_unacknowledged == 0


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=example_count(150), stateful_step_count=60, deadline=None)
