"""Status report of a member, for observers."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable
from dataclasses import asdict
from operator import attrgetter
from typing import Any, Self

from lbg_core.group.member_state import ExtendedCall, Identity, Progress, QueueState, RetriedMessage
from lbg_core.group.members_protocol import ACTIVITY, Activity, Beat
from lbg_sidecar.core.binding import Binding
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.dispatcher import Order
from lbg_sidecar.core.effects import Post
from lbg_sidecar.core.message_states import IS_UNDERWAY
from lbg_sidecar.core.part import NEVER, Context, Part

KEYS_REPORTED_MAX = 3
KEY_MAX_CHARS = 64
ID_MAX_CHARS = 200
"""A report may be sent every second, so it has only some of the poisoned keys."""


LISTED_MAX = 20
REASON_MAX_CHARS = 200


def _poisoned_messages(attachment: Attachment | None, now: float) -> list[dict[str, Any]]:
    """Those that this attachment holds, the oldest first, at most `LISTED_MAX` of them. `key` and `id` are None without
    a publisher's stamp. `since_s`: time since its attempts were used up here; after a takeover, since this member's
    first attempt."""
    if attachment is None:
        return []
    return [
        {
            "key": in_flight.key,
            "id": in_flight.id if in_flight.identity is not None else None,
            "attempts": in_flight.attempts,
            "since_s": now - since,
            "reason": in_flight.reason[:REASON_MAX_CHARS],
        }
        for in_flight, since in itertools.islice(attachment.poisoned.items(), LISTED_MAX)
    ]


ABSENT = Identity(0, "", "")
"""Sender of the report of a member that is not connected, for a view."""


def status_report(context: Context) -> Beat:
    """Of the queues that this member consumes or should consume. Surplus queues are left out: who reports one has not
    the present number of queues yet."""
    dispatcher, fields = context.dispatcher, dict[str, Any]()
    for report_fields in context.hooks.of(Part.report_fields):
        fields |= report_fields()
    return Beat(
        context.roster.me or ABSENT,
        queues=tuple(queue_state(context, binding) for binding in _own(context)),
        queue_count=context.rules.queue_count,
        concurrency=calls_at_once(context),
        prefetch=context.bindings.equal_prefetch,
        counts=asdict(dispatcher.counts),
        paused=dispatcher.paused,
        oldest_us=_oldest_us(context.bindings.bound.values()),
        **fields,
    )


def calls_at_once(context: Context) -> int:
    """Most calls that can run at a time: where all of a queue is one lane, one for each that is served here."""
    dispatcher = context.dispatcher
    if dispatcher.rules.order is Order.KEY:
        return dispatcher.lanes.concurrency
    return min(dispatcher.lanes.concurrency, max(1, sum(1 for _ in context.bindings.served())))


def _own(context: Context) -> list[Binding]:
    queue_count = context.rules.queue_count
    return [binding for binding in context.bindings.own() if binding.queue < queue_count]


def queue_state(context: Context, binding: Binding) -> QueueState:
    attachment = binding.attachment
    fields: dict[str, Any] = {"progress": progress_of(attachment)}
    for queue_fields in context.hooks.of(Part.queue_fields):
        fields |= queue_fields(binding)
    if attachment is not None:
        fields |= {
            "in_flight": attachment.ack_window.unacked,
            "poisoned": len(attachment.poisoned),
            "poisoned_keys": _poisoned_keys(attachment),
            "poisoned_ids": _poisoned_ids(attachment),
            "retried_messages": _retried_messages(attachment),
            "extended_calls": _extended_calls(attachment),
        }
    return QueueState(
        queue=binding.queue,
        active=binding.active,
        status=binding.status,
        delivered=binding.delivered_in_all,
        epoch=binding.epoch,
        **fields,
    )


def _oldest_us(bindings: Iterable[Binding]) -> int:
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

COUNTED_KEYS_MAX = 512
COUNTED_KEYS_KEPT = 256


class KeyCounts:
    """Counts of messages by key, for a report of the most frequent ones: when there are too many, the rarest half is
    forgotten."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, key: str) -> None:
        counts = self._counts
        counts[key] = counts.get(key, 0) + 1
        if len(counts) > COUNTED_KEYS_MAX:
            self._counts = dict(self.most(COUNTED_KEYS_KEPT))

    def most(self, count: int) -> list[tuple[str, int]]:
        """The keys with most messages, at most so many, with the number of each; the most frequent first."""
        return heapq.nsmallest(count, self._counts.items(), key=lambda one: (-one[1], one[0]))


class ActivityMonitor(Part):
    """Reports of a member's activity, while an administrator watches its group. Without one, no key is counted."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._key_counts: KeyCounts | None = None
        self._until = self._due = 0.0
        self._settled = context.hooks.of(Part.settled)

    def resume(self, former: Self) -> None:
        self._until, self._due = former._until, former._due
        if former._key_counts is not None:
            self._begin(former._key_counts)

    def next_due(self, now: float) -> float:
        return NEVER if self._key_counts is None or self._roster.me is None else self._due

    def watch(self, seconds: float, now: float) -> None:
        """Report for so long from now on."""
        if self._key_counts is None:
            self._begin(KeyCounts())
            self._due = now + ACTIVITY_EVERY_S
        self._until = max(self._until, now + seconds)

    def tick(self, now: float) -> None:
        """Sends the report that is due, if one is."""
        counts, me = self._key_counts, self._roster.me
        if counts is None or me is None or now < self._due:
            return
        self._due = now + ACTIVITY_EVERY_S
        self._key_counts = KeyCounts()
        if now >= self._until:
            self._key_counts = None
            self._settled.remove(self._count)
        keys = tuple((key[:KEY_MAX_CHARS], count) for key, count in counts.most(HOT_KEYS_MAX))
        if keys:
            self._effects.append(Post(Activity(me, keys), to=ACTIVITY))

    def _begin(self, counts: KeyCounts) -> None:
        self._key_counts = counts
        self._settled.append(self._count)

    def _count(self, in_flight: InFlight) -> None:
        if self._key_counts is not None and in_flight.outcome is Outcome.ACK and in_flight.key is not None:
            self._key_counts.add(in_flight.key)


def progress_of(attachment: Attachment | None) -> Progress:
    """Cause that holds a queue up, as far as this member alone can see it."""
    if attachment is None:
        return Progress.IDLE
    oldest = attachment.ack_window.oldest
    if oldest is not None and not IS_UNDERWAY[oldest.state]:
        has_failed = oldest.attempts > oldest.is_called
        others_run = len(attachment.running) > oldest.is_called or any(
            one is not oldest for *_, one in attachment.ready
        )
        if has_failed and (attachment.ack_window.unacked >= attachment.prefetch or not others_run):
            return Progress.BLOCKED
    return Progress.WORKING if attachment.is_at_work else Progress.IDLE


def _served_by(context: Context, binding: Binding) -> int | None:
    """The index of the member that gets the deliveries of a queue, by the last reports; None: unknown."""
    me = context.roster.me
    if binding.active:
        return me.index if me is not None else None
    reporters = context.roster.served.reporters(binding.queue)
    return next((peer.identity.index for peer in reporters if peer.claims(binding.queue)), None)


def _poisoned_keys(attachment: Attachment) -> tuple[str, ...]:
    keys = dict.fromkeys(one.key[:KEY_MAX_CHARS] for one in attachment.poisoned if one.key is not None)
    return tuple(itertools.islice(keys, KEYS_REPORTED_MAX))


def _poisoned_ids(attachment: Attachment) -> tuple[str, ...]:
    """By which an administrator can skip them; one that is too long for a report is left out."""
    ids = (one.id for one in itertools.islice(attachment.poisoned, KEYS_REPORTED_MAX))
    return tuple(one for one in ids if len(one) <= ID_MAX_CHARS)


def _retried_messages(attachment: Attachment) -> tuple[RetriedMessage, ...]:
    """A wait is over while its call runs; a reply that is no verdict counts until there is another."""
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


def _extended_calls(attachment: Attachment) -> tuple[ExtendedCall, ...]:
    held = (
        ExtendedCall(
            id=in_flight.id[:ID_MAX_CHARS],
            key=None if in_flight.key is None else in_flight.key[:KEY_MAX_CHARS],
            progress=one.progress[:REASON_MAX_CHARS],
            since_us=one.since_us,
            until_us=one.until_us,
        )
        for in_flight in attachment.running
        if (one := in_flight.extended) is not None and one.until_us
    )
    return tuple(itertools.islice(held, KEYS_REPORTED_MAX))


_STATE_FIELDS = QueueState.__slots__
_state_values = attrgetter(*_STATE_FIELDS)
"""`asdict` takes a millisecond for 64 queues, twenty times as long, and views ask ten times a second."""


def description_of(context: Context, now: float) -> dict[str, Any]:
    """The report for a view, without its sender, and more of this member alone, as plain data."""
    me, lanes, report = context.roster.me, context.dispatcher.lanes, status_report(context)
    running, blocked = len(lanes.running), len(lanes.delayed)
    is_shared = {"shared": True} if context.bindings.native is not None else {}
    queues = []
    for state, binding in zip(report.queues, _own(context), strict=True):
        attachment, fields = binding.attachment, dict(zip(_STATE_FIELDS, _state_values(state), strict=True))
        for name in ("retried_messages", "extended_calls", "suspects"):
            fields[name] = [asdict(one) for one in fields[name]]
        fields["overload"] = None if state.overload is None else asdict(state.overload)
        fields["poisoned_messages"] = _poisoned_messages(attachment, now)
        fields["window"] = attachment.prefetch if attachment is not None else None
        fields["served_by"] = _served_by(context, binding)
        queues.append(fields | is_shared)
    described = {
        "queues": queues,
        "rebalance": report.rebalance,
        "counts": report.counts,
        "paused": report.paused,
        "oldest_us": report.oldest_us,
        "sequences": None if report.sequences is None else asdict(report.sequences),
        "parking": None if report.parking is None else asdict(report.parking),
        "index": me.index if me is not None else None,
        "incarnation": me.incarnation if me is not None else None,
        "connected": me is not None,
        "live": sorted(context.roster.live),
        "leaving": context.presence.why,
        "lanes": {"running": running, "blocked": blocked, "concurrency": lanes.concurrency},
        "service_time_s": context.dispatcher.service_time_s(),
    }
    for description in context.hooks.of(Part.description):
        described |= description()
    return described
