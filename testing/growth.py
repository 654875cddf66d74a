"""Growth of work and of memory, measured so that a busy machine does not change the answer."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import log
from time import thread_time

from testing.exploration import repetitions

ROUNDS = repetitions(5, few=3)


async def growth(work: Callable[[int], Callable[[], Awaitable[None]]], size: int, times: int) -> float:
    """Exponent of the CPU time of work in its size, from two sizes `times` apart: 1 if it is linear, 2 if it is
    quadratic. `work` prepares, and its result is measured: both sizes in turn, and of each the least. Collections of
    garbage are left out: each costs what the heap of the whole test run has, and only the larger size starts them."""
    least = {size: float("inf"), size * times: float("inf")}
    for _ in range(ROUNDS):
        for each in least:
            run = work(each)
            with uncollected():
                started = thread_time()
                await run()
                least[each] = min(least[each], thread_time() - started)
    return log(least[size * times] / least[size], times)


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection of garbage inside."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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
