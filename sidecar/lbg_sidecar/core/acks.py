"""Acknowledgements: their schedule, and the prefetch window.

A closing channel of a RabbitMQ quorum queue discards the acks that are behind 32 others which the queue has not applied
(docs/internals/rabbitmq.md), and there is no sign of it. So a channel that may be closed never has more than
`UNPROVEN_FRAMES_MAX` on the way, and the close has 16. What exceeds these is acknowledged before the close, at the
rate at which the broker applies it (docs/adr/0064-a-close-waits-for-acks.md).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from lbg_core.client.ack_window import UNPROVEN_FRAMES_MAX, AckWindow
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.effects import Ack, Done, Effect, Refuse

WINDOW_MAX = 256
"""Enough for one queue at 20,000 msg/s when an ack takes 12 ms to become the next delivery, which is what a quorum
queue needs at that rate with acks 5 ms apart. More would only be memory, and more to requeue at a handoff."""


def derived_prefetch(
    *,
    concurrency: int,
    service_time_s: float | None,
    consumer_timeout_s: float,
    handoff_s: float | None = None,
) -> int:
    """The default prefetch of one queue.

    RabbitMQ closes a channel that leaves a delivery unacknowledged for `consumer_timeout_s` (30 min by default).
    In the worst case all of a window is one key, so its messages run one after another and the last waits for
    prefetch x service time: that must stay under half the timeout. `service_time_s` is what the member measured
    (99th percentile of its calls); None before. Then the window is as wide as is useful, and safe all the same: the
    member releases a queue when its oldest delivery reaches half the timeout, and attaches again with a window by the
    service time that is measured by then.

    At least two messages per slot of `concurrency`, so that a slot has its next message at hand, unless the
    timeout forbids it; always at least 1.

    `handoff_s`: the broker moves parts of the queue to others and waits for so long at most; None: it does not. The
    window is then no more than all slots together do in that time.
    """
    least, widest = 2 * concurrency, max(WINDOW_MAX, 2 * concurrency)
    if service_time_s is None or service_time_s <= 0:
        return widest
    safe = int(consumer_timeout_s / 2 / service_time_s)
    if handoff_s is not None:
        widest = max(least, min(widest, int(concurrency * handoff_s / service_time_s)))
    return max(1, min(safe, widest))


ACK_INTERVAL_S = 0.005
ACK_MESSAGES = 16
ACK_INTERVAL_MAX_S = 0.05
"""Time from one ack of a queue to the next if it settles so many messages, and at most. Each ack wakes the broker,
whose deliveries wake the member: with calls of 2 ms, one at a time, that was half of a message's CPU. A crash repeats
what is done and not acknowledged."""

SINGLE_ACK_AFTER_S = 0.25
SINGLE_ACKS_AT_ONCE = 4
"""Messages finished behind an unfinished one (a slow call, a key that waits for its retry) are acknowledged singly once
it has waited this long, this many in one ack interval. So a blocked key fills the prefetch window with its own
messages only, and a crash repeats what was done lately, not all that was done since."""


SINGLE_ACKS_AT_CLOSE = 15
"""With the cumulative one 16 frames: a closing channel of a quorum queue carries those out (docs/rabbitmq.md)."""


def exceeding_a_close(attachment: Attachment) -> int:
    """Number of messages done behind a gap that a close could not acknowledge where it may discard acks."""
    return max(0, len(attachment.ack_window.scattered) - SINGLE_ACKS_AT_CLOSE)


def settling(attachment: Attachment, done: Sequence[InFlight]) -> list[Ack | Refuse]:
    """Settles the prefix of what is done, in one frame, but for what is refused."""
    if attachment.session is None:
        return [Ack(attachment, done[-1].tag)] if done else []
    found: list[Ack | Refuse] = []
    for in_flight in done:
        if in_flight.is_uncounted:
            found.append(Refuse(attachment, in_flight.tag))
        elif found and isinstance(found[-1], Ack):
            found[-1] = Ack(attachment, in_flight.tag)
        else:
            found.append(Ack(attachment, in_flight.tag))
    return found


def _done_in(ack_window: AckWindow[InFlight]) -> int:
    return len(ack_window.prefix) + len(ack_window.scattered)


def _interval(attachment: Attachment) -> float:
    is_many = _done_in(attachment.ack_window) >= ACK_MESSAGES
    return ACK_INTERVAL_S if is_many or attachment.acks_soon else ACK_INTERVAL_MAX_S


def _is_window_due(attachment: Attachment) -> bool:
    """True if a quarter of the prefetch window is done."""
    return 4 * len(attachment.ack_window.prefix) >= attachment.prefetch


class Unacked:
    """Attachments that have something to acknowledge. `is_due`: perhaps before the time that the last flush gave."""

    __slots__ = ("attachments", "is_due")

    def __init__(self) -> None:
        self.attachments: list[Attachment] = []
        self.is_due = False

    def done(self, in_flight: InFlight) -> None:
        """A delivery is done, and acknowledged with a later flush."""
        attachment = in_flight.attachment
        ack_window = attachment.ack_window
        had_prefix = bool(ack_window.prefix)
        ack_window.done(in_flight)
        if (
            not attachment.unacked_listed
            or (ack_window.prefix and not had_prefix)
            or _done_in(ack_window) == ACK_MESSAGES
            or _is_window_due(attachment)
            or attachment.is_moving
        ):
            self.changed(attachment)

    def forget(self, attachment: Attachment, released: Collection[InFlight]) -> None:
        """These are not acknowledged here, and what is done behind them may be."""
        attachment.ack_window.forget(released)
        self.changed(attachment)

    def changed(self, attachment: Attachment) -> None:
        """Has the next flush look at its acks again."""
        self.is_due = True
        if not attachment.unacked_listed:
            attachment.unacked_listed = True
            self.attachments.append(attachment)


class AckScheduler:
    """`frames_are_lost`: a closing channel may discard acks."""

    def __init__(self, unacked: Unacked, effects: list[Effect], *, frames_are_lost: bool) -> None:
        self._unacked = unacked
        self._effects = effects
        self._frames_are_lost = frames_are_lost

    def flush(self, now: float) -> float:
        """Acknowledge what is due; returns when the next ack will be, or infinity.

        The first of a quiet queue at once, then one cumulative frame an interval or a quarter of the window. Other
        queues that are beyond half of theirs join it: each ack wakes the broker, and its deliveries the member. While a
        queue is being moved its acks wait for the one before the close, unless the window runs dry or the close could
        not acknowledge all that is done.
        """
        self._unacked.is_due = False
        due = float("inf")
        is_one_sent = False
        remaining = []
        for attachment in self._unacked.attachments:
            ack_window = attachment.ack_window
            if attachment.closed or not (ack_window.prefix or ack_window.next_single):
                attachment.unacked_listed = False
                continue
            remaining.append(attachment)
            if attachment.is_moving:
                due = min(due, self._flush_moving(attachment, now))
                continue
            interval_s = _interval(attachment)
            at = attachment.acked_at + interval_s
            room = self._room(attachment, now)
            if room == 0:
                at = max(at, attachment.ack_frames.next_room_at)
            joins = is_one_sent and room > 0 and now >= at - interval_s / 2
            if now >= at or _is_window_due(attachment) or joins:
                self._ack(attachment, now, singly_max=min(SINGLE_ACKS_AT_ONCE, max(0, room - 1)))
                is_one_sent = is_one_sent or attachment.acked_at == now
                at = now + _interval(attachment)
            if ack_window.prefix:
                due = min(due, at)
            elif (single := ack_window.next_single) is not None:
                finished_at = single.finished_at or now
                due = min(due, max(at, finished_at + SINGLE_ACK_AFTER_S))
        self._unacked.attachments = remaining
        return due

    def _flush_moving(self, attachment: Attachment, now: float) -> float:
        ack_window = attachment.ack_window
        if len(ack_window.prefix) * 4 >= attachment.prefetch * 3:
            self._ack(attachment, now, singly_max=0)
        excess = exceeding_a_close(attachment) if self._frames_are_lost else 0
        if not excess:
            return float("inf")
        room = max(0, self._room(attachment, now) - 1)
        self._send(attachment, [], ack_window.pop_scattered(min(room, excess)), now)
        return attachment.ack_frames.next_room_at if excess > room else float("inf")

    def settle_now(self, attachment: Attachment, recalled: Iterable[InFlight], now: float) -> None:
        """Acknowledges what is done without waiting for more: in one frame as far as possible, and of the rest the
        `recalled` singly."""
        done = attachment.ack_window.take()
        self._send(attachment, done, attachment.ack_window.pop_done(recalled), now)

    def _room(self, attachment: Attachment, now: float) -> int:
        """Number of ack frames that may be sent beside those in flight."""
        if not self._frames_are_lost:
            return UNPROVEN_FRAMES_MAX
        return attachment.ack_frames.room(now, delivered=attachment.delivered, prefetch=attachment.prefetch)

    def _ack(self, attachment: Attachment, now: float, *, singly_max: int) -> None:
        ack_window = attachment.ack_window
        done = ack_window.take()
        done_before = now - SINGLE_ACK_AFTER_S
        singly = ack_window.pop_scattered(
            singly_max, is_due=lambda in_flight: (in_flight.finished_at or 0.0) <= done_before
        )
        self._send(attachment, done, singly, now)

    def _send(self, attachment: Attachment, done: list[InFlight], singly: list[InFlight], now: float) -> None:
        self._effects += settling(attachment, done)
        for in_flight in singly:
            self._effects.append(Ack(attachment, in_flight.tag, multiple=False))
        if not done and not singly:
            return
        attachment.acked_at = now
        self._effects.append(Done((*done, *singly), settled=True))
        if self._frames_are_lost:
            attachment.ack_frames.sent(
                [len(done)] * bool(done) + [1] * len(singly),
                now,
                delivered=attachment.delivered,
                prefetch=attachment.prefetch,
            )
