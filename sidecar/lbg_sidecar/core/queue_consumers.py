"""Consumers of the group's queues: reports between members that consume the same ones, and a backstop that finds queues
without a consumer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from lbg_core.client.errors import NotFound, channel_closed
from lbg_core.group import STATIC, Assignment
from lbg_core.group.member_state import QueueState, Role
from lbg_core.group.members_protocol import Message, QueueReport
from lbg_sidecar.core.binding import Binding, Phase
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import CountReady, Post
from lbg_sidecar.core.membership import JOINS_S
from lbg_sidecar.core.part import NEVER, Context, Part
from lbg_sidecar.core.queue_bindings import RESTS_S
from lbg_sidecar.core.status_report import queue_state
from lbg_sidecar.core.timings import spread

CONSUMED_FOR_S = 30.0
"""For so long a member consumes a queue that is neither its primary nor backed up by it, unless it serves it."""

ALONE_RESTS_S = 1.5
"""For a directory to arrive, at a member whose index shows that there are others, or were."""

SWEEP_S = 10.0
"""In this time each queue is counted once by one of the members that do not consume it, on average."""

SETTLED_SWEEP_S = 60.0
"""The same while the live set does not change. Wrong views come with changes."""

SWEEP_STEP_S = 0.5
"""Between two counts of one member, at least, on average."""

SWEEP_WRITE_S = 5.0
"""Counts of this time are sent in one write: for the broker a write costs more than a count."""

WITHOUT_CONSUMER_S = 1.0
"""A queue that has no consumer in two counts at this distance is consumed by who counted."""

REPEATS_S = 1.0
"""Between two reports of a queue that a member serves without being its primary."""


class WantedQueues(Part):
    """Queues that this member consumes: what follows from the live set and the number of queues, surplus queues until
    they are deleted, and for a while queues that have no consumer or are to come here."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._may_consume = context.hooks.of(Part.may_consume)
        self._view_changed = context.hooks.of(Part.view_changed)
        self._reshaped = context.hooks.of(Part.reshaped)
        self._also: dict[int, float] = {}
        self._joined_at = 0.0
        self._observed: frozenset[int] | None = None

    def connected(self, now: float) -> None:
        self._joined_at = now
        self._bindings.view.reset(self._roster.live)
        self._change_view(now)

    def disconnected(self, now: float) -> None:
        self._also.clear()

    def observed(self, now: float) -> None:
        live, bindings = self._roster.live, self._bindings
        if live is self._observed and now < bindings.view.due:
            return  # since then nothing has changed, and no time has come
        self._observed = live
        if self._roster.me is not None:
            bindings.holddown.observe(live, now)
            if bindings.view.observe(live, now):
                self._change_view(now)

    def tick(self, now: float) -> None:
        if self.takes_part and any(until <= now for until in self._also.values()):
            self._also = {queue: until for queue, until in self._also.items() if until > now}
            self._fit()

    def next_due(self, now: float) -> float:
        return self._bindings.view.due if self.takes_part else NEVER

    def reshape(self, queue_count: int, now: float) -> None:
        """The group has so many queues now. Attachments to those that remain are not touched. A queue beyond the new
        number is consumed, by who consumes it now, until it is deleted."""
        if queue_count == self._rules.queue_count:
            return
        self._bindings.reshape(queue_count)
        self._also = {queue: until for queue, until in self._also.items() if queue < queue_count}
        for reshaped in self._reshaped:
            reshaped(now)
        self.share_anew(now)

    def assign(self, assignment: Assignment, client_count: int, now: float) -> None:
        """The queues are assigned by this rule now. What is wrong by it moves as after the rebalance delay."""
        rules = self._rules
        if (assignment, client_count) != (rules.assignment, rules.client_count):
            rules.assignment, rules.client_count = assignment, client_count
            self.share_anew(now)

    def share_anew(self, now: float) -> None:
        self._bindings.holddown.forget()
        self._change_view(now)
        self._reports.changed(now)
        self._bindings.attach_due(now)

    def want(self, queue: int, now: float) -> None:
        """A queue that has no consumer, or that is to come here, though that does not follow from the live set. One
        that was counted before it was deleted is not of the group any more."""
        if queue < self._rules.queue_count or queue in self._bindings.all.used:
            self._also[queue] = now + CONSUMED_FOR_S
            self.fit(now)

    def fit(self, now: float) -> None:
        """A queue may be consumed from now on that is this member's."""
        self._fit()
        self._bindings.attach_due(now)

    def refused(self, attachment: Attachment, code: int, why: str) -> bool:
        return isinstance(channel_closed(code, why), NotFound) and self.cancelled(attachment)

    def cancelled(self, attachment: Attachment) -> bool:
        """True for a surplus queue, which was deleted."""
        if attachment.queue not in self._bindings.surplus:
            return False
        self._bindings.surplus_deleted(attachment.queue)
        return True

    def queue_fields(self, binding: Binding) -> Mapping[str, Any]:
        me, primaries = self._roster.me, self._rules.primaries(self._bindings.view.live)
        is_primary = me is not None and primaries[binding.queue] == me.index
        return {"role": Role.PRIMARY if is_primary else Role.SECONDARY}

    def _change_view(self, now: float) -> None:
        """Consume the queues that follow from the new live set. What others back up now is closed after the delay."""
        me, bindings = self._roster.me, self._bindings
        if now - self._joined_at < JOINS_S:
            is_alone = len(bindings.view.live) == 1 and not (me is not None and me.index == 0)
            bindings.rests_at = now + (ALONE_RESTS_S if is_alone else RESTS_S)
        self._fit()
        for view_changed in self._view_changed if me is not None else ():
            view_changed(now)

    def _fit(self) -> None:
        me = self._roster.me
        if me is not None:
            consumed = self._rules.consumed(me.index, self._bindings.view.live)
            queues = (*consumed, *self._also, *self._bindings.surplus)
            self._bindings.want(one for one in queues if all(may(one) for may in self._may_consume))


class Sweep(Part):
    """Backstop against wrong views of the live set: counts the consumers of queues that this member does not consume.

    Which members consume a queue follows from the live set, and that is a belief. The broker knows the consumers. A
    passive declare of RabbitMQ 3.10 counts one at most, so that only zero is evidence (docs/rabbitmq.md).
    """

    def __init__(self, context: Context, wanted: WantedQueues) -> None:
        super().__init__(context)
        self.due = NEVER
        self._wanted = wanted
        self._round: list[int] = []
        self._at_once = 1
        self._without_since: dict[int, float] = {}

    def disconnected(self, now: float) -> None:
        self.due = NEVER

    def connected(self, now: float) -> None:
        self._without_since.clear()
        self._schedule(now)

    def tick(self, now: float) -> None:
        if not self.takes_part or now < self.due:
            return
        self._schedule(now)
        for queue, since in self._without_since.items():
            if now - since >= WITHOUT_CONSUMER_S:
                self._effects.append(CountReady(queue))
                return
        queues, bound = self._rules.queue_count, self._bindings.bound
        if not all(queue in bound for queue in range(queues)):
            self._effects.extend(CountReady(self._next(queues)) for _ in range(self._at_once))

    def _next(self, queues: int) -> int:
        while True:
            if not self._round:
                self._round = list(range(queues))
            at = int(self._uniform() * len(self._round)) % len(self._round)
            self._round[at], self._round[-1] = self._round[-1], self._round[at]
            queue = self._round.pop()
            if queue not in self._bindings.bound:
                return queue

    def reshaped(self, now: float) -> None:
        """There is another number of queues: a new round."""
        self._round.clear()
        if self._roster.me is not None:
            self.connected(now)

    def counted(self, queue: int, ready: int | None, consumers: int | None, now: float) -> None:
        if consumers != 0 or queue in self._bindings.bound:
            self._without_since.pop(queue, None)
            return
        since = self._without_since.setdefault(queue, now)
        if now - since < WITHOUT_CONSUMER_S:
            self.due = min(self.due, now + WITHOUT_CONSUMER_S)
            return
        del self._without_since[queue]
        self._wanted.want(queue, now)

    def view_changed(self, now: float) -> None:
        """Count sooner: some members may not know of it."""
        due = self.due
        self._schedule(now)
        self.due = min(self.due, due)

    def _schedule(self, now: float) -> None:
        rules, members = self._rules, max(1, len(self._roster.live))
        sweep_s = SETTLED_SWEEP_S if self._roster.is_settled(now) else SWEEP_S
        if rules.assignment == STATIC or members <= rules.standbys + 1:
            self.due = now + SWEEP_S  # all consume all
        else:
            step_s = max(SWEEP_STEP_S, sweep_s * members / rules.queue_count)
            self._at_once = max(1, int(SWEEP_WRITE_S / step_s))
            self.due = now + spread(step_s * self._at_once, self._uniform)


class QueueReports(Part):
    """Reports of bindings to the other consumers of the same queues, those of a short time in one message each."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.due = NEVER
        self._state_of = partial(queue_state, context)
        self._queues: dict[int, set[int]] = {}
        self._informed: dict[int, set[int]] = {}
        self._repeat_due = 0.0

    def handlers(self) -> Mapping[type[Message], Callable[[Any, float], None]]:
        return {QueueReport: self._report_received}

    def attached(self, binding: Binding, now: float) -> None:
        me = self._roster.me
        if me is not None and self._rules.primaries(self._bindings.view.live)[binding.queue] == me.index:
            self.add(binding.queue, now)

    def activated(self, attachment: Attachment, first: InFlight, now: float) -> None:
        self.add(attachment.queue, now)

    def _report_received(self, report: QueueReport, now: float) -> None:
        for state in report.queues:
            binding = self._bindings.bound.get(state.queue)
            if state.active and binding is not None and binding.active:
                # Both count themselves as active.
                self.add(state.queue, now, to=report.sender.index, after_s=REPEATS_S)

    def leaving(self, now: float) -> None:
        """Reports the queues that are served here to those that get them: they are handed over by one that has left."""
        me, served = self._roster.me, self._bindings.served()
        if me is None or not served:
            return
        primaries = self._rules.primaries(self._bindings.view.live - {me.index})
        for binding in served:
            self.add(binding.queue, now, to=primaries[binding.queue])
        self._send(self.due)

    def add(self, queue: int, now: float, *, to: int | None = None, after_s: float | None = None) -> None:
        """Report this queue to its consumers, and to `to`, soon or `after_s` at the latest."""
        also = self._queues.setdefault(queue, set())
        if to is not None:
            also.add(to)
        self._informed.pop(queue, None)
        self.due = min(self.due, now + (self._timings.change_s if after_s is None else after_s))

    def view_changed(self, now: float) -> None:
        """Report own primaries to members that back them up since now: they attach, or step, behind this one."""
        assert self._roster.me is not None
        me, live = self._roster.me.index, self._bindings.view.live
        primaries = self._rules.primaries(live)
        for queue, binding in self._bindings.bound.items():
            if primaries[queue] != me or binding.phase is not Phase.ATTACHED or queue in self._queues:
                continue
            informed = self._informed.setdefault(queue, set())
            informed &= live
            if not self._rules.consumers(queue, live) - {me} <= informed:
                self._queues[queue] = set()
                self.due = min(self.due, now + self._timings.change_s)

    def disconnected(self, now: float) -> None:
        self._clear()
        self._informed.clear()

    def _clear(self) -> None:
        self._queues.clear()
        self.due = float("inf")

    def next_due(self, now: float) -> float:
        return self.due if self.takes_part else NEVER

    def tick(self, now: float) -> None:
        if self.takes_part:
            self._send(now)

    def _send(self, now: float) -> None:
        rules, roster, live = self._rules, self._roster, self._bindings.view.live
        me = roster.me
        assert me is not None
        if now >= self._repeat_due:
            self._repeat_due = now + REPEATS_S
            primaries = rules.primaries(live)
            for binding in self._bindings.bound.values():
                if binding.active and primaries[binding.queue] not in (None, me.index):
                    self.add(binding.queue, now)
                    self.due = now
        if now < self.due:
            return
        by_member: dict[int, list[QueueState]] = {}
        for queue, also in self._queues.items():
            if queue not in self._bindings.all.used:
                continue  # removed since
            state = self._state_of(self._bindings.all[queue])
            informed = self._informed.setdefault(queue, set())
            for index in ((rules.consumers(queue, live) | also) & roster.peers.keys()) - informed:
                informed.add(index)
                by_member.setdefault(index, []).append(state)
        self._clear()
        for index, states in by_member.items():
            self._effects.append(Post(QueueReport(me, tuple(states)), to=index))
