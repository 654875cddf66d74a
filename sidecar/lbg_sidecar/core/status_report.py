"""Status report of a member, for observers."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import asdict
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from lbg_core.group.members_protocol import (
    ACTIVITY,
    Activity,
    Beat,
    HeldSuspect,
    Identity,
    ParkingState,
    Progress,
    QueueState,
    Rebalance,
    RetriedMessage,
    Role,
    Takeover,
)
from lbg_sidecar.core.dispatcher import REASON_MAX_CHARS, KeyCounts, poisoned_messages
from lbg_sidecar.core.effects import Post
from lbg_sidecar.core.message_states import IS_UNDERWAY
from lbg_sidecar.core.queue_bindings import Binding

if TYPE_CHECKING:
    from lbg_sidecar.core.exclusive import ExclusiveMember
    from lbg_sidecar.core.member_core import MemberCore
    from lbg_sidecar.core.parked_keys import Parking


KEYS_REPORTED_MAX = 3
KEY_MAX_CHARS = 64
ID_MAX_CHARS = 200
"""A report may be sent every second, so it has only some of the poisoned keys."""


ABSENT = Identity(0, "", "")
"""Sender of the report of a member that is not connected, for a view."""


def report_of(
    machine: MemberCore,
    queues: Iterable[QueueState],
    bound: Iterable[Binding],
    *,
    rebalance: Rebalance = Rebalance.READY,
    parking: ParkingState | None = None,
) -> Beat:
    """`bound`: bindings to the queues whose messages this member may have."""
    return Beat(
        machine.roster.me or ABSENT,
        tuple(queues),
        rebalance,
        asdict(machine.dispatcher.counts),
        machine.dispatcher.paused,
        oldest_us(bound),
        parking,
    )


def status_report(machine: ExclusiveMember) -> Beat:
    """Of the queues that this member consumes or should consume. Surplus queues are left out: who reports one has not
    the present number of queues yet."""
    return report_of(
        machine,
        (own_state(machine, binding) for binding in _own(machine)),
        machine.bindings.bound.values(),
        rebalance=machine.balancer.status,
        parking=None if machine.parking is None else parking_state(machine.parking),
    )


def _own(machine: ExclusiveMember) -> list[Binding]:
    queue_count = machine.rules.queue_count
    return [binding for binding in machine.bindings.own() if binding.queue < queue_count]


def parking_state(parking: Parking) -> ParkingState:
    keys = parking.keys
    return ParkingState(parking.is_read, len(keys), keys.messages, keys.size_bytes, parking.is_full)


def own_state(machine: ExclusiveMember, binding: Binding) -> QueueState:
    """The state of a queue that is served by one member at a time."""
    me = machine.roster.me
    return queue_state(
        machine,
        binding,
        is_primary=me is not None
        and machine.rules.primaries(machine.bindings.view.live)[binding.queue] == me.index,
        is_stalled=machine.watchdog.is_stalled(binding.queue),
        next_drain_s=machine.handoffs.drain_s if binding.put_off else 0.0,
    )


def queue_state(
    machine: MemberCore,
    binding: Binding,
    *,
    is_primary: bool,
    is_stalled: bool = False,
    next_drain_s: float = 0.0,
) -> QueueState:
    attachment = binding.attachment
    return QueueState(
        queue=binding.queue,
        role=Role.PRIMARY if is_primary else Role.SECONDARY,
        active=binding.active,
        status=binding.status,
        in_flight=0 if attachment is None else attachment.ack_window.unacked,
        delivered=binding.delivered_in_all,
        epoch=binding.epoch,
        progress=Progress.STALLED if is_stalled else progress_of(binding),
        poisoned=0 if attachment is None else len(attachment.poisoned),
        poisoned_keys=poisoned_keys(binding),
        poisoned_ids=poisoned_ids(binding),
        retried_messages=retried_messages(binding),
        put_off=binding.put_off,
        next_drain_s=next_drain_s,
        suspects=held_suspects(machine, binding),
    )


def oldest_us(bindings: Iterable[Binding]) -> int:
    """Publishing time of the oldest message of these queues that is not settled here, in microseconds since the epoch;
    0 without one, and where publishers do not report it. The oldest of a queue is the first that was delivered."""
    attached = (binding.attachment for binding in bindings if binding.attachment is not None)
    oldest = (attachment.ack_window.oldest for attachment in attached)
    return min(
        (one.published_at_us for one in oldest if one is not None and one.published_at_us),
        default=0,
    )


ACTIVITY_EVERY_S = 1.0
HOT_KEYS_MAX = 10


class ActivityMonitor:
    """Reports of a member's activity, while an administrator watches its group. Without one, no key is counted."""

    def __init__(self) -> None:
        self.key_counts: KeyCounts | None = None
        self._until = self._due = 0.0

    @property
    def next_due(self) -> float:
        return float("inf") if self.key_counts is None else self._due

    def watch(self, seconds: float, now: float) -> None:
        """Report for so long from now on."""
        if self.key_counts is None:
            self.key_counts = KeyCounts()
            self._due = now + ACTIVITY_EVERY_S
        self._until = max(self._until, now + seconds)

    def report(self, me: Identity, now: float) -> list[Post]:
        """The report that is due, if one is."""
        counts = self.key_counts
        if counts is None or now < self._due:
            return []
        self._due = now + ACTIVITY_EVERY_S
        self.key_counts = KeyCounts() if now < self._until else None
        keys = tuple((key[:KEY_MAX_CHARS], count) for key, count in counts.most(HOT_KEYS_MAX))
        return [Post(Activity(me, keys), to=ACTIVITY)] if keys else []


def takeover_report(me: Identity, effect: Takeover) -> Post:
    """Sent without a request: a member that has just joined takes queues over before the next request comes."""
    return Post(Activity(me, takeover=effect), to=ACTIVITY)


def progress_of(binding: Binding) -> Progress:
    """Cause that holds a queue up, as far as this member alone can see it."""
    attachment = binding.attachment
    if attachment is None:
        return Progress.IDLE
    oldest = attachment.ack_window.oldest
    if oldest is not None and not IS_UNDERWAY[oldest.state]:
        has_failed = oldest.attempts > oldest.is_called
        others_run = attachment.ready or len(attachment.running) > oldest.is_called
        if has_failed and (attachment.ack_window.unacked >= attachment.prefetch or not others_run):
            return Progress.BLOCKED
    return Progress.WORKING if attachment.is_at_work else Progress.IDLE


def _served_by(machine: ExclusiveMember, binding: Binding) -> int | None:
    """The index of the member that gets the deliveries of a queue, by the last reports; None: unknown."""
    me = machine.roster.me
    if binding.active:
        return me.index if me is not None else None
    reporters = machine.roster.reporters(binding.queue)
    return next((peer.identity.index for peer in reporters if peer.claims(binding.queue)), None)


def poisoned_keys(binding: Binding) -> tuple[str, ...]:
    poisoned = binding.attachment.poisoned if binding.attachment is not None else ()
    keys = dict.fromkeys(one.key[:KEY_MAX_CHARS] for one in poisoned if one.key is not None)
    return tuple(itertools.islice(keys, KEYS_REPORTED_MAX))


def poisoned_ids(binding: Binding) -> tuple[str, ...]:
    """By which an administrator can skip them; one that is too long for a report is left out."""
    poisoned = binding.attachment.poisoned if binding.attachment is not None else ()
    ids = (one.id for one in itertools.islice(poisoned, KEYS_REPORTED_MAX))
    return tuple(one for one in ids if len(one) <= ID_MAX_CHARS)


def retried_messages(binding: Binding) -> tuple[RetriedMessage, ...]:
    """A wait is over while its call runs; a reply that is no verdict counts until there is another."""
    attachment = binding.attachment
    if attachment is None:
        return ()
    held = (
        RetriedMessage(
            id=in_flight.id[:ID_MAX_CHARS],
            key=None if in_flight.key is None else in_flight.key[:KEY_MAX_CHARS],
            reason=in_flight.reason[:REASON_MAX_CHARS],
            until_us=0 if one.is_unreadable else one.at_us,
        )
        for in_flight, one in attachment.retries.items()
        if one.is_unreadable or (one.at_us and not in_flight.is_called)
    )
    return tuple(itertools.islice(held, KEYS_REPORTED_MAX))


def held_suspects(machine: MemberCore, binding: Binding) -> tuple[HeldSuspect, ...]:
    """Suspects in flight that are called alone; one whose id is too long for a report is left out."""
    attachment = binding.attachment
    if machine.dispatcher.suspects is None or attachment is None:
        return ()
    found = (
        HeldSuspect(
            one.id,
            one.key and one.key[:KEY_MAX_CHARS],
            max(one.attempts, one.suspect.last.attempts) - one.is_called,
            one.suspect.last.member,
        )
        for one in attachment.ack_window.all_unacked()
        if one.suspect is not None and one.suspect.last.is_called_alone
        if one.outcome is None and len(one.id) <= ID_MAX_CHARS
    )
    return tuple(itertools.islice(found, KEYS_REPORTED_MAX))


def description(machine: ExclusiveMember, now: float) -> dict[str, Any]:
    """The same for a view, and more of this member alone, as plain data."""
    return described(machine, [(one, _served_by(machine, one)) for one in _own(machine)], now)


_STATE_FIELDS = QueueState.__slots__
_state_values = attrgetter(*_STATE_FIELDS)
"""`asdict` takes a millisecond for 64 queues, twenty times as long, and views ask ten times a second."""


def described(
    machine: MemberCore, servers: Iterable[tuple[Binding, int | None]], now: float
) -> dict[str, Any]:
    """A member as plain data, as far as it is the same in every mode. `servers`: for each queue of its report, the
    binding and the index of the member that gets the deliveries."""
    me, lanes, report = machine.roster.me, machine.dispatcher.lanes, machine.content()
    queues = []
    for state, (binding, server) in zip(report.queues, servers, strict=True):
        attachment, fields = binding.attachment, dict(zip(_STATE_FIELDS, _state_values(state), strict=True))
        for name in ("retried_messages", "suspects"):
            fields[name] = [asdict(one) for one in fields[name]]
        poisoned = poisoned_messages(attachment, now) if attachment is not None else []
        fields["poisoned_messages"] = [asdict(one) for one in poisoned]
        fields["window"] = attachment.prefetch if attachment is not None else None
        fields["served_by"] = server
        queues.append(fields)
    return {
        "queues": queues,
        "rebalance": report.rebalance,
        "counts": report.counts,
        "paused": report.paused,
        "oldest_us": report.oldest_us,
        "parking": None if report.parking is None else asdict(report.parking),
        "index": me.index if me is not None else None,
        "incarnation": me.incarnation if me is not None else None,
        "connected": me is not None,
        "live": sorted(machine.roster.live),
        "leaving": machine.leaving,
        "delivered_again": machine.delivered_again,
        "lanes": {"running": len(lanes.running), "blocked": lanes.blocked, "concurrency": lanes.concurrency},
        "service_time_s": machine.dispatcher.service_time_s(),
    }
