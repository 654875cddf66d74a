"""A member of a large group: the product's `Member` on a processor, and its application, whose calls are short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from lbg_sidecar.core import effects as fx
from lbg_sidecar.core.binding import Phase
from lbg_sidecar.message import ACK, Message
from lbg_sidecar.settings import MemberSettings
from testing.simulation.event_loop import SimConnection, VirtualLoop
from testing.simulation.large.processor import Processor
from testing.simulation.member import SimMember

CALL_S = 0.002
CONCURRENCY = 16


class ProcessorLoop(VirtualLoop):
    """Timers of a member are mostly its ticks: each costs what one does."""

    def _call(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            group = self._history
            group.clock.wake(group.costs.member.wakeup_us)
            if type(handle) is asyncio.TimerHandle:
                group.clock.charge(group.member_of(self).tick_us)
        super()._call(handle)


class SteadyApplication:
    def __init__(self, group: Any) -> None:
        self._group = group

    def call(self, member: LargeMember, message: Message) -> None:
        group = self._group
        group.judge.started(message.in_flight.delivery.body)
        group.clock.after(CALL_S, member.process, self._end, member, message)

    def _end(self, member: LargeMember, message: Message) -> None:
        self._group.clock.wake(member.costs.wakeup_us)
        member.answered(message, ACK)

    def abort(self, member: LargeMember, messages: Iterable[Message]) -> None:
        """Nothing: they end soon."""

    def killed(self, member: LargeMember) -> None:
        """Nothing: a dead process ends no calls."""


class LargeMember(SimMember):
    """`live` is its view, by its last report, and `index` what it had then. `deaf`, `is_blind`, `received`: see
    `broker.Hearing`."""

    process_type = Processor
    loop_type = ProcessorLoop
    process: Processor

    def __init__(self, group: Any, name: str) -> None:
        self.costs = group.costs.member
        self.live: frozenset[int] = frozenset()
        self.index: int | None = None
        self.deaf = 0.0
        self.is_blind = False
        self.received = 0
        super().__init__(group, SteadyApplication(group), name)

    def _settings(self) -> MemberSettings:
        return MemberSettings(
            group=self.history.spec.name, name=self.name, concurrency=CONCURRENCY, body_memory_mb=64
        )

    def _observe(self, effect: fx.Effect) -> None:
        counts = self.history.counts
        match effect:
            case fx.LiveSet(live):
                self.live, self.index = live, self._member.index
                self.history.live_changed(self)
            case fx.Attach():
                counts["attached"] += 1
            case fx.Detach():
                counts["detached"] += 1
            case fx.Moved():
                counts["moves"] += 1

    @property
    def is_moving(self) -> bool:
        machine = self.machine
        bound = machine.bindings.bound.values()
        return bool(machine.handoffs.moves) or any(one.phase is not Phase.ATTACHED for one in bound)

    @property
    def tick_us(self) -> float:
        consumed = 0 if self.driver is None else len(self.machine.bindings.bound)
        return self.costs.tick_us + self.costs.tick_queue_us * consumed

    # `Watch`

    def ended(self, connection: SimConnection) -> None: ...

    def channel_closed(self, connection: SimConnection, number: int) -> None: ...
