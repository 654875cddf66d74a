"""Heartbeats as a function of time (AMQP 0-9-1 section 4.2.7)."""

from dataclasses import dataclass
from typing import Final

__all__ = ["Heartbeats", "Pulse"]

CHECKS_PER_INTERVAL: Final = 8
"""How often to look. The peer's silence is noticed at most this fraction of an interval late."""

SILENCE_INTERVALS: Final = 2
"""The peer is given up after this many intervals without a byte, as the specification says."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """What to do about heartbeats now. `next_at` is on the clock that `now` came from; None: never."""

    beat: bool
    expired: bool
    next_at: float | None


class Heartbeats:
    """Judges silence in both directions from byte counts, so that reads and writes need not ask the clock."""

    def __init__(self, interval_s: float, now: float, *, bytes_in: int, bytes_out: int) -> None:
        self._interval_s = interval_s
        self._bytes_in, self._in_at = bytes_in, now
        self._bytes_out, self._out_at = bytes_out, now
        self._checked_at = now

    @property
    def heard_at(self) -> float | None:
        """When the last byte had come, as of the last check; None without heartbeats."""
        return self._in_at if self._interval_s > 0 else None

    def check(self, now: float, *, bytes_in: int, bytes_out: int) -> Pulse:
        """Judge the time since the last check. Any byte counts as a heartbeat."""
        if self._interval_s <= 0:
            return Pulse(beat=False, expired=False, next_at=None)
        if bytes_in != self._bytes_in:
            self._bytes_in, self._in_at = bytes_in, now
        beat = bytes_out == self._bytes_out and now - self._out_at >= self._interval_s / 2
        if beat or bytes_out != self._bytes_out:
            self._out_at = now
        self._bytes_out = bytes_out
        # When our own process was stopped, what the peer sent meanwhile may not have been read yet: look again.
        was_stopped = now - self._checked_at > self._interval_s / 2
        self._checked_at = now
        expired = now - self._in_at >= SILENCE_INTERVALS * self._interval_s and not was_stopped
        return Pulse(beat=beat, expired=expired, next_at=now + self._interval_s / CHECKS_PER_INTERVAL)
