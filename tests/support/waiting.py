"""Waiting for what another process or task will do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

GUARD_S = 60.0
"""Longest wait for fast events: less than a test's own limit, which names no event."""


async def until(
    condition: Callable[[], object], *, timeout_s: float = GUARD_S, every_s: float = 0.005, what: str = ""
) -> None:
    """Return when `condition` holds. Raises TimeoutError naming `what`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while not condition():
        if loop.time() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what or condition}")
        await asyncio.sleep(every_s)


async def passes(condition: Callable[[], object]) -> None:
    """Turn the loop until it is so; the test's own timeout is the limit."""
    while not condition():  # noqa: ASYNC110 (what counts is the turns of the loop)
        await asyncio.sleep(0)
