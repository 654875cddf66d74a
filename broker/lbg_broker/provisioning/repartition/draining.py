"""Waiting until nothing is left in a group's queues, delivered or not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from ..errors import NotDrained
from ..observed import UNKNOWN, Unknown
from .ingress import Ingress

LOOK_S = 0.5
NAMED_MAX = 5

SAMPLED_S = 6.0
"""What is delivered and not acknowledged RabbitMQ counts every 5 s (tests/rabbitmq/test_facts_of_counting.py). While
nothing comes in and nothing is ready, it only gets less: a count that was taken after that began, and says 0, is
true."""


@dataclass(frozen=True, slots=True)
class Depth:
    """What one queue, or one partition of it, holds."""

    name: str
    ready: int | Unknown
    unacked: int | Unknown

    @property
    def is_empty(self) -> bool:
        return self.ready == 0 and self.unacked == 0

    def __str__(self) -> str:
        if self.ready is UNKNOWN or self.unacked is UNKNOWN:
            return f"{self.name} could not be asked"
        return f"{self.name} has {self.ready} ready, {self.unacked} unacknowledged"


def left_in(depths: Sequence[Depth]) -> Iterator[str]:
    """What is left, in a few lines however many queues there are."""
    full = [one for one in depths if not one.is_empty]
    yield from map(str, full[:NAMED_MAX])
    if len(full) > NAMED_MAX:
        yield f"{len(full) - NAMED_MAX} more"


async def drain(
    group: str,
    ingress: Ingress,
    depths: Callable[[], Awaitable[Sequence[Depth]]],
    *,
    keep_lock: Callable[[], Awaitable[None]],
    is_sampled: bool,
    timeout_s: float,
    tell: Callable[[str], None],
) -> None:
    """Return when nothing comes in and nothing is left. `is_sampled`: what is delivered is counted every 5 s only.

    Raises NotDrained, and what `keep_lock` does: who lost the group to another run must not close it again.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    still_since: float | None = None
    while True:
        await keep_lock()
        is_closed = await ingress.hold()
        began = loop.time()
        found = await depths()
        if not is_closed or any(one.ready != 0 for one in found):
            still_since = None
        elif still_since is None:
            still_since = began
        left = list(left_in(found))
        if still_since is not None and not left:
            if began - still_since >= (SAMPLED_S if is_sampled else 0.0):
                return
            left = ["RabbitMQ's next count of what is delivered"]
        if not is_closed:
            left.append("publishers that were still connected")
        if loop.time() >= deadline:
            raise NotDrained(group, left, timeout_s)
        tell(f"waiting for: {'; '.join(left)}")
        await asyncio.sleep(LOOK_S)
