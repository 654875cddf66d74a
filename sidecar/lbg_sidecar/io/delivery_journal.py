"""Journal of deliveries: one record for each that has ended, in wall-clock time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from lbg_core.group import EXCLUSIVE, DeliveredRecord
from lbg_core.group.member_state import Identity
from lbg_core.journal import JournalWriter
from lbg_sidecar.core.delivery import InFlight, Outcome

DELIVERED_AGAIN = frozenset((Outcome.PARKED, Outcome.FORWARDED))
"""Outcomes after which the message comes again from another queue: for the journal it is released."""

STEP_S = 0.001
"""Less is the noise of reading two clocks one after the other: they are slewed alike, and only a step parts them."""
KEPT_STEPS = 16


class WallClock:
    """A clock that never goes back: of two times of the loop the later one is never the earlier one here, whatever
    happens to the system's clock in between, so that the records of one member stay in order.

    `wall_s` is the system's clock, in seconds since the epoch. `adjust` follows it from then on; what was before keeps
    the time that it had. Set back, it stands still until the system's clock has caught up.
    """

    def __init__(self, now: float, wall_s: Callable[[], float]) -> None:
        self._wall_s = wall_s
        self._latest = (float("-inf"), wall_s() - now, 0)
        """From when on (the loop's time, s), what is to be added (s), and the least that it may be then (µs)."""
        self._steps = deque([self._latest], maxlen=KEPT_STEPS)  # latest first

    def adjust(self, now: float) -> None:
        offset_s = self._wall_s() - now
        if abs(offset_s - self._latest[1]) >= STEP_S:
            self._latest = (now, offset_s, self.us(now))
            self._steps.appendleft(self._latest)

    def us(self, at: float) -> int:
        """Microseconds since the epoch."""
        since, offset_s, least = self._latest
        if at >= since:
            now_us = int((at + offset_s) * 1_000_000)
            return now_us if now_us > least else least
        return self._earlier(at)

    def _earlier(self, at: float) -> int:
        for since, offset_s, least in self._steps:
            if at >= since:
                return max(least, int((at + offset_s) * 1_000_000))
        since, offset_s, least = self._steps[-1]
        return min(least, int((at + offset_s) * 1_000_000))


class DeliveryJournal:
    """Turns deliveries that are over into records. One that no publisher of ours stamped has none."""

    def __init__(self, writer: JournalWriter, clock: WallClock, *, group: str) -> None:
        self.writer = writer
        self._clock = clock
        self._group = group
        self._mode: str | None = None

    def learn(self, mode: str) -> None:
        """The mode of the group, from its record."""
        self._mode = None if mode == EXCLUSIVE else mode

    def record(self, deliveries: Iterable[InFlight], me: Identity, *, settled_at: float | None) -> None:
        """`settled_at`: when their ack was written, on the event loop's clock; None if it never was."""
        us = self._clock.us
        settled_at_us = None if settled_at is None else us(settled_at)
        append = self.writer.append
        for in_flight in deliveries:
            if in_flight.identity is None or in_flight.outcome is None:
                continue
            publisher, hash_, seq = in_flight.identity
            started_at, finished_at = in_flight.first_started_at, in_flight.finished_at
            # In the order of the fields: by name it takes half as long again.
            append(
                DeliveredRecord(
                    publisher,
                    in_flight.key,
                    hash_,
                    in_flight.queue,
                    seq,
                    in_flight.published_at_us,
                    me.index,
                    me.name,
                    me.incarnation,
                    in_flight.number,
                    in_flight.delivery.redelivered,
                    us(in_flight.received_at),
                    None if started_at is None else us(started_at),
                    None if finished_at is None else us(finished_at),
                    settled_at_us,
                    in_flight.attempts,
                    Outcome.RELEASED if in_flight.outcome in DELIVERED_AGAIN else in_flight.outcome,
                    in_flight.attachment.session,
                    in_flight.sequence,
                    self._group,
                    in_flight.size,
                    self._mode,
                )
            )
