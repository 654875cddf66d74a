"""The progress of `lbg publish`: a bar on a terminal, plain lines where there is none; both on standard error."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from lbg.failing import redacted

if TYPE_CHECKING:
    from lbg_broker.publishing import BadRow, GroupPublisher, PublisherEvent
    from lbg_broker.publishing.sources import Source

REFRESH_S = 0.1
RATE_OVER_S = 2.0
BAD_ROWS_SHOWN = 10


class PublishingProgress:
    """Shows a publisher at work, its events and bad rows. `nothing_read`: what an input without a row was read as."""

    def __init__(self) -> None:
        self.bad_rows = 0
        self.nothing_read = ""
        self._console = Console(stderr=True, highlight=False)
        self._last_line = ""

    def tell(self, event: PublisherEvent) -> None:
        from lbg_broker.publishing import events

        # The bar shows full queues; as lines, several of them filling up and emptying would be a flood.
        if not isinstance(event, events.QueueFull | events.QueueTaking):
            self._say(str(event))

    def count_bad_row(self, row: BadRow) -> None:
        self.bad_rows += 1
        if self.bad_rows <= BAD_ROWS_SHOWN:
            self._say(f"skipped: {row}")
        if self.bad_rows == BAD_ROWS_SHOWN:
            self._say("more bad rows are counted and not shown")

    @contextmanager
    def shown(self, publisher: GroupPublisher, source: Source) -> Iterator[None]:
        if not self._console.is_terminal:
            yield
            return
        bar = Progress(
            SpinnerColumn(),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TextColumn("{task.fields[told]}"),
            TimeRemainingColumn(),
            console=self._console,
            auto_refresh=False,
        )
        with bar:
            task = bar.add_task("", total=source.total_bytes, told="")
            rate = Rate()

            def refresh() -> None:
                bar.update(
                    task,
                    completed=source.read_bytes,
                    told=told(publisher, rate.at(publisher.confirmed_count)),
                )
                bar.refresh()

            refreshing = asyncio.ensure_future(_repeat(refresh))
            try:
                yield
            finally:
                refreshing.cancel()
                refresh()

    def _say(self, line: str) -> None:
        if line != self._last_line:
            self._console.print(redacted(line), markup=False, soft_wrap=True)
        self._last_line = line


def told(publisher: GroupPublisher, rate_per_s: float) -> str:
    full = publisher.full_queues
    waiting = f" [yellow]waiting for {', '.join(full[:3])}{', …' if len(full) > 3 else ''}[/]" if full else ""
    return f"{publisher.accepted_count:,} read, {publisher.confirmed_count:,} confirmed, {rate_per_s:,.0f}/s{waiting}"


class Rate:
    """How fast a count grows, over the last two seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, count: int) -> float:
        now = time.monotonic()
        self._seen.append((now, count))
        while now - self._seen[0][0] > RATE_OVER_S:
            self._seen.popleft()
        began, first = self._seen[0]
        return (count - first) / (now - began) if now > began else 0.0


async def _repeat(refresh: Callable[[], None]) -> None:
    while True:
        refresh()
        await asyncio.sleep(REFRESH_S)
