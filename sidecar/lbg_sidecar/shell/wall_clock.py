"""The event loop's time as time of day, for journals and republished messages."""

from __future__ import annotations

import time
from collections import deque

STEP_S = 0.001
"""Less is the noise of reading two clocks one after the other: they are slewed alike, and only a step parts them."""
KEPT_STEPS = 16


class WallClock:
    """Never goes back: of two times of the loop the later one is never the earlier one here, whatever is done to the
    system's clock in between, so that what one member writes stays in its order.

    `adjust` follows the system's clock from then on; what was before keeps the time that it had. Set back, it stands
    still until the system's clock has caught up.
    """

    def __init__(self, now: float) -> None:
        self._latest = (float("-inf"), time.time() - now, 0)
        """From when on (the loop's time, s), what is to be added (s), and the least that it may be then (µs)."""
        self._steps = deque([self._latest], maxlen=KEPT_STEPS)  # latest first

    def adjust(self, now: float) -> None:
        offset_s = time.time() - now
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
