"""How work grows with its size, measured so that a busy machine does not change the answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import thread_time

ROUNDS = 5


async def growth(work: Callable[[int], Callable[[], Awaitable[None]]], size: int, times: int) -> float:
    """How many times as much CPU time work takes that is `times` as large: `times` if it is linear, its square if
    quadratic. `work` prepares, and what it returns is measured: both sizes in turn, and of each the least."""
    least = {size: float("inf"), size * times: float("inf")}
    for _ in range(ROUNDS):
        for each in least:
            run = work(each)
            started = thread_time()
            await run()
            least[each] = min(least[each], thread_time() - started)
    return least[size * times] / least[size]
