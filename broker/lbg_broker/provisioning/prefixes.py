"""The hash prefixes of all groups, without reading every group's record for each group that is made."""

from __future__ import annotations

import asyncio

from lbg_broker.client import ClientConnection
from lbg_broker.group import GroupSpec, Names, SpecError

from .amqp_side import AmqpSide
from .errors import RecordUnavailable
from .management_side import ManagementSide
from .sharing import SharedReading

AT_A_TIME = 16

READ_S = 3.0
"""For one record. The queue of one group whose nodes are down is not to hold up the making of another."""

READ_AGAIN_S = 30.0
"""After one that could not be read, before it is tried again."""


class Prefixes:
    """What was read of a group holds for as long as its exchanges are there.

    To know that, a queue of our own is bound to the members' exchange before the record is read, with a key that
    nobody publishes with: the binding goes when the exchange does, whoever deletes it, and does not come back with a
    group that is made anew under the same name.
    """

    def __init__(self, amqp: AmqpSide, management: ManagementSide) -> None:
        self._amqp = amqp
        self._management = management
        self._connection: ClientConnection | None = None
        self._marker = ""
        self._known: dict[str, str] = {}
        self._unread: dict[str, float] = {}
        self._reading = SharedReading(self._read)

    async def but(self, group: str) -> tuple[dict[str, str], list[str]]:
        """The hash prefix of every other group, and the names of those whose records are out of reach.

        A group without a record, or with one that is none, has no prefix to compare.
        """
        prefixes, unread = await self._reading()
        return {name: prefix for name, prefix in prefixes.items() if name != group}, unread

    async def _read(self) -> tuple[dict[str, str], list[str]]:
        await self._have_marker()
        groups = await self._management.groups_with_exchange()
        bound = await self._management.bound_to(self._marker)
        self._known = {
            group: prefix for group, prefix in self._known.items() if Names(group).members in bound
        }
        now = asyncio.get_running_loop().time()
        self._unread = {group: until for group, until in self._unread.items() if until > now}
        new = [group for group in groups if group not in self._known and group not in self._unread]
        room = asyncio.Semaphore(AT_A_TIME)
        read = await asyncio.gather(*(self._prefix(group, room) for group in new))
        found = self._known | {group: one for group, one in zip(new, read, strict=True) if one is not None}
        return (
            {group: found[group] for group in groups if group in found},
            [group for group in groups if group in self._unread],
        )

    async def _have_marker(self) -> None:
        connection = await self._amqp.link.connection()
        if connection is not self._connection:
            self._known = {}
            self._marker = await self._amqp.own_queue()
            self._connection = connection

    async def _prefix(self, group: str, room: asyncio.Semaphore) -> str | None:
        async with room:
            # Refused where it was deleted meanwhile, or in part; or we may not.
            refused = await self._amqp.bind_own(self._marker, [Names(group).members], key="nothing")
            try:
                async with asyncio.timeout(READ_S):
                    spec = recorded(await self._amqp.record(group), group)
            except (TimeoutError, RecordUnavailable):
                self._unread[group] = asyncio.get_running_loop().time() + READ_AGAIN_S
                return None
            if spec is not None and not refused:
                self._known[group] = spec.hash_prefix
            return None if spec is None else spec.hash_prefix


def recorded(record: str | None, group: str) -> GroupSpec | None:
    """The group as its record has it; None where there is none, or none that can be read."""
    try:
        return None if record is None else GroupSpec.from_record(record, name=group)
    except SpecError:
        return None
