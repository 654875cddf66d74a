"""Being the only one who changes a group: its lock is an exclusive queue, held for as long as the connection lives."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from lbg_broker.client import ClientConnection, ResourceLocked
from lbg_broker.group import Names

from .amqp_link import AmqpLink
from .errors import AdminError, Busy, Refused

LOCK_AGAIN_S = 5.0
"""How long to try for the lock that a lost connection of ours held: a killed one is gone in milliseconds."""


class Locks:
    """Of one link. A lock that went with a lost connection is taken again before the next change to its group, and once
    somebody else has it no further change is made."""

    def __init__(self, link: AmqpLink) -> None:
        self._link = link
        self._held: dict[str, ClientConnection | None] = {}

    @contextlib.asynccontextmanager
    async def of(self, group: str) -> AsyncIterator[None]:
        """Hold the lock of `group`. Raises Busy while somebody else does, here or elsewhere."""
        if group in self._held:
            raise Busy(group)
        self._held[group] = None
        try:
            await self._take(group)
            yield
        finally:
            if self._held.pop(group) is not None:
                # If it cannot be let go, its connection is lost, and the lock with it.
                with contextlib.suppress(AdminError):
                    await self._let_go(group)

    async def keep(self, group: str) -> None:
        """Have the lock again that is to be held; for a group that is not locked there is none. Raises Busy."""
        if group not in self._held:
            return
        holder = self._held[group]
        if holder is None:
            raise Busy(group)
        if not holder.is_open:
            await self._take(group, within_s=LOCK_AGAIN_S)

    async def _take(self, group: str, *, within_s: float = 0.0) -> None:
        self._held[group] = None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while True:
            connection = await self._link.connection()
            try:
                async with self._link.channel() as channel:
                    await channel.queue_declare(_lock_of(group), exclusive=True)
                self._held[group] = connection
                return
            except Refused as error:
                if not isinstance(error.__cause__, ResourceLocked):
                    raise
                if loop.time() > deadline:
                    raise Busy(group) from error
            await asyncio.sleep(0.05)

    async def _let_go(self, group: str) -> None:
        async with self._link.channel() as channel:
            await channel.queue_delete(_lock_of(group))


def _lock_of(group: str) -> str:
    return f"{Names(group).exchange}.provisioning"
