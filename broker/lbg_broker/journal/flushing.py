"""Flushing on time, for a writer whose records come irregularly."""

from __future__ import annotations

import asyncio

from .writer import JournalWriter


async def flush_regularly(writer: JournalWriter, *, interval_s: float = 1.0) -> None:
    """Flush `writer` every `interval_s` until cancelled. Raises WriteFailed if the writer's settings say so.

    A flush writes at most a few hundred records to the page cache, some tens of microseconds, so it runs in
    the loop.
    """
    while True:
        await asyncio.sleep(interval_s)
        writer.flush()
