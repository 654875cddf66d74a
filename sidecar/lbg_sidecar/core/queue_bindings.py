"""Bindings of a member to the queues of its group, their phases, and the rules of balancing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lbg_core.client.backoff import Backoff
from lbg_core.group import (
    BALANCED,
    NOWHERE_ELSE,
    STATIC,
    Assignment,
    backed_up,
    owners_with,
    standbys_of,
    static_owners,
)
from lbg_core.group.assignment import Exceptions
from lbg_sidecar.core.acks import SINGLE_ACKS_AT_CLOSE, derived_prefetch, exceeding_a_close, settling
from lbg_sidecar.core.binding import Binding, Phase
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.dispatcher import Dispatcher
from lbg_sidecar.core.effects import Abort, Ack, Attach, Detach, Done, Effect
from lbg_sidecar.core.membership import Membership
from lbg_sidecar.core.presence import Presence


@dataclass(slots=True)
class BalancingRules:
    """Each machine has a copy of its own, of which `ExclusiveMember.reshape` changes `queue_count` and `surplus_end`,
    its `assign` `assignment`, `client_count` and `rebalance_threshold_percent`, and `ByLoad` `exceptions`.
    Queues from `queue_count` on, below `surplus_end`, are surplus: they have no primary, and who consumes them goes on
    until they are deleted."""

    queue_count: int
    assignment: Assignment = BALANCED
    rebalance_threshold_percent: int = 10
    client_count: int = 1
    prefetch: int | None = None
    rebalance_delay_s: float = 5.0
    max_handoff_s: float = 3.0
    release_interval_s: float = 30.0
    answers_s: float = 0.1
    moves_at_once: int = 2
    shutdown_grace_s: float = 20.0
    standbys: int = 2
    consumer_timeout_s: float = 1800.0
    on_rabbitmq: bool = False
    surplus_end: int = 0
    exceptions: Exceptions = NOWHERE_ELSE

    def primaries(self, live: frozenset[int]) -> Sequence[int | None]:
        """Index that should serve each queue; None if any may."""
        owners = self._owners(live)
        if self.surplus_end <= self.queue_count:
            return owners
        return (*owners, *(None,) * (self.surplus_end - self.queue_count))

    def _owners(self, live: frozenset[int]) -> Sequence[int | None]:
        if self.assignment == STATIC:
            return static_owners(self.queue_count, self.client_count, live)
        return owners_with(self.exceptions, self.queue_count, live) if live else (None,) * self.queue_count

    def consumed(self, index: int, live: frozenset[int]) -> list[int]:
        """Queues that member `index` consumes, its primaries first: in small groups, and if Static, all."""
        primaries = self.primaries(live)[: self.queue_count]
        first = [queue for queue, primary in enumerate(primaries) if primary == index]
        if self.assignment == STATIC or index not in live:
            return first + [queue for queue, primary in enumerate(primaries) if primary != index]
        return [*first, *self.backed_up(index, live)]

    def backed_up(self, index: int, live: frozenset[int]) -> tuple[int, ...]:
        """Queues of which member `index` is a standby."""
        return backed_up(self.queue_count, live, index, self.standbys, self.exceptions)

    def standbys_of(self, queue: int, live: frozenset[int]) -> tuple[int, ...]:
        return standbys_of(self.queue_count, live, queue, self.standbys, self.exceptions)

    def consumers(self, queue: int, live: frozenset[int]) -> set[int]:
        """Members that consume a queue: its primary and its standbys, or all. A surplus queue may have any."""
        is_surplus = queue >= self.queue_count
        if is_surplus or self.assignment == STATIC or len(live) <= self.standbys + 1:
            return set(live)
        primary = self.primaries(live)[queue]
        assert primary is not None
        return {primary, *self.standbys_of(queue, live)}


class LiveView:
    """Live set from which a member computes the assignment. A loss counts at once. Joins count together, when none has
    come for a moment: of many members that start together each would else compute it for each join."""

    def __init__(self) -> None:
        self.live: frozenset[int] = frozenset()
        self.due = float("inf")
        self._latest: frozenset[int] = frozenset()
        self._since = 0.0

    def reset(self, live: frozenset[int]) -> None:
        self.live = self._latest = live
        self.due = float("inf")

    def observe(self, live: frozenset[int], now: float) -> bool:
        """True if the view has changed."""
        if live != self._latest:
            if self.due == float("inf"):
                self._since = now
            self._latest = live
            rest_s = max(JOINS_REST_S, len(live) / JOINS_HZ, JOINS_REST_SHARE * (now - self._since))
            self.due = min(now + rest_s, self._since + JOINS_COUNT_WITHIN_S)
        if self._latest == self.live:
            self.due = float("inf")
            return False
        if now < self.due and self.live <= self._latest:
            return False
        self.reset(self._latest)
        return True


class HoldDown:
    """Rebalance delay: the live set that primaries are computed from.

    A change of the live set starts the delay, a further change starts it again, and a return to the set that
    counts already ends it with nothing to move ("Configuring Partitioned Queues", rebalance delay).
    """

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.settled: frozenset[int] = frozenset()
        self.due: float | None = None
        """Time at which the delay ends; None while nothing has changed."""
        self._latest: frozenset[int] = frozenset()
        self._seen: list[frozenset[int]] = []
        """The set that counted before the last delay, and those since then."""

    @property
    def views(self) -> Sequence[frozenset[int]] | None:
        """Live sets by which members may consume queues; None: they may have had others on the way to the latest."""
        return self._seen if len(self._seen) == 2 else None

    def forget(self) -> None:
        """By the former assignment they consumed others."""
        self._seen = []

    def observe(self, live: frozenset[int], now: float) -> None:
        if live == self._latest:
            return
        if self.due is None:
            self._seen = [self.settled] if self.settled else []
        if self._seen:
            self._seen.append(live)
        self._latest = live
        self.due = None if live == self.settled else now + self.delay_s

    def tick(self, now: float) -> bool:
        """True if the latest set counts from now on."""
        if self.due is None or now < self.due:
            return False
        self.due = None
        self.settled = self._latest
        return True


class BindingTable:
    """Bindings to the queues of a group, each made when it is first used: of a large group a member uses few."""

    def __init__(self, rules: BalancingRules) -> None:
        self._rules = rules
        self.used: dict[int, Binding] = {}
        """Surplus queues are among them as long as they are consumed."""
        self._removed: dict[int, Binding] = {}
        """A queue that comes back under the same number goes on with their epochs and counts, which others know."""

    def __getitem__(self, queue: int) -> Binding:
        binding = self.used.get(queue)
        if binding is None:
            if not 0 <= queue < self._rules.queue_count:
                raise IndexError(queue)
            binding = self.used[queue] = (
                self._removed.pop(queue) if queue in self._removed else Binding(queue)
            )
        return binding

    def __iter__(self) -> Iterator[Binding]:
        return map(self.__getitem__, range(self._rules.queue_count))

    def remove(self, queue: int) -> None:
        """The group has this queue no longer."""
        binding = self.used.pop(queue, None)
        if binding is not None:
            self._removed[queue] = binding


JOINS_REST_S = 0.25
JOINS_HZ = 256
JOINS_REST_SHARE = 0.25
"""Of the time for which members have been joining: the broker that lets them in so slowly would be slower yet with the
consumers of each live set on the way."""

JOINS_COUNT_WITHIN_S = 10.0

ATTACHING_MAX = 16
"""Requests to consume that are open at the same time: the next one follows an answer."""

ANSWERS_WITHIN_S = 2.0
"""A quorum queue answers nothing while most of its nodes are down."""

ATTACHED_AT_ONCE = 16
"""So many queues a member consumes at once. It consumes more when the live set has rested for `RESTS_S`: the first one
of many that start together would else consume all queues for a moment."""

RESTS_S = 0.25

ATTACH_BACKOFF = Backoff(first_s=0.2, max_s=10.0, jitter=0.2)

CONSUMER_TIMEOUT = "x-consumer-timeout"
"""Of basic.consume, in ms; RabbitMQ before 4.3 ignores it. From then on a timeout returns only messages past it, and
the next consumer starts past those that this one has: this member must release the queue before (docs/rabbitmq.md).
Sent to every version, because a node may be upgraded under a member."""


@dataclass(frozen=True, slots=True)
class BrokerAssignedAttachments:
    """To a queue that the embedded broker shares out among its consumers. `partitions` as many as it has (1 where it
    has none); `arguments` makes those of basic.consume, anew for each attachment; `session` is its name where it
    shares out by sessions. `moves`: parts of it go from one live consumer to another, and its window can change.
    `moves_keys`: each key does, once what was delivered of it is acknowledged. Its closing channel carries out any
    number of acks."""

    partitions: int
    arguments: Callable[[], Mapping[str, str | int]]
    session: str | None = None
    moves: bool = False
    moves_keys: bool = False


GIVE_BACK_AT = 0.5
"""Of the broker's consumer timeout, after which it closes the channel with an error: from then on a queue is released
if it drains, and no call is extended."""


class Bindings:
    """`native`: what is particular to attachments to a queue that the broker shares out; None where members do."""

    def __init__(
        self,
        rules: BalancingRules,
        dispatcher: Dispatcher,
        membership: Membership,
        presence: Presence,
        *,
        uniform: Callable[[], float],
        native: BrokerAssignedAttachments | None = None,
    ) -> None:
        self.rules = rules
        self.consumer_timeout_s = rules.consumer_timeout_s
        """Effective consumer timeout of the broker: the setting, or a lower value that was observed."""
        self.all = BindingTable(rules)
        self.view = LiveView()
        self.holddown = HoldDown(rules.rebalance_delay_s)
        self.bound: dict[int, Binding] = {}
        """Those with a channel, by queue."""
        self.changes = 0
        """Grows with each change of a phase, of a queue's activity, and of what is consumed."""
        self.rests_at = 0.0
        """From then on the number of consumed queues is not limited."""
        self.surplus: set[int] = set()
        """Queues beyond the number of the group's that are still consumed here."""
        self.native = native
        self._wanted: dict[int, None] = {}
        self._missing: dict[int, None] = {}
        self._attaching: dict[int, float] = {}
        self._dispatcher = dispatcher
        self._effects = dispatcher.effects
        self._membership = membership
        self._presence = presence
        self._uniform = uniform

    def repartition(self, partitions: int) -> None:
        """The broker has so many partitions in its queue now; that of a session has none."""
        if self.native is not None and self.native.session is None:
            self.native = replace(self.native, partitions=partitions)
            for binding in self.bound.values():
                assert binding.attachment is not None
                binding.attachment.partitions = partitions

    def reshape(self, queue_count: int) -> None:
        """The group has so many queues now: those beyond that have a channel here are surplus. `want` follows."""
        self.rules.queue_count = queue_count
        self.surplus = {queue for queue in self.bound if queue >= queue_count}
        for queue in [one for one in self.all.used if one >= queue_count and one not in self.surplus]:
            self.all.remove(queue)
        self._fit_surplus()

    def surplus_deleted(self, queue: int) -> None:
        """A surplus queue is not consumed again, and out of the table when its channel is closed."""
        self.surplus.discard(queue)
        self._wanted.pop(queue, None)
        self._missing.pop(queue, None)

    def _fit_surplus(self) -> None:
        self.rules.surplus_end = max((*self.surplus, *self.bound), default=-1) + 1

    def want(self, queues: Iterable[int]) -> None:
        """Consume these, in this order. Others are not closed."""
        self.changes += 1
        self._wanted = dict.fromkeys(queues)
        self._missing = {queue: None for queue in self._wanted if queue not in self.bound}

    def is_wanted(self, queue: int) -> bool:
        return queue in self._wanted

    def own(self) -> list[Binding]:
        """Of the queues that are consumed, or shall be and were requested before, in their order."""
        used = self.all.used
        return [used[queue] for queue in sorted(self.bound.keys() | (self._wanted.keys() & used.keys()))]

    def served(self) -> list[Binding]:
        """Those by which this member serves queues of the group, without surplus queues."""
        return [one for one in self.own() if one.active and one.queue < self.rules.queue_count]

    def held(self, *, with_copies: bool = False) -> Iterator[InFlight]:
        """Messages that this member holds, and has not settled, of each queue in the order of delivery; `with_copies`:
        and released copies of parked ones."""
        for binding in self.own():
            attachment = binding.attachment
            if attachment is not None and not attachment.closed:
                unacked = attachment.unacked if with_copies else attachment.ack_window.all_unacked()
                for in_flight in unacked:
                    is_open = in_flight.outcome is None and not in_flight.is_over
                    if is_open and not in_flight.ends_session and in_flight.fence is None:
                        yield in_flight

    def attach_due(self, now: float) -> None:
        """Attach to the wanted queues that have no channel and whose time has come, a few at the same time. A member
        that leaves consumes nothing any more."""
        if not self._missing or self._membership.roster.me is None or self._presence.why is not None:
            return
        for queue in list(self._missing):
            if not self._has_room(now):
                return
            binding = self.all[queue]
            if now >= binding.attach_due:
                self.attach(binding, now)

    def _has_room(self, now: float) -> bool:
        # One without an answer does not hold others up for long.
        open_ = sum(now - since < ANSWERS_WITHIN_S for since in self._attaching.values())
        if open_ >= ATTACHING_MAX or self._awaits_view:
            return False
        return now >= self._unlimited_at or len(self.bound) < ATTACHED_AT_ONCE

    @property
    def _awaits_view(self) -> bool:
        """True for a newcomer that does not know the others, or only since a moment ago: alone it would consume queues
        that are not its own, and of many members that start together each the same."""
        me = self._membership.roster.me
        if self.native is not None or me is None or me.index == 0 or len(self.view.live) > 1:
            return False
        return self._membership.awaits_directory or self.view.due < float("inf")

    @property
    def _unlimited_at(self) -> float:
        """Time from which on more than `ATTACHED_AT_ONCE` queues are consumed: not before the latest joins count."""
        return max(self.rests_at, self.view.due if self.view.due < float("inf") else 0.0)

    def next_due(self, now: float) -> float:
        due = float("inf")
        if not self._missing:
            return due
        used = self.all.used
        for queue in self._missing:
            due = min(due, used[queue].attach_due if queue in used else now)
            if due <= now:
                break
        if due == float("inf") or self._awaits_view:
            return float("inf")
        if len(self._attaching) >= ATTACHING_MAX:
            due = max(due, min(self._attaching.values()) + ANSWERS_WITHIN_S)
        return due if len(self.bound) < ATTACHED_AT_ONCE else max(due, self._unlimited_at)

    def activate(self, binding: Binding, now: float) -> None:
        """The broker delivers messages of the queue to this member."""
        self.changes += 1
        binding.active = True
        binding.activated_at = now

    def attach(self, binding: Binding, now: float) -> None:
        self.changes += 1
        self.bound[binding.queue] = binding
        self._missing.pop(binding.queue, None)
        self._attaching[binding.queue] = now
        binding.release_due = None
        binding.epoch += 1
        binding.phase = Phase.ATTACHING
        binding.attached_at = now
        native = self.native
        # A broker that moves parts of its queue recalls what exceeds a narrower window than the widest. And a quorum
        # queue puts returned messages behind those returned before: a member that has a narrower window than its
        # predecessor, and returns its messages, gets them after the rest. So all windows are the same
        # (docs/rabbitmq.md).
        binding.attachment = Attachment(
            binding.queue,
            binding.epoch,
            prefetch=self.prefetch(is_widest=self.rules.on_rabbitmq if native is None else native.moves),
            partitions=native.partitions if native is not None else 1,
            session=native.session if native is not None else None,
            acks_soon=native is not None and native.moves_keys,
        )
        arguments = native.arguments() if native is not None else self._arguments()
        self._effects.append(Attach(binding.attachment, arguments))

    def attached(self, attachment: Attachment) -> Binding | None:
        """The broker has the consumer. None if this attachment is over already."""
        binding = self.all.used.get(attachment.queue)
        if binding is None or binding.attachment is not attachment:
            return None
        self._attaching.pop(binding.queue, None)
        self.changes += 1
        if binding.phase is Phase.ATTACHING:
            binding.phase = Phase.ATTACHED
            binding.failures = 0
        return binding

    @property
    def frames_are_lost(self) -> bool:
        """True if a closing channel may discard acks: one of a quorum queue."""
        return self.rules.on_rabbitmq and self.native is None

    def serving(self, queue: int) -> Attachment | None:
        """The attachment by which this member serves the queue, if it does."""
        binding = self.all.used.get(queue)
        return binding.attachment if binding is not None and binding.active else None

    def is_drained(self, attachment: Attachment) -> bool:
        """True if a close would cut off nothing: a paused attachment is not at work, and all that is done can be
        acknowledged with the close."""
        return attachment.drained and not (self.frames_are_lost and exceeding_a_close(attachment))

    def detach(self, binding: Binding) -> int:
        """Settle, forget, close. Returns how many messages that cut off at work: they are delivered again."""
        attachment = binding.attachment
        assert attachment is not None
        binding.phase = Phase.DETACHING
        self.changes += 1
        done = attachment.ack_window.take()
        singly_max = SINGLE_ACKS_AT_CLOSE if self.frames_are_lost else len(attachment.ack_window.scattered)
        singly = attachment.ack_window.pop_scattered(singly_max)
        cut_off = _at_work(attachment)
        self._dispatcher.counts.forced += cut_off
        single_tags = tuple(in_flight.tag for in_flight in singly)
        acks = settling(attachment, done)
        last = acks.pop().tag if acks and isinstance(acks[-1], Ack) else None
        effects: list[Effect] = [*acks, Detach(attachment, last, single_tags)]
        if done or singly:
            effects.append(Done((*done, *singly), settled=True))
        self._cut_off(attachment, *effects)
        return cut_off

    def closed(self, attachment: Attachment, now: float) -> Binding | None:
        """Records the end of a channel, by this member or by itself. None if it is recorded already."""
        binding = self.all.used.get(attachment.queue)
        if binding is None or binding.attachment is not attachment:
            return None
        if binding.phase is not Phase.DETACHING:
            self._cut_off(attachment)
            binding.failures += 1
            binding.attach_due = now + ATTACH_BACKOFF.delay_s(binding.failures, self._uniform)
        else:
            binding.attach_due = now
        self._unbind(binding)
        return binding

    def lost(self) -> int:
        """Ends every channel with the connection. Returns how many messages that cut off: called, or done and not
        acknowledged."""
        cut_off = 0
        for binding in list(self.bound.values()):
            assert binding.attachment is not None
            if not binding.attachment.closed:
                cut_off += len(binding.attachment.ack_window.prefix) + _at_work(binding.attachment)
                self._cut_off(binding.attachment)
            self._unbind(binding)
        for binding in self.all.used.values():
            binding.attach_due = 0.0
            binding.answers.clear()
            binding.arrivals.clear()
        return cut_off

    def _cut_off(self, attachment: Attachment, *effects: Effect) -> None:
        """Forgets the attachment: aborts its calls, then acknowledges and closes by these effects."""
        running, rest = self._dispatcher.close(attachment)
        if running:
            self._effects.append(Abort(tuple(running)))
        self._effects.extend(effects)
        # A call that still runs is journalled when it has ended.
        running_set = set(running)
        over = tuple(in_flight for in_flight in rest if in_flight not in running_set)
        if over:
            self._effects.append(Done(over, settled=False))

    def _unbind(self, binding: Binding) -> None:
        assert binding.attachment is not None
        self.changes += 1
        del self.bound[binding.queue]
        self._attaching.pop(binding.queue, None)
        if binding.queue in self._wanted:
            self._missing[binding.queue] = None
        binding.delivered += binding.attachment.delivered
        binding.attachment = None
        binding.phase = Phase.UNBOUND
        binding.active = False
        binding.release_due = None
        binding.put_off = 0
        if binding.queue >= self.rules.queue_count:
            if binding.queue not in self.surplus:
                self.all.remove(binding.queue)
            self._fit_surplus()

    def _arguments(self) -> Mapping[str, str | int]:
        if not self.rules.on_rabbitmq:
            return {}
        return {CONSUMER_TIMEOUT: round(self.consumer_timeout_s * 1000)}

    @property
    def equal_prefetch(self) -> int:
        """The window of a queue where those of all members have to be equal (docs/internals/rabbitmq.md); else 0."""
        return self.prefetch(is_widest=True) if self.frames_are_lost else 0

    def prefetch(self, *, is_widest: bool = False) -> int:
        """The window of a queue, by the application's service time as measured now. `is_widest`: whatever it is."""
        if self.rules.prefetch is not None:
            return self.rules.prefetch
        return derived_prefetch(
            concurrency=self._dispatcher.rules.concurrency,
            service_time_s=None if is_widest else self._dispatcher.service_time_s(),
            consumer_timeout_s=self.consumer_timeout_s,
            handoff_s=self.rules.max_handoff_s if self.native is not None and self.native.moves else None,
        )


def _at_work(attachment: Attachment) -> int:
    """Called, on the way to a confirm, or done behind a message that is not."""
    beside = attachment.beside
    held = (*attachment.running, *attachment.underway, *attachment.ack_window.scattered)
    return len(held) + (0 if beside is None else len(beside.running) + len(beside.underway))
