"""Consumers of the group's queues: reports between members that consume the same ones, and a backstop that finds queues
without a consumer."""

from __future__ import annotations

from collections.abc import Callable

from lbg_core.group.members_protocol import QueueReport, QueueState
from lbg_sidecar.core.effects import CountReady, Post
from lbg_sidecar.core.queue_bindings import Assignment, Binding, Bindings, Phase
from lbg_sidecar.core.roster import Roster

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


class Sweep:
    """Backstop against wrong views of the live set: counts the consumers of queues that this member does not consume.

    Which members consume a queue follows from the live set, and that is a belief. The broker knows the consumers. A
    passive declare of RabbitMQ 3.10 counts one at most, so that only zero is evidence (docs/rabbitmq.md).
    """

    def __init__(self, bindings: Bindings, roster: Roster, *, uniform: Callable[[], float]) -> None:
        self.due = float("inf")
        self._bindings = bindings
        self._roster = roster
        self._uniform = uniform
        self._round: list[int] = []
        self._at_once = 1
        self._without_since: dict[int, float] = {}

    def joined(self, now: float) -> None:
        self._without_since.clear()
        self._schedule(now)

    def tick(self, now: float) -> list[CountReady]:
        """The counts that are due."""
        if now < self.due:
            return []
        self._schedule(now)
        for queue, since in self._without_since.items():
            if now - since >= WITHOUT_CONSUMER_S:
                return [CountReady(queue)]
        queues, bound = self._bindings.rules.queue_count, self._bindings.bound
        if all(queue in bound for queue in range(queues)):
            return []
        return [CountReady(self._next(queues)) for _ in range(self._at_once)]

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
        self.joined(now)

    def counted(self, queue: int, consumers: int | None, now: float) -> bool:
        """True if the queue has had no consumer for long enough."""
        if consumers != 0 or queue in self._bindings.bound:
            self._without_since.pop(queue, None)
            return False
        since = self._without_since.setdefault(queue, now)
        if now - since < WITHOUT_CONSUMER_S:
            self.due = min(self.due, now + WITHOUT_CONSUMER_S)
            return False
        del self._without_since[queue]
        return True

    def live_changed(self, now: float) -> None:
        """Count sooner: some members may not know of it."""
        due = self.due
        self._schedule(now)
        self.due = min(self.due, due)

    def _schedule(self, now: float) -> None:
        rules, members = self._bindings.rules, max(1, len(self._roster.live))
        sweep_s = SETTLED_SWEEP_S if self._roster.is_settled(now) else SWEEP_S
        if rules.assignment is Assignment.STATIC or members <= rules.standbys + 1:
            self.due = now + SWEEP_S  # all consume all
        else:
            step_s = max(SWEEP_STEP_S, sweep_s * members / rules.queue_count)
            self._at_once = max(1, int(SWEEP_WRITE_S / step_s))
            self.due = now + step_s * self._at_once * (0.8 + 0.4 * self._uniform())


class QueueReports:
    """Reports of bindings to the other consumers of the same queues, those of a short time in one message each."""

    def __init__(self, bindings: Bindings, roster: Roster) -> None:
        self.due = float("inf")
        self._bindings = bindings
        self._roster = roster
        self._queues: dict[int, set[int]] = {}
        self._informed: dict[int, set[int]] = {}
        self._repeat_due = 0.0

    def add(self, queue: int, now: float, *, to: int | None = None, after_s: float | None = None) -> None:
        """Report this queue to its consumers, and to `to`, soon or `after_s` at the latest."""
        also = self._queues.setdefault(queue, set())
        if to is not None:
            also.add(to)
        self._informed.pop(queue, None)
        self.due = min(self.due, now + (self._roster.change_s if after_s is None else after_s))

    def live_changed(self, me: int, live: frozenset[int], now: float) -> None:
        """Report own primaries to members that back them up since now: they attach, or step, behind this one."""
        primaries = self._bindings.rules.primaries(live)
        for queue, binding in self._bindings.bound.items():
            if primaries[queue] != me or binding.phase is not Phase.ATTACHED or queue in self._queues:
                continue
            informed = self._informed.setdefault(queue, set())
            informed &= live
            if not self._bindings.rules.consumers(queue, live) - {me} <= informed:
                self._queues[queue] = set()
                self.due = min(self.due, now + self._roster.change_s)

    def disconnected(self) -> None:
        self._clear()
        self._informed.clear()

    def _clear(self) -> None:
        self._queues.clear()
        self.due = float("inf")

    def tick(self, now: float, state_of: Callable[[Binding], QueueState]) -> list[Post]:
        rules, roster = self._bindings.rules, self._roster
        me, live = roster.me, self._bindings.view.live
        if me is None:
            return []
        if now >= self._repeat_due:
            self._repeat_due = now + REPEATS_S
            primaries = rules.primaries(live)
            for binding in self._bindings.bound.values():
                if binding.active and primaries[binding.queue] not in (None, me.index):
                    self.add(binding.queue, now)
                    self.due = now
        if now < self.due:
            return []
        by_member: dict[int, list[QueueState]] = {}
        for queue, also in self._queues.items():
            if queue not in self._bindings.all.used:
                continue  # removed since
            state = state_of(self._bindings.all[queue])
            informed = self._informed.setdefault(queue, set())
            for index in ((rules.consumers(queue, live) | also) & roster.peers.keys()) - informed:
                informed.add(index)
                by_member.setdefault(index, []).append(state)
        self._clear()
        return [Post(QueueReport(me, tuple(states)), to=index) for index, states in by_member.items()]
