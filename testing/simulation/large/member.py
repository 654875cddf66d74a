"""A member's process: its machine, its shell on the light broker, and its application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from random import Random
from typing import Protocol

from lbg_core.group import TO_ALL, GroupSpec, Names
from lbg_sidecar.core import effects as fx
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.exclusive import ExclusiveMember
from lbg_sidecar.core.message_codec import encode
from lbg_sidecar.core.protocol import Message
from lbg_sidecar.core.queue_bindings import BalancingRules
from lbg_sidecar.core.roster import Post
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.message import ACK
from lbg_sidecar.settings import MemberSettings, balancing_rules, processing_rules
from testing.simulation.clock import Clock, Process, Task
from testing.simulation.large.assignments import Assignments
from testing.simulation.large.broker import Broker, QueueMessage
from testing.simulation.large.costs import Costs
from testing.simulation.large.link import DELAY_S, Link, join
from testing.simulation.large.processor import Processor

CALL_S = 0.002
CONCURRENCY = 16
TICK_MIN_S = 0.001
"""As in `lbg_sidecar.io.driver`."""

OPENING_S = 3 * DELAY_S
"""A consumer's channel is opened, and its window is set, before it consumes."""

CACHED_ASSIGNMENTS = 64
"""As in `lbg_core.group.assignment`, which every process has of its own."""


class ChargedRules(BalancingRules):
    """Charges a member for each live set that is new to it. What follows from it is computed once for all."""

    def charge_to(self, member: LargeMember) -> None:
        object.__setattr__(self, "_member", member)

    def primaries(self, live: frozenset[int]) -> Sequence[int | None]:
        member: LargeMember = self._member
        member.assigned(live)
        return member.group.assignments.primaries(live)

    def backed_up(self, index: int, live: frozenset[int]) -> tuple[int, ...]:
        member: LargeMember = self._member
        return member.group.assignments.backed_up(live).get(index, ())

    def standbys_of(self, queue: int, live: frozenset[int]) -> tuple[int, ...]:
        member: LargeMember = self._member
        return member.group.assignments.standbys(live)[queue]


class CallJudge(Protocol):
    def started(self, message: QueueMessage) -> None: ...


class Group(Protocol):
    """`LargeGroup`, as its members have it."""

    spec: GroupSpec
    names: Names
    costs: Costs
    clock: Clock
    random: Random
    broker: Broker
    assignments: Assignments
    on_rabbitmq: bool

    @property
    def judge(self) -> CallJudge: ...
    def decoded(self, body: bytes) -> Message | None: ...
    def joined(self, member: LargeMember) -> None: ...
    def parted(self, member: LargeMember) -> None: ...
    def live_changed(self, member: LargeMember) -> None: ...


class LargeMember:
    """`is_up` until it is killed. `live` is its view, by its last report. `deaf`: share of messages to all that it
    drops. `is_blind`: it drops all returns, too."""

    def __init__(self, group: Group, number: int) -> None:
        self.group = group
        self.name = f"m{number}"
        self.process = Process(self.name)
        self.costs = group.costs.member
        self.processor = Processor(group.clock, self.process, wakeup_us=self.costs.wakeup_us)
        self.link: Link | None = None
        self.live: frozenset[int] = frozenset()
        self.deaf = 0.0
        self.is_blind = False
        self.received = 0
        self.attachments = 0
        self.moves = 0
        self._assigned: dict[frozenset[int], None] = {}
        self._span = 0
        """Highest index, and 1, of which it has computed the homes of all queues."""
        self._ranked: frozenset[int] = frozenset()
        """Live set of which it has computed the queues that it backs up."""
        self._attaching: dict[Attachment, fx.Detach | None] = {}
        """Requested and not answered; with the detach that waits for the answer."""
        self._attached: set[Attachment] = set()
        self._tick_at = self._flush_at = float("inf")
        self._is_running = False
        self.machine = self._machine()
        self._task: Task | None = None
        self._opening: Link | None = None
        self._previous: int | None = None

    def _machine(self) -> ExclusiveMember:
        group = self.group
        settings = MemberSettings(group=group.spec.name, name=self.name)
        plain = balancing_rules(settings, group.spec, is_native=False, on_rabbitmq=group.on_rabbitmq)
        rules = ChargedRules(**{one.name: getattr(plain, one.name) for one in fields(plain)})
        rules.charge_to(self)
        random = group.random
        return ExclusiveMember(
            self.name,
            balancing=rules,
            rules=processing_rules(settings, group.spec, concurrency=CONCURRENCY),
            timings=Timings(),
            uniform=random.random,
            incarnation=lambda: f"{random.getrandbits(128):032x}",
        )

    @property
    def now(self) -> float:
        return self.group.clock.now

    @property
    def is_up(self) -> bool:
        return self.process.alive

    @property
    def index(self) -> int | None:
        """None while it has none."""
        return self.link.index if self.link is not None else None

    @property
    def is_moving(self) -> bool:
        return bool(self.machine.handoffs.moves or self._attaching)

    def assigned(self, live: frozenset[int]) -> None:
        """It uses the primaries of this live set."""
        if live not in self._assigned:
            self._assigned[live] = None
            costs, queues, span = self.costs, self.group.spec.queue_count, max(live, default=-1) + 1
            if len(live) < 2:
                return
            ranked = 1 + 3 * min(1.0, len(live ^ self._ranked) / len(live))
            self._ranked = live
            self.processor.charge((costs.assignment_queue_us + costs.rank_us * ranked) * queues)
            if span > self._span:
                self.processor.charge(costs.homes_us * queues * (span - self._span))
                self._span = span
            if len(self._assigned) > CACHED_ASSIGNMENTS:
                del self._assigned[next(iter(self._assigned))]

    # Its process

    def start(self) -> None:
        group = self.group
        link = self._opening = Link(group.clock, group.broker, self.process, self.processor, group.random)
        self._task = Task(
            group.clock,
            self.process,
            join(
                link,
                group.names,
                previous=self._previous,
                members_at_most=group.spec.max_clients,
                on_joined=lambda index: self._joined(link, index),
            ),
        )

    def kill(self) -> None:
        """SIGKILL."""
        self.process.alive = False
        link, self.link = self.link, None
        if self._task is not None:
            self._task.cancel()
        if self._opening is not None:
            self._opening.close()
        if link is not None:
            link.close()

    def _joined(self, link: Link, index: int) -> None:
        self._task = self._opening = None
        self._previous = link.index = index
        self.link = link
        link.on_mail, link.on_return = self._on_mail, self._on_return
        link.on_will, link.on_watched = self._on_will, self._on_watched
        link.send(self.group.broker.leave_will)
        link.inbox.clear()  # a member ignores what comes before it takes part
        self.group.joined(self)
        self.machine.connected(index, self.now)
        self._run()

    def _disconnect(self) -> None:
        link, self.link = self.link, None
        if link is None:
            return
        link.close()
        self.group.parted(self)
        self._attaching.clear()
        self._attached.clear()
        self.machine.disconnected(self.now)
        self._run()
        self.start()

    # What the broker sends

    def _on_mail(self, key: str, body: bytes) -> None:
        self.received += 1
        self.processor.charge(self.costs.message_us + self.costs.message_byte_us * len(body))
        if self.deaf and key == TO_ALL and self.group.random.random() < self.deaf:
            return
        message = self.group.decoded(body)
        if message is not None and self.link is not None:
            self.machine.message(message, self.now)
            self._run()

    def _on_return(self, key: str, body: bytes) -> None:
        self.processor.charge(self.costs.message_us + self.costs.message_byte_us * len(body))
        message = self.group.decoded(body)
        if message is not None and self.link is not None and not self.is_blind and key.isdigit():
            self.machine.returned(message, int(key), self.now)
            self._run()

    def _on_will(self, index: int) -> None:
        if self.link is not None and not self.is_blind:
            self.machine.willed(index, self.now)
            self._run()

    def _on_watched(self, index: int | None) -> None:
        if self.link is not None:
            self.machine.will_watched(index, self.now)
            self._run()

    def on_attached(self, link: Link, attachment: Attachment) -> None:
        if link is not self.link:
            return
        detach = self._attaching.pop(attachment)
        self._attached.add(attachment)
        self.machine.attached(attachment, self.now)
        if detach is not None:
            self._detach(link, detach)
        self._run()

    def on_closed(self, link: Link, attachment: Attachment) -> None:
        if link is self.link:
            self.machine.closed(attachment, self.now)
            self._run()

    def on_deliveries(
        self, link: Link, attachment: Attachment, deliveries: list[tuple[int, QueueMessage, bool]]
    ) -> None:
        if link is not self.link:
            return
        self.processor.charge(self.costs.delivery_us * len(deliveries))
        arrivals = []
        for tag, message, redelivered in deliveries:
            in_flight = InFlight(
                attachment,
                tag,
                key=f"k{message.queue}",
                identity=("p", message.queue, message.number),
                delivery=message,
            )
            in_flight.redelivered = redelivered
            arrivals.append(in_flight)
        self.machine.deliver(attachment, arrivals, self.now)
        self._run()

    def on_counted(self, link: Link, queue: int, ready: int, consumers: int) -> None:
        if link is self.link:
            self.machine.ready_counted(queue, ready, consumers, self.now)
            self._run()

    # The shell

    def _run(self) -> None:
        """Effects until there are none, then calls, then acks."""
        if self._is_running:
            return
        self._is_running = True
        machine = self.machine
        while True:
            effects = machine.effects
            if effects:
                due, effects[:] = effects[:], []
                for effect in due:
                    self._effect(effect)
                continue
            in_flight = machine.take(self.now)
            if in_flight is not None:
                self.group.judge.started(in_flight.delivery)
                self.group.clock.after(CALL_S, self.process, self.processor.do, self._ended, in_flight)
                continue
            due_at = machine.flush(self.now)
            if not machine.effects:
                if due_at < self._flush_at:
                    self._flush_at = due_at
                    self.group.clock.at(due_at, self.process, self.processor.do_timer, self._flush)
                break
        self._is_running = False
        if self.link is not None:
            self._tick_soon()

    def _ended(self, in_flight: InFlight) -> None:
        self.machine.end(in_flight, ACK, self.now)
        self._run()

    def _flush(self) -> None:
        self._flush_at = float("inf")
        self._run()

    def _effect(self, effect: fx.Effect) -> None:
        link, processor, costs = self.link, self.processor, self.costs
        match effect:
            case fx.LiveSet(live):
                self.live = live
                self.group.live_changed(self)
            case fx.Moved():
                self.moves += 1
            case fx.TakenOver():
                self.machine.taken_over(effect)
            case fx.Reconnect():
                self.group.clock.after(0.0, self.process, processor.do, self._disconnect)
            case _ if link is None:
                pass
            case Post(message, to):
                body = encode(message)
                processor.charge(costs.publish_us + costs.publish_byte_us * len(body))
                for key in to if isinstance(to, tuple) else (TO_ALL if to is None else to,):
                    link.post(str(key), body, mandatory=isinstance(key, int))
            case fx.Ack(attachment, tag, multiple):
                link.send(self.group.broker.ack, attachment, tag, multiple)
            case fx.Attach(attachment):
                processor.charge(costs.attach_us)
                self.attachments += 1
                self._attaching[attachment] = None
                self.group.clock.after(
                    OPENING_S, self.process, link.send, self.group.broker.consume, self, attachment
                )
            case fx.Detach(attachment):
                if attachment in self._attaching:
                    self._attaching[attachment] = effect
                elif attachment in self._attached:
                    self._detach(link, effect)
            case fx.AwaitWill(index):
                link.send(self.group.broker.await_will, index)
            case fx.CountReady(queue):
                processor.charge(costs.count_us)
                link.send(self.group.broker.count, self, queue)
            case _:
                pass

    def _detach(self, link: Link, effect: fx.Detach) -> None:
        self.processor.charge(self.costs.detach_us)
        self._attached.discard(effect.attachment)
        link.send(self.group.broker.close, effect.attachment, effect.ack_tag, effect.single_tags)

    def _tick_soon(self) -> None:
        due = max(self.machine.next_due(self.now), self.now + TICK_MIN_S)
        if due < self._tick_at:
            self._tick_at = due
            self.group.clock.at(due, self.process, self._tick_due, due)

    def _tick_due(self, due: float) -> None:
        if due == self._tick_at:
            self.processor.do_timer(self._tick, due)

    def _tick(self, due: float) -> None:
        if due != self._tick_at:
            return
        self._tick_at = float("inf")
        costs = self.costs
        self.processor.charge(costs.tick_us + costs.tick_queue_us * len(self.machine.bindings.bound))
        self.machine.tick(self.now)
        self._run()
        if self.link is not None:
            self._tick_soon()
