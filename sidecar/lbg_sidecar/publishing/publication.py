"""One accepted event on its way, and what a request is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from .errors import Refused
from .window import Entry


@dataclass(slots=True, eq=False)
class Publication:
    """One accepted event. `failure`: it will not be confirmed any more."""

    publisher: str
    size_bytes: int = 0
    hash: int = 0
    seq: int = 0
    confirmed: bool = False
    failure: Refused | None = None
    waiting: list[Countdown] = field(default_factory=list)
    entry: Entry[Publication] | None = None


@dataclass(slots=True, eq=False)
class Countdown:
    """One request's wait for all of its events."""

    left: int
    done: asyncio.Future[None]

    def one_less(self) -> None:
        self.left -= 1
        if self.left <= 0 and not self.done.done():
            self.done.set_result(None)


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where an event is. `deduplicated`: an earlier request had it published."""

    id: str | None
    publisher: str
    hash: int
    seq: int
    deduplicated: bool


async def settled(publications: Sequence[Publication], *, until: float) -> bool:
    """Whether all of them are confirmed or have failed by `until`, in the loop's time.

    Whoever waits may be gone: what was accepted is published all the same.
    """
    open_ = [each for each in publications if not each.confirmed and each.failure is None]
    if not open_:
        return True
    countdown = Countdown(len(open_), asyncio.get_running_loop().create_future())
    for each in open_:
        each.waiting.append(countdown)
    try:
        async with asyncio.timeout_at(until):
            await countdown.done
    except TimeoutError:
        return False
    finally:
        for each in open_:
            with suppress(ValueError):
                each.waiting.remove(countdown)
    return True
