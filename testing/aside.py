"""Slow calls from a test's event loop, in one thread that lives as long as the test run.

A node is killed by the kernel when the thread that started it ends, so no passing thread will do; and a member in the
test's own loop takes its connection for lost when that loop stands still.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="aside")

_T = TypeVar("_T")


async def aside(call: Callable[..., _T], *arguments: Any, **options: Any) -> _T:
    """Call it in the other thread, after what was asked for before, and await what it returns."""
    return await asyncio.get_running_loop().run_in_executor(_THREAD, partial(call, *arguments, **options))
