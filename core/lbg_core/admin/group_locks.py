"""Locks of groups and of permissions: exclusive queues, which end with the connection of who has them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from lbg_core.admin.amqp_link import CLOSE_S, REQUEST_S, AmqpLink
from lbg_core.admin.errors import AdminError, Busy, Refused
from lbg_core.client import ChannelClosed, ClientConnection, ClientError, NotFound, ResourceLocked
from lbg_core.group import Names

LOCK_AGAIN_S = 5.0
"""Seconds to try for the lock that a lost connection of ours held: a killed one is gone in milliseconds."""


class Locks:
    """Of one link. A lock that was lost with its connection is acquired again before the next change to its group. If
    another process has it then, no further change is made."""

    def __init__(self, link: AmqpLink) -> None:
        self._link = link
        self._held: dict[str, ClientConnection | None] = {}
        self._permissions = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def of(self, group: str) -> AsyncIterator[None]:
        """Holds the lock of `group`. Raises Busy while another caller does, here or elsewhere, and SpecError for what
        cannot be a group's name."""
        Names(group)
        if group in self._held:
            raise Busy(group)
        self._held[group] = None
        try:
            await self._acquire(group)
            yield
        finally:
            if self._held.pop(group) is not None:
                await self._release(_lock_of(group))

    @contextlib.asynccontextmanager
    async def of_permissions(self, group: str) -> AsyncIterator[None]:
        """Holds the lock of all permissions in the virtual host, for a change of `group`: a user's are read and written
        as a whole, also what other groups have taken out of them. Raises Busy when others have it for `LOCK_S`."""
        async with self._permissions:
            await self._declare(_PERMISSIONS, group, within_s=LOCK_S)
            try:
                yield
            finally:
                await self._release(_PERMISSIONS)

    async def drive(self, group: str, *, is_over: bool) -> None:
        """Marks the group's change of the number of queues as one with which a command goes on, until it is over or the
        connection ends. Of several commands one has the mark; without it nothing is done otherwise."""
        with contextlib.suppress(Busy, AdminError):
            if is_over:
                await self._release(_mark_of(group))
            else:
                await self._declare(_mark_of(group), group, within_s=0.0)

    async def is_driven(self, group: str) -> bool | None:
        """True if a command goes on with the group's change; None where that is not known. Raises AdminError."""
        try:
            async with self._link.channel() as channel:
                await channel.queue_declare(_mark_of(group), passive=True)
        except Refused as error:
            if isinstance(error.__cause__, NotFound):
                return False
            return True if isinstance(error.__cause__, ResourceLocked) else None
        return True

    async def renew(self, group: str) -> bool:
        """Acquires a lost lock again, and is True then: another caller may have had it. Does nothing for a group that
        is not locked here. Raises Busy."""
        if group not in self._held:
            return False
        holder = self._held[group]
        if holder is None:
            raise Busy(group)
        if is_lost := not holder.is_open:
            await self._acquire(group, within_s=LOCK_AGAIN_S)
        return is_lost

    async def _acquire(self, group: str, *, within_s: float = 0.0) -> None:
        self._held[group] = None
        self._held[group] = await self._declare(_lock_of(group), group, within_s=within_s)

    async def _declare(self, lock: str, group: str, *, within_s: float) -> ClientConnection:
        with self._link.translated_errors(REQUEST_S):
            async with asyncio.timeout(REQUEST_S):
                connection = await self._link.connection()
                await _declare_lock(connection, lock, group, within_s=within_s)
        return connection

    async def _release(self, lock: str) -> None:
        """If it cannot be released, its connection is lost, and the lock with it."""
        with contextlib.suppress(AdminError):
            async with self._link.channel(within_s=CLOSE_S) as channel:
                await channel.queue_delete(lock)


_PERMISSIONS = "lbg._permissions"
"""A group's name has no `_`."""

LOCK_S = 10.0
"""To wait for a lock: a change of the number of queues holds its group's for each of its steps."""


async def hold_lock(connection: ClientConnection, group: str) -> None:
    """Holds the lock of `group` for as long as this connection is open: who works over it has no lock to lose. Raises
    Busy when another client has the lock for longer than a step of a change, and ClientError."""
    await _declare_lock(connection, _lock_of(group), group, within_s=LOCK_S)


async def is_locked(connection: ClientConnection, group: str) -> bool:
    """True while a client has the lock of `group`. Raises ClientError."""
    channel = await connection.open_channel()
    try:
        await channel.queue_declare(_lock_of(group), passive=True)
    except ChannelClosed as error:
        if isinstance(error, ResourceLocked | NotFound):
            return isinstance(error, ResourceLocked)
        raise
    channel.close_soon()
    return True


async def _declare_lock(connection: ClientConnection, lock: str, group: str, *, within_s: float) -> None:
    """The connection has the lock from then on, unless this raises: Busy when another one has it, and ClientError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        channel = await connection.open_channel()
        try:
            await channel.queue_declare(lock, exclusive=True)
            channel.close_soon()
            return
        except ChannelClosed as error:
            if not isinstance(error, ResourceLocked):
                raise
            if loop.time() >= deadline:
                raise Busy(group) from error
        except BaseException:
            # The broker may declare it still: once it has closed the channel, it has done so or never will.
            with contextlib.suppress(ClientError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await channel.close()
                    channel = await connection.open_channel()
                    await channel.queue_delete(lock)
                    channel.close_soon()
            raise
        await asyncio.sleep(0.05)


def _lock_of(group: str) -> str:
    return f"{Names(group).exchange}.provisioning"


def _mark_of(group: str) -> str:
    return f"{_lock_of(group)}.moves"
