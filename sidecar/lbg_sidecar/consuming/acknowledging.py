"""When what is done is acknowledged: soon while a queue is quiet, in few frames under load."""

from __future__ import annotations

from collections.abc import Container, Iterable

from ..effects import Ack, Done, Effect
from .held import Attachment, Held

SINGLE_ACK_AFTER_S = 0.25
SINGLE_ACKS_AT_ONCE = 4
"""What is done behind a message that is not (a slow call, a key that waits for its retry) is acknowledged singly once
it has waited this long, this many in one ack interval. So a blocked key fills the prefetch window with its own
messages only, and a crash repeats what was done lately, not all that was done since."""


class Acknowledging:
    def __init__(self, *, interval_s: float, effects: list[Effect]) -> None:
        self.moving: Container[int] = ()
        """The queues that are being moved away, kept by others."""
        self._interval_s = interval_s
        self._effects = effects
        self._unacked: list[Attachment] = []

    def settled(self, attachment: Attachment) -> None:
        """Something of this attachment is done: look at it in the next flush."""
        if not attachment.unacked_listed:
            attachment.unacked_listed = True
            self._unacked.append(attachment)

    def flush(self, now: float) -> float:
        """Acknowledge what is due; returns when the next ack will be, or infinity.

        The first of a quiet queue at once, then one cumulative frame an interval or a quarter of the window. While
        a queue is being moved its acks wait for the one before the close, unless the window runs dry: RabbitMQ may
        discard acks that a closing channel has queued (DESIGN.md, "RabbitMQ facts").
        """
        if not self._unacked:
            return float("inf")
        due = float("inf")
        still = []
        for attachment in self._unacked:
            settling = attachment.settling
            if attachment.closed or not (settling.prefix or settling.next_single):
                attachment.unacked_listed = False
                continue
            still.append(attachment)
            if attachment.queue in self.moving:
                if settling.unacked * 4 >= attachment.prefetch * 3:
                    self._ack(attachment, now)
                continue
            at = attachment.acked_at + self._interval_s
            if now >= at or len(settling.prefix) * 4 >= attachment.prefetch:
                self._ack(attachment, now)
                at = now + self._interval_s
            if settling.prefix:
                due = min(due, at)
            elif (single := settling.next_single) is not None:
                finished_at = single.finished_at or now
                due = min(due, max(at, finished_at + SINGLE_ACK_AFTER_S))
        self._unacked = still
        return due

    def settle_now(self, attachment: Attachment, wanted: Iterable[Held], now: float) -> None:
        """Acknowledge what is done without waiting for more of it: in one frame as far as it can be, and of the rest
        what is `wanted` back."""
        settling = attachment.settling
        done = settling.take()
        if done:
            self._effects.append(Ack(attachment, done[-1].tag))
        self._sent(attachment, done, settling.take_these(wanted), now)

    def _ack(self, attachment: Attachment, now: float) -> None:
        settling = attachment.settling
        done = settling.take()
        if done:
            self._effects.append(Ack(attachment, done[-1].tag))
        singly = settling.take_scattered(SINGLE_ACKS_AT_ONCE, done_before=now - SINGLE_ACK_AFTER_S)
        self._sent(attachment, done, singly, now)

    def _sent(self, attachment: Attachment, done: list[Held], singly: list[Held], now: float) -> None:
        for held in singly:
            self._effects.append(Ack(attachment, held.tag, multiple=False))
        if done or singly:
            attachment.acked_at = now
            self._effects.append(Done((*done, *singly), settled=True))
