"""Rates from counters that are read now and then."""

from __future__ import annotations

from collections import deque

WINDOW_S = 2.0
HISTORY = 60


class Meter:
    """A counter that only grows, its rate over the last two seconds, and one rate a second for a sparkline."""

    def __init__(self) -> None:
        self.count = 0
        self._samples: deque[tuple[float, int]] = deque()
        self.history: deque[float] = deque(maxlen=HISTORY)
        self._noted_at_s: float | None = None

    def read(self, count: int, now_s: float) -> None:
        self.count = max(count, self.count)
        self._samples.append((now_s, self.count))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - WINDOW_S:
            self._samples.popleft()
        if self._noted_at_s is None or now_s - self._noted_at_s >= 1.0:
            self.history.append(self.rate(now_s))
            self._noted_at_s = now_s

    def rate(self, now_s: float) -> float:
        """Per second, over the window; 0 when nothing was read for that long."""
        if len(self._samples) < 2 or self._samples[-1][0] < now_s - 2 * WINDOW_S:
            return 0.0
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0


def sparkline(values: list[float], width: int) -> str:
    """The last `width` values as blocks, scaled to the highest of them."""
    bars = "▁▂▃▄▅▆▇█"
    shown = values[-width:]
    top = max(shown, default=0.0)
    if top <= 0:
        return bars[0] * len(shown)
    return "".join(bars[min(7, int(value / top * 7.999))] for value in shown)
