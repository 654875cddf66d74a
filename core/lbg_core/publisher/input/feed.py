"""Publishes the rows of an input, and skips those that were confirmed before a restart."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from lbg_core.group import SpecError
from lbg_core.publisher.errors import BadRow, InputError
from lbg_core.publisher.input.rows import Row, RowOptions, read_rows
from lbg_core.publisher.input.source import Source
from lbg_core.publisher.publisher import GroupPublisher
from lbg_core.publisher.resume import InputVerifier

# Batches that a thread may read ahead of what is accepted.
_AHEAD_BATCHES = 4


async def publish_rows(
    publisher: GroupPublisher,
    source: Source,
    options: RowOptions,
    *,
    on_bad_row: Callable[[BadRow], None] | None = None,
    rate_per_s: float | None = None,
) -> int:
    """Publish every row of `source` and wait for the confirms; returns how many rows were no messages.

    A bad row, and any other InputError, is raised after the broker has confirmed the rows before it; a bad row goes to
    `on_bad_row` instead, where there is one, and the rows behind it are published too.
    `rate_per_s` holds the messages back to so many a second. With a state file, rows that were confirmed before
    are passed over, and nothing is sent before the input is seen to be the same as far as it was sent. Raises
    InputError, and what the publisher raises.
    """
    feed = _RowFeed(publisher, source.name, on_bad_row, rate_per_s)
    batches = read_rows(source, options)
    try:
        if source.may_wait:
            async for batch in _read_in_thread(batches):
                await feed.take(batch)
        else:
            for batch in batches:
                await feed.take(batch)
        feed.end()
    except InputError:
        await publisher.flush()
        raise
    await publisher.flush()
    return feed.bad_rows


class _RowFeed:
    def __init__(
        self,
        publisher: GroupPublisher,
        name: str,
        on_bad_row: Callable[[BadRow], None] | None,
        rate_per_s: float | None,
    ) -> None:
        self.bad_rows = 0
        self._publisher = publisher
        self._name = name
        self._on_bad_row = on_bad_row
        self._interval_s = 1 / rate_per_s if rate_per_s else 0.0
        self._due_at = 0.0
        self._verifier: InputVerifier | None = None
        if (state := publisher.state) is not None:
            self._verifier = InputVerifier(
                position=state.start.position,
                digest=state.start.digest,
                sent_position=state.start.sent_position,
                sent_digest=state.sent_digest,
            )

    async def take(self, batch: list[Row | BadRow]) -> None:
        for row in batch:
            if isinstance(row, BadRow):
                self._refuse(row)
                continue
            try:
                if self._verifier is None or self._verifier.is_over:
                    if self._interval_s:
                        await self._pace()
                    await self._publisher.publish(key=row.key, body=row.body, topic=row.topic)
                    continue
                self._publisher.require_usable(row.key, row.topic, row.body)
                ready = self._verifier.accept(row)
            except SpecError as error:
                self._refuse(BadRow(self._name, row.number, str(error), line=row.line))
                continue
            for each in ready:
                await self._publisher.publish(key=each.key, body=each.body, topic=each.topic)

    async def _pace(self) -> None:
        """Wait for the row's time. What a full queue or a lost connection cost is not made up for."""
        now = asyncio.get_running_loop().time()
        self._due_at = max(self._due_at + self._interval_s, now - 0.1)
        if self._due_at - now > 0.001:
            await asyncio.sleep(self._due_at - now)

    def end(self) -> None:
        if self._verifier is not None:
            self._verifier.end()

    def _refuse(self, row: BadRow) -> None:
        self.bad_rows += 1
        if self._on_bad_row is None:
            raise row
        self._on_bad_row(row)


async def _read_in_thread(batches: Iterator[list[Row | BadRow]]) -> AsyncIterator[list[Row | BadRow]]:
    """For a pipe, whose reads may take for ever: a thread that the end of the process does not wait for."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[list[Row | BadRow] | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(_AHEAD_BATCHES)

    def report(result: list[Row | BadRow] | BaseException | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(ready.put_nowait, result)

    def read() -> None:
        try:
            for batch in batches:
                room.acquire()
                report(batch)
        except BaseException as error:
            report(error)
        else:
            report(None)

    threading.Thread(target=read, name="lbg input", daemon=True).start()
    while (batch := await ready.get()) is not None:
        if isinstance(batch, BaseException):
            raise batch
        room.release()
        yield batch
