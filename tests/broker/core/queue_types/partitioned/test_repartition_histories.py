"""Random histories of a partitioned queue whose number of partitions changes with the ingress open.

The laws are those that a publisher and the consumers of a key see. A message is delivered only when every earlier one
of its key is settled or with the same consumer; nobody is refused; nothing confirmed is lost, also when the broker
dies; and when everything is acknowledged, the queue has the lines of its partitions and no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from lbg_broker.core import spool, state
from lbg_broker.core.effects import Deliver, Send
from lbg_core.amqp.methods import BasicAck, BasicNack
from testing.broker_core.partitioned_world import DELAY_S, HANDOFF_S, PartitionedWorld, header
from testing.broker_core.world import Client
from testing.exploration import example_count

WINDOW, LEAD, UNSETTLED_BYTES = 6, 4, 40
KEYS = [f"key-{number}" for number in range(4)]


@dataclass
class Sent:
    key: str
    confirmed: bool = False
    delivered: bool = False
    holder: Seat | None = None


@dataclass(eq=False)
class Seat:
    client: Client
    prefetch: int
    tag: str | None = None
    held: dict[int, bytes] = field(default_factory=dict)


class Changes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._sizes = (spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES)
        spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES = WINDOW, LEAD, UNSETTLED_BYTES
        self.there: dict[bytes, Sent] = {}
        """Messages that are not settled, in the order of publishing."""
        self.settled: dict[bytes, str] = {}
        """Since the last crash, with their keys."""
        self.open_tags: dict[int, bytes] = {}
        self.seats: list[Seat] = []
        self.serial = self.published = 0
        self.after_crash = False

    def teardown(self) -> None:
        spool.WINDOW_MESSAGES, spool.LEAD_MIN, state.UNSETTLED_BYTES = self._sizes

    @initialize(
        count=st.integers(1, 5),
        hash_count=st.sampled_from([None, 12, 60]),
        prefetches=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    )
    def declare(self, count: int, hash_count: int | None, prefetches: list[int]) -> None:
        asked = {} if hash_count is None else {"x-partition-hash-count": hash_count}
        self.world = PartitionedWorld(count, **asked)
        self.count = count
        for prefetch in prefetches:
            self.sit_down(prefetch)
        self.world.pass_time(DELAY_S)

    # --- what can happen ---------------------------------------------------------------------------------------

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=12))
    def publish(self, keys: list[str]) -> None:
        for key in keys:
            self.serial += 1
            self.published += 1
            body = b"%d" % self.serial
            self.there[body] = Sent(key)
            self.open_tags[self.published] = body
            self.world.publisher.publish(body, header=header(key))
        self.hear()

    @rule(counts=st.lists(st.integers(1, 6), min_size=1, max_size=2), between=st.sampled_from([[], KEYS]))
    def repartition(self, counts: list[int], between: list[str]) -> None:
        for count in counts:
            self.change(count)
            self.publish(between)

    def change(self, count: int) -> None:
        assert self.world.act("repartition", count=count) == {"partitions": count, "discarded": 0}
        self.count = count
        self.hear()

    @rule(data=st.data(), multiple=st.booleans(), how=st.sampled_from(["ack", "ack", "requeue"]))
    def settle(self, data: st.DataObject, multiple: bool, how: str) -> None:
        holding = [seat for seat in self.seats if seat.held]
        if not holding:
            return
        seat = data.draw(st.sampled_from(holding), label="seat")
        tag = data.draw(st.sampled_from(sorted(seat.held)), label="tag")
        for other in [other for other in seat.held if other == tag or (multiple and other < tag)]:
            self.let_go(seat, other, keep=how == "requeue")
        if how == "ack":
            seat.client.ack(tag, multiple=multiple)
        else:
            seat.client.nack(tag, multiple=multiple, requeue=True)
        self.hear()

    @rule()
    def ack_everything(self) -> None:
        for seat in self.seats:
            for tag in list(seat.held):
                self.let_go(seat, tag, keep=False)
            seat.client.ack(0, multiple=True)
            self.hear()

    @precondition(lambda self: len(self.seats) < 5)
    @rule(prefetch=st.integers(0, 5))
    def sit_down(self, prefetch: int) -> None:
        self.serial += 1
        seat = Seat(self.world.client(), prefetch, f"c{self.serial}")
        self.seats.append(seat)
        seat.client.consume(tag=seat.tag, prefetch=prefetch)
        self.hear()

    @precondition(lambda self: len(self.seats) > 1)
    @rule(data=st.data(), how=st.sampled_from(["cancel", "lose"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        seat = data.draw(st.sampled_from(self.seats), label="seat")
        if how == "lose":
            for tag in list(seat.held):
                self.let_go(seat, tag, keep=True)
            self.seats.remove(seat)
            seat.client.lose()
        elif seat.tag is not None:
            seat.client.cancel(seat.tag)
            seat.tag = None
        self.hear()

    @rule(seconds=st.sampled_from([1.0, 3.0, 6.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.pass_time(seconds)
        self.hear()

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

    @rule(written=st.booleans(), prefetch=st.integers(0, 5))
    def crash(self, written: bool, prefetch: int) -> None:
        self.world.crash(written=written)
        self.seats.clear()
        self.world.names.clear()
        self.world.publisher = self.world.client().confirms()
        self.published = 0
        self.open_tags.clear()
        stored = {body for line in self.world.queue().lines for body in self.world.store.bodies(line.id)}
        assert not [body for body, sent in self.there.items() if sent.confirmed and body not in stored]
        assert stored <= {*self.there, *self.settled}
        keys = {body: sent.key for body, sent in self.there.items()} | self.settled
        self.there = {body: Sent(keys[body], confirmed=True) for body in sorted(stored, key=int)}
        self.settled.clear()
        self.after_crash = True
        described = self.world.described["moving_keys"]
        self.count = self.world.queue().arguments["x-partition-count"]
        assert described is None or described["partitions"] == self.count
        self.sit_down(prefetch)

    # --- laws --------------------------------------------------------------------------------------------------

    def let_go(self, seat: Seat, tag: int, *, keep: bool) -> None:
        body = seat.held.pop(tag)
        sent = self.there[body]
        assert sent.holder is seat
        sent.holder = None
        if not keep:
            del self.there[body]
            self.settled[body] = sent.key

    def hear(self) -> None:
        for client in [self.world.publisher, *(seat.client for seat in self.seats)]:
            effects, client.effects = client.effects, []
            for effect in effects:
                match effect:
                    case Deliver(_, _, first_tag, redelivered, messages):
                        (seat,) = [seat for seat in self.seats if seat.client is client]
                        for index, message in enumerate(messages):
                            self.judge(seat, first_tag + index, message.body, is_again=index < redelivered)
                    case Send(_, BasicAck(tag, multiple)):
                        for other in [
                            other for other in self.open_tags if other == tag or (multiple and other < tag)
                        ]:
                            body = self.open_tags.pop(other)
                            if body in self.there:
                                self.there[body].confirmed = True
                    case Send(_, BasicNack() as nack):
                        raise AssertionError(f"{nack} of an open queue without a limit")

    def judge(self, seat: Seat, tag: int, body: bytes, *, is_again: bool) -> None:
        assert body in self.there, f"{body!r} is delivered and not there to deliver"
        sent = self.there[body]
        if (former := sent.holder) is not None:  # the handoff took too long
            assert self.world.handoffs["forced"] > 0
            assert is_again
            former.held = {tag: other for tag, other in former.held.items() if other != body}
        if sent.delivered:
            assert is_again
        sent.delivered, sent.holder = True, seat
        seat.held[tag] = body
        for other, earlier in self.there.items():
            if other == body:
                break
            if earlier.key == sent.key:
                assert earlier.holder is seat, (
                    f"{body!r} of {sent.key} is delivered before {other!r} is settled"
                )

    @rule()
    def everything_comes_out(self) -> None:
        """A consumer without a limit takes what there is, and the change is over then."""
        for seat in list(self.seats):
            for tag in list(seat.held):
                self.let_go(seat, tag, keep=True)
            self.seats.remove(seat)
            seat.client.lose()
        self.sit_down(0)
        for _ in range(50):
            self.world.pass_time(DELAY_S + HANDOFF_S)
            self.world.commit()
            self.hear()
            if (
                not self.there
                and not self.world.broker.has_changes
                and self.world.described["moving_keys"] is None
            ):
                break
            self.ack_everything()
        assert not self.there
        assert self.world.described["moving_keys"] is None
        assert len(self.world.queue().lines) == len(self.world.described["partitions"]) == self.count


TestChanges = Changes.TestCase
TestChanges.settings = settings(max_examples=example_count(200), stateful_step_count=50, deadline=None)
