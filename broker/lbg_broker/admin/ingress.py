"""Ingress of a group: closed for every publisher, and opened again.

The changed pattern has all that is needed to restore it, so that nothing is stored elsewhere, and a process that was
killed in between leaves all that its successor needs. RabbitMQ's patterns are PCRE, the embedded broker's Python's:
both have lookaheads, and both match anywhere in the name ("Access Control").
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Protocol

from lbg_broker.admin.actions import ActOnQueue, OpenIngress, PutPermissions
from lbg_broker.admin.errors import REPARTITIONED
from lbg_broker.admin.management_admin import ManagementAdmin
from lbg_broker.admin.protocol import BrokerAdmin
from lbg_broker.group import Names, Permissions

_HEAD = re.compile(r"\^\(\?!((?:\\.|[A-Za-z0-9_-])+)\$\)\(\?=\[\\s\\S\]\*\?\(\?:")
_TAIL = "))"


def without(pattern: str, exchange: str) -> str:
    """`pattern` for all names but `exchange`; one that does not allow that anyway, as it is."""
    if not allows(pattern, exchange):
        return pattern
    excluded, rest = _parted(pattern)
    return _joined({**dict.fromkeys(excluded), re.escape(exchange): None}, rest)


def restored(pattern: str, exchange: str) -> str:
    """The pattern that `without` was given; any other pattern as it is."""
    excluded, rest = _parted(pattern)
    return _joined([one for one in excluded if one != re.escape(exchange)], rest)


def is_without(pattern: str, exchange: str) -> bool:
    """True if `without` took the exchange out of it."""
    return re.escape(exchange) in _parted(pattern)[0]


def allows(pattern: str, name: str) -> bool:
    """True if a user with this pattern may. One that Python cannot read is taken to allow everything."""
    try:
        return re.search(pattern or "^$", name) is not None
    except re.error:
        return True


def _parted(pattern: str) -> tuple[list[str], str]:
    excluded = []
    while (head := _HEAD.match(pattern)) is not None and pattern.endswith(_TAIL):
        excluded.append(head[1])
        pattern = pattern[head.end() : -len(_TAIL)]
    return excluded, pattern


def _joined(excluded: Iterable[str], rest: str) -> str:
    for name in reversed(list(excluded)):
        rest = rf"^(?!{name}$)(?=[\s\S]*?(?:{rest}{_TAIL}"
    return rest


class Ingress(Protocol):
    async def close(self) -> None: ...

    async def ensure_closed(self) -> bool:
        """Closes what was opened since the last call. False if a publisher was connected meanwhile."""
        ...

    async def open(self) -> None: ...


class QueueIngress:
    """Of a partitioned queue of the embedded broker, which refuses what comes while it is closed."""

    def __init__(self, admin: BrokerAdmin, queue: str) -> None:
        self._admin = admin
        self._queue = queue

    async def close(self) -> None:
        await self._admin.perform(ActOnQueue(self._queue, "ingress", {"open": False}))

    async def ensure_closed(self) -> bool:
        await self.close()
        return True

    async def open(self) -> None:
        await self._admin.perform(ActOnQueue(self._queue, "ingress", {"open": True}))


class PermissionIngress:
    """By the permission to write to the group's exchange, taken from every user of the virtual host who has it.

    The embedded broker checks it at each message. A channel of RabbitMQ caches the result for as long as it is
    busy (rabbit_channel:check_resource_access/4; the cache ends when it hibernates, after a second of silence at the
    least), so there the connections of before that publish are closed as well.
    """

    def __init__(
        self, admin: BrokerAdmin, management: ManagementAdmin, names: Names, *, closes: bool
    ) -> None:
        self._admin = admin
        self._management = management
        self._names = names
        self._closes = closes
        self._of_before: dict[str, str] = {}
        """Connections that were there when their user lost the permission, and whose they are."""
        self._is_new = True

    async def close(self) -> None:
        await self.ensure_closed()

    async def ensure_closed(self) -> bool:
        was_closed = not await self._withdraw()
        return not await self._cut_publishers() and was_closed

    async def open(self) -> None:
        await self._admin.perform(OpenIngress(self._names.group))

    async def _withdraw(self) -> bool:
        """True if any user still had it."""
        exchange = self._names.exchange
        permissions = await self._management.all_permissions()
        writers = [user for user, now in permissions.items() if allows(now.write, exchange)]
        for user in writers:
            await self._admin.perform(
                _written(user, permissions[user], without(permissions[user].write, exchange))
            )
        if self._closes:
            before = [user for user, now in permissions.items() if is_without(now.write, exchange)]
            for user in (*writers, *(before if self._is_new else ())):
                connections = await self._management.connections_of(user)
                self._of_before |= dict.fromkeys(connections, user)
            self._is_new = False
        return bool(writers)

    async def _cut_publishers(self) -> bool:
        """True if there was any to close, or one without a sample yet: RabbitMQ lists a connection a moment after it
        was opened, and describes and closes it from its first sample on. One that published in that moment is
        missed."""
        if not self._of_before:
            return False
        users = set(self._of_before.values())
        present = {one for user in users for one in await self._management.connections_of(user)}
        own = await self._own_users()
        reason = REPARTITIONED.format(self._names.group)
        is_over = True
        for connection, user in list(self._of_before.items()):
            called = await self._management.connection_name(connection)
            if connection not in present or (called is not None and self._is_spared(called)):
                del self._of_before[connection]
            elif called is None:
                is_over = False
            elif user in own or await self._management.has_published(connection):
                await self._management.close_connection(connection, reason=reason)
                is_over = False
        return not is_over

    async def _own_users(self) -> Collection[str]:
        """The group's users: a connection of one that is not a member's is a publisher's."""
        users = await self._management.users()
        return {name for name, user in users.items() if user.made_for == self._names.group}

    def _is_spared(self, called: str) -> bool:
        """True if a connection of this name is one of ours that does not publish to the group."""
        return called.startswith("lbg ") and not called.startswith(f"lbg publish {self._names.group} ")


async def restore_permissions(management: ManagementAdmin, group: str) -> None:
    """Restores the permissions that `PermissionIngress` revoked for this group."""
    exchange = Names(group).exchange
    for user, now in (await management.all_permissions()).items():
        if is_without(now.write, exchange):
            await management.put_permissions(_written(user, now, restored(now.write, exchange)))


def _written(user: str, now: Permissions, write: str) -> PutPermissions:
    return PutPermissions(user, Permissions(now.configure, write, now.read), before=now)
