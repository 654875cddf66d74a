"""The cores' speed while something is measured: CPU time of a fixed loop. A virtual machine shares its cores."""

from __future__ import annotations

import asyncio
import statistics
import time

_ADDITIONS = 100_000


async def loop_ms(seconds: float) -> float:
    """The loop's CPU time in milliseconds, measured once a second for so long: the median."""
    end, times_s = time.monotonic() + seconds, []
    while not times_s or time.monotonic() + 1.0 < end:
        times_s.append(_loop_s())
        await asyncio.sleep(min(1.0, max(0.0, end - time.monotonic())))
    await asyncio.sleep(max(0.0, end - time.monotonic()))
    return statistics.median(times_s) * 1e3


def _loop_s() -> float:
    begun, total = time.process_time(), 0
    for number in range(_ADDITIONS):
        total += number * number
    return time.process_time() - begun
