"""Growth of work and of memory, measured so that a busy machine does not change the answer."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Awaitable, Callable
from time import thread_time

ROUNDS = 5


async def growth(work: Callable[[int], Callable[[], Awaitable[None]]], size: int, times: int) -> float:
    """Ratio of CPU times of work of two sizes, `times` apart: `times` if it is linear. It is the square if it is
    quadratic. `work` prepares, and its result is measured: both sizes in turn, and of each the least."""
    least = {size: float("inf"), size * times: float("inf")}
    for _ in range(ROUNDS):
        for each in least:
            run = work(each)
            started = thread_time()
            await run()
            least[each] = min(least[each], thread_time() - started)
    return least[size * times] / least[size]


def allocated(work: Callable[[], object]) -> int:
    """Bytes that are allocated after the work and were not before it."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def containers_bytes(thing: object) -> int:
    """Size of what the slots of `thing` hold, without what is in it: of a dictionary its table."""
    return sum(sys.getsizeof(one) for one in gc.get_referents(thing) if not isinstance(one, type))
