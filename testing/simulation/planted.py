"""Planted bugs: changes of the product that a simulation has to find."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from lbg_broker.core.effects import StoreBatch
from lbg_broker.core.machine import Broker
from lbg_broker.core.message import Message
from lbg_broker.core.policies import SingleActive
from lbg_broker.core.queue_types.partition_routes import PartitionSpool
from lbg_broker.core.spool import Spool
from lbg_core.admin import repartition
from lbg_core.admin.actions import Action, Unbind
from lbg_core.admin.queue_changes import Counted
from lbg_core.admin.snapshot import Snapshot
from lbg_core.amqp.methods import BasicAck, BasicCancel
from lbg_core.client import Channel
from lbg_core.client.ack_window import AckWindow
from lbg_core.client.retransmit import QueueWindow
from lbg_core.group import PARTITIONED, RABBITMQ, STATIC, GroupSpec
from lbg_core.group.key_moves import KeyMove, KeyMoveState, Turn
from lbg_core.group.parked_keys import KeyState, ParkedKeys
from lbg_core.group.sequences import MessageIdentity
from lbg_core.publisher.stamper import StartingPoint
from lbg_sidecar.core.binding import Binding
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.effects import Attach, Detach, RecordEntry
from lbg_sidecar.core.lanes import Lanes
from lbg_sidecar.core.message_states import Event, State
from lbg_sidecar.core.parked_keys import Parking
from lbg_sidecar.core.queue_bindings import Bindings
from lbg_sidecar.core.queue_consumers import WantedQueues
from testing.simulation import faults
from testing.simulation.context import Setting
from testing.simulation.disk import Disk
from testing.simulation.parking_faults import PARKING

CANCEL_S = 0.01

BUGS: dict[str, Bug] = {}
"""By name."""


@dataclass(frozen=True)
class Bug:
    """`owner`: the class or module that has the attribute. `within`: number of seeds, from
    `first` on, by which it has to be found."""

    owner: Any
    attribute: str
    broken: Callable[[Any], Any]
    setting: Setting = field(default_factory=lambda: Setting(seconds=120.0, faults_per_hour=1500.0))
    within: int = 8
    first: int = 1

    @property
    def seeds(self) -> range:
        return range(self.first, self.first + self.within)

    @contextmanager
    def planted(self) -> Iterator[None]:
        former = self.owner.__dict__[self.attribute]
        setattr(self.owner, self.attribute, self.broken(former))
        try:
            yield
        finally:
            setattr(self.owner, self.attribute, former)


def bug(owner: Any, attribute: str, **options: Any) -> Callable[[Callable[[Any], Any]], None]:
    """Registers the decorated function, which makes the broken attribute of the former one."""

    def register(broken: Callable[[Any], Any]) -> None:
        BUGS[broken.__name__] = Bug(owner, attribute, broken, **options)

    return register


ON_RABBITMQ = Setting(engine=RABBITMQ, seconds=120.0, faults_per_hour=1500.0)
PLANNED_ON_RABBITMQ = Setting(
    engine=RABBITMQ, seconds=60.0, faults_per_hour=3000.0, rate_hz=300.0, kinds=faults.PLANNED
)
STATIC_ON_RABBITMQ = Setting(
    engine=RABBITMQ,
    assignment=STATIC,
    members=4,
    queues=4,
    seconds=30.0,
    faults_per_hour=3000.0,
    rate_hz=400.0,
    kinds=("scale_in", "scale_out", "pause"),
)
CRASHES = Setting(
    seconds=60.0,
    faults_per_hour=1200.0,
    rate_hz=100.0,
    kinds=("kill_broker", "lose_power", "slow_disk", "pause"),
)
PLANNED = Setting(seconds=60.0, faults_per_hour=3000.0, rate_hz=300.0, kinds=faults.PLANNED)


@bug(Attachment, "drained", setting=PLANNED, first=4)
def a_handoff_does_not_wait_for_calls(former: property) -> property:
    return property(lambda attachment: True)


@bug(AckWindow, "done")
def an_ack_covers_what_is_not_done(former: Callable[..., None]) -> Callable[..., None]:
    def done(self: AckWindow[Any], delivery: Any) -> None:
        if delivery in self._outstanding:
            while self._outstanding[0] is not delivery:
                self.prefix.append(self._outstanding.popleft())
            former(self, delivery)

    return done


@bug(StartingPoint, "__init__", first=2)
def a_publisher_goes_on_in_the_epoch_of_its_state(former: Callable[..., None]) -> Callable[..., None]:
    def init(self: StartingPoint, *positional: Any, **named: Any) -> None:
        former(self, *positional, **{**named, "is_resumed": False})

    return init


@bug(Broker, "seal", setting=CRASHES, first=2)
def a_publish_is_confirmed_before_its_commit(former: Callable[..., Any]) -> Callable[..., Any]:
    def seal(self: Broker, **options: bool) -> StoreBatch | None:
        batch: StoreBatch | None = former(self, **options)
        if batch is not None:
            confirms = self.state.committing[batch.number].confirms
            for channel, tag in confirms.items():
                if not channel.closing:
                    self.state.send(channel, BasicAck(tag, True))
                    channel.confirmed = tag
            confirms.clear()
        return batch

    return seal


@bug(Spool, "requeue", first=2)
def a_requeued_message_goes_behind_the_next(former: Callable[..., None]) -> Callable[..., None]:
    def requeue(self: Spool, messages: Iterable[Message]) -> None:
        former(self, messages)
        if len(self._returned) > 1:
            self._returned = [(-position, message) for position, message in self._returned]
            self._returned.sort()

    return requeue


@bug(SingleActive, "dispatch")
def a_queue_has_two_active_consumers(former: Callable[..., Any]) -> Callable[..., Any]:
    def dispatch(self: SingleActive) -> Iterator[Any]:
        yield from former(self)
        if len(self.consumers) > 1:
            self.consumers.reverse()
            try:
                yield from former(self)
            finally:
                self.consumers.reverse()

    return dispatch


@bug(Lanes, "admit")
def messages_of_a_key_run_side_by_side(former: Callable[..., None]) -> Callable[..., None]:
    def admit(self: Lanes, attachment: Attachment, arrivals: Iterable[InFlight]) -> None:
        arrivals = list(arrivals)
        for in_flight in arrivals:
            in_flight.lane = None
        former(self, attachment, arrivals)

    return admit


@bug(Bindings, "detach", setting=PLANNED, first=4)
def a_queue_is_released_before_its_acks(former: Callable[..., int]) -> Callable[..., int]:
    def detach(self: Bindings, binding: Binding) -> int:
        cut_off = former(self, binding)
        for place, effect in enumerate(self._effects):
            if isinstance(effect, Detach):
                self._effects[place] = Detach(effect.attachment, None)
        return cut_off

    return detach


@bug(Bindings, "is_drained", setting=STATIC_ON_RABBITMQ, first=21)
def a_close_does_not_wait_for_acks(former: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, attachment: attachment.drained


@bug(Lanes, "delay", first=2)
def a_key_goes_on_behind_a_failed_message(former: Callable[..., None]) -> Callable[..., None]:
    def delay(self: Lanes, in_flight: InFlight, due: float) -> None:
        attachment, lane = in_flight.attachment, in_flight.lane
        waiting = attachment.lanes.get(lane)
        if waiting and in_flight.is_called and not attachment.closed:
            self._leave_running(in_flight)
            in_flight.state = State.BEHIND
            waiting.append(in_flight)
            self.move(waiting[0], Event.TURN)
        else:
            former(self, in_flight, due)

    return delay


@bug(Lanes, "move", within=12, first=7)
def a_key_stops_behind_its_dead_letter(former: Callable[..., None]) -> Callable[..., None]:
    def move(self: Lanes, in_flight: InFlight, event: Event) -> None:
        if in_flight.state is State.REFUSED and event is Event.FINISH:
            self._leave_underway(in_flight)
            in_flight.state = State.DONE
        else:
            former(self, in_flight, event)

    return move


@bug(
    Spool,
    "restore",
    setting=Setting(seconds=120.0, faults_per_hour=3000.0, kinds=("fill_disk", "kill_broker", "pause")),
    first=2,
)
def a_batch_that_found_no_room_is_forgotten(former: Callable[..., None]) -> Callable[..., None]:
    return lambda self, change: None


@bug(QueueWindow, "interrupted", first=4)
def a_publisher_sends_again_in_another_order(former: Callable[..., Any]) -> Callable[..., Any]:
    def interrupted(self: QueueWindow[Any], now: float) -> Sequence[Any]:
        ended: Sequence[Any] = former(self, now)
        self.pending = deque(reversed(self.pending))
        return ended

    return interrupted


@bug(Channel, "close_soon", setting=PLANNED_ON_RABBITMQ)
def a_member_cancels_before_it_closes(former: Callable[..., None]) -> Callable[..., None]:
    def close_soon(self: Channel) -> None:
        tags = list(self._consumers) if self.is_open else []
        for tag in tags:  # and waits for the answer, as pika does
            self._machine.send(self.number, BasicCancel(tag))
        self._loop.call_later(CANCEL_S if tags else 0.0, former, self)

    return close_soon


@bug(Bindings, "attach", setting=ON_RABBITMQ, first=5)
def members_have_windows_of_different_sizes(former: Callable[..., None]) -> Callable[..., None]:
    def attach(self: Bindings, binding: Binding, now: float) -> None:
        former(self, binding, now)
        attach = self._effects[-1]
        assert isinstance(attach, Attach)
        attach.attachment.prefetch = 2 + binding.epoch % 3 * 8

    return attach


REPARTITIONS = Setting(
    members=4,
    queues=8,
    seconds=90.0,
    faults_per_hour=1500.0,
    rate_hz=60.0,
    kinds=("repartition", "kill_repartition", "scale_in", "scale_out"),
)


@bug(repartition.SeparateQueuesLayout, "depths", setting=REPARTITIONS, first=13)
def queues_change_before_they_are_drained(former: Callable[..., Any]) -> Callable[..., Any]:
    async def depths(self: repartition.SeparateQueuesLayout, *, below: int | None) -> Sequence[Counted]:
        return []

    return depths


@bug(repartition, "restriping", setting=REPARTITIONS, first=2)
def a_hash_keeps_its_former_queue_too(former: Callable[..., Any]) -> Callable[..., Any]:
    def restriping(spec: GroupSpec, observed: Snapshot) -> Iterator[Action]:
        return (one for one in former(spec, observed) if not isinstance(one, Unbind))

    return restriping


@bug(
    PartitionSpool,
    "is_unsettled_below",
    setting=replace(REPARTITIONS, mode=PARTITIONED, kinds=("repartition", "kill_member")),
)
def keys_move_to_another_partition_at_once(former: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, position: False


@bug(WantedQueues, "reshape", setting=replace(REPARTITIONS, kinds=("repartition",)))
def a_member_keeps_the_former_number_of_queues(former: Callable[..., None]) -> Callable[..., None]:
    return lambda self, queue_count, now: None


@bug(KeyMoveState, "is_open", setting=replace(REPARTITIONS, kinds=("repartition",)))
def a_staging_queue_is_consumed_at_once(former: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, queue: True


@bug(KeyMoveState, "turn", setting=replace(REPARTITIONS, kinds=("repartition",)))
def a_new_queue_does_not_wait_for_its_staging_queues(former: Callable[..., Turn]) -> Callable[..., Turn]:
    def turn(self: KeyMoveState, hash_: int, queue: int) -> Turn:
        found = former(self, hash_, queue)
        return Turn.DELIVER if found is Turn.HOLD else found

    return turn


@bug(KeyMove, "leaves", setting=replace(REPARTITIONS, kinds=("repartition",)))
def a_fence_is_passed_with_messages_at_work(former: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, hash_, queue: False


@bug(Disk, "sync", setting=CRASHES)
def a_commit_is_not_synced(former: Callable[..., None]) -> Callable[..., None]:
    return lambda self: None


PARKED = Setting(
    members=4,
    queues=8,
    keys=10,
    seconds=60.0,
    faults_per_hour=3000.0,
    rate_hz=60.0,
    kinds=(*PARKING, "kill_member", "scale_in", "scale_out", "cut", "delay"),
    has_parking=True,
)
PARKED_ON_RABBITMQ = replace(PARKED, mode=PARTITIONED, engine=RABBITMQ)
PARKED_IN_ELECTIONS = replace(
    PARKED_ON_RABBITMQ, faults_per_hour=6000.0, kinds=("poison", "change_leaders", "kill_member", "cut")
)


@bug(Parking, "activated", setting=PARKED_IN_ELECTIONS)
def a_queue_is_activated_without_a_barrier(former: Callable[..., None]) -> Callable[..., None]:
    return lambda self, attachment, first, now: None


@bug(Parking, "confirmed", setting=PARKED_IN_ELECTIONS, first=4)
def a_parked_message_is_acknowledged_before_its_entry(former: Callable[..., bool]) -> Callable[..., bool]:
    def confirmed(self: Parking, in_flight: InFlight) -> bool:
        if not former(self, in_flight):
            return False
        recorded = self._effects.pop()
        assert isinstance(recorded, RecordEntry)
        self._effects.append(RecordEntry(recorded.entry))
        self._dispatcher.settle(in_flight, Outcome.PARKED)
        return True

    return confirmed


@bug(ParkedKeys, "may_deliver", setting=PARKED)
def a_released_key_is_delivered_in_any_order(former: Callable[..., bool]) -> Callable[..., bool]:
    def may_deliver(self: ParkedKeys, key: str, identity: MessageIdentity) -> bool:
        return self.state(key) is KeyState.RELEASED or former(self, key, identity)

    return may_deliver


@bug(Parking, "state", setting=PARKED_ON_RABBITMQ)
def a_key_goes_on_until_its_entry_is_read(former: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, key: self.keys.state(key)


@bug(Channel, "consume", setting=PARKED)
def a_member_does_not_read_what_was_parked_before(former: Callable[..., Any]) -> Callable[..., Any]:
    def consume(self: Channel, queue: str, on_deliveries: Any, **options: Any) -> Any:
        is_stream = "x-stream-offset" in (options.get("arguments") or {})
        if is_stream and "on_cancelled" in options:  # as members give it, and administrators do not
            options["arguments"] = {"x-stream-offset": "next"}
        return former(self, queue, on_deliveries, **options)

    return consume


@bug(Parking, "has_room", setting=replace(PARKED, kinds=("poison",)))
def a_member_parks_beyond_the_bounds(former: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, key: True
