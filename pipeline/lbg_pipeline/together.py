"""Jobs of Spark's that do not wait for each other: while one is planned or written, another has the cores."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Answer = TypeVar("Answer")

AT_ONCE = 4
"""Spark plans a query in one thread, and little data is planned for longer than it is counted."""


def together(jobs: Iterable[Callable[[], Answer]]) -> list[Answer]:
    """What each gives, in order. Where some fail, the first of these is raised when those that have begun are done."""
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="jobs") as threads:
        begun = [threads.submit(job) for job in jobs]
        try:
            return [one.result() for one in begun]
        finally:
            threads.shutdown(cancel_futures=True)
