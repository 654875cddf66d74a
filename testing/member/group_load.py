"""A steady load on a group, and a judge of what its members were called with."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from lbg_core.group import GroupSpec
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Message, Verdict
from testing.waiting import GUARD_S, until

Name = tuple[str, int, int]  # publisher, hash, sequence


def group_spec(name: str, *, queues: int = 4, hashes: int = 16, **more: Any) -> GroupSpec:
    return GroupSpec(
        name, name, hash_count=hashes, queue_count=queues, queue_size_mb=100, client_username="guest", **more
    )


@dataclass
class Judge:
    """Sees every call of every member, as it begins; `starts` is in that order."""

    starts: list[tuple[str, str | None, Name]] = field(default_factory=list)
    times: Counter[Name] = field(default_factory=Counter)
    inversions: list[str] = field(default_factory=list)
    _highest: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(lambda: -1))

    def begins(self, member: str, message: Message) -> None:
        assert message.publisher is not None
        assert message.hash is not None
        assert message.seq is not None
        name = (message.publisher, message.hash, message.seq)
        if message.key is not None:
            key = (message.publisher, message.key)
            if not self.times[name] and message.seq < self._highest[key]:
                self.inversions.append(f"{member}: {name} of {message.key} after {self._highest[key]}")
            self._highest[key] = max(self._highest[key], message.seq)
        self.times[name] += 1
        self.starts.append((member, message.key, name))

    def handler(
        self, member: str, then: Callable[[Message], Awaitable[Verdict | None]] | None = None
    ) -> Callable[[Message], Awaitable[Verdict | None]]:
        async def handle(message: Message) -> Verdict | None:
            self.begins(member, message)
            return None if then is None else await then(message)

        return handle

    @property
    def repeats(self) -> int:
        return sum(count - 1 for count in self.times.values())

    def members(self, *, since: int = 0) -> set[str]:
        """Members called since the call of this number."""
        return {member for member, _, _ in self.starts[since:]}


ENDS_WITHIN_S = 5.0
"""For the last publish, which waits where the broker is away."""


class Load:
    """Publishes to a group at a steady rate; `published` counts what is confirmed or on the way."""

    def __init__(self, publisher: GroupPublisher, *, keys: int) -> None:
        self.publisher = publisher
        self._keys = keys
        self.published = 0
        self.is_over = False

    async def publish(self, count: int, *, rate_hz: float | None = None) -> None:
        for _ in range(count):
            if self.is_over:
                return
            key = f"key-{self.published % self._keys}"
            await self.publisher.publish(key=key, body=b"%d" % self.published, topic="load")
            self.published += 1
            if rate_hz is not None:
                await asyncio.sleep(1 / rate_hz)

    async def all_seen(self, judge: Judge, *, timeout_s: float = GUARD_S) -> None:
        await self.publisher.flush()
        await until(lambda: len(judge.times) >= self.published, timeout_s=timeout_s, what="every message")


@asynccontextmanager
async def load_on(url: str, group: str, *, keys: int = 40) -> AsyncIterator[Load]:
    async with GroupPublisher(url, group=group) as publisher:
        yield Load(publisher, keys=keys)


@asynccontextmanager
async def under_load(load: Load, *, rate_hz: float = 300.0) -> AsyncIterator[None]:
    """Messages all the while. The last one is counted, whether it is on the way or not: a publish that is cancelled may
    have been either."""
    load.is_over = False
    task = asyncio.create_task(load.publish(1_000_000, rate_hz=rate_hz))
    try:
        yield
    finally:
        load.is_over = True
        await asyncio.wait([task], timeout=ENDS_WITHIN_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
