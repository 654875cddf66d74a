"""`BrokerAdmin`, the protocol between administration and a broker, and what is made of it alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any, Protocol

from lbg_core.admin.actions import Action, WriteRecord
from lbg_core.admin.errors import Busy, GroupNotFound
from lbg_core.admin.record import Record
from lbg_core.admin.snapshot import Snapshot
from lbg_core.group import GroupSpec, Names
from lbg_core.group.key_moves import KeyMoveState
from lbg_core.group.members_protocol import Beat


class BrokerAdmin(Protocol):
    """The broker for provisioning, by any number of callers at a time. Each method raises AdminError when the broker
    cannot be reached."""

    def lock(self, group: str) -> AbstractAsyncContextManager[None]:
        """Be the only provisioner of `group` for as long as the block lasts; raises Busy while another one is."""
        ...

    async def renew_lock(self, group: str) -> bool:
        """For who holds the lock for long, and changes nothing meanwhile. True if it was lost: another caller may have
        changed the group. Raises Busy."""
        ...

    async def drive(self, group: str, *, is_over: bool = False) -> None:
        """Have others see that a command goes on with the change of the group's number of queues, until it is over."""
        ...

    async def observe(self, group: str, *, desired: GroupSpec | None = None) -> Snapshot:
        """One round of reading; the objects follow from `desired`, or else from the group's record."""
        ...

    async def perform(self, action: Action) -> None:
        """Make one change. Deleting what is not there is done at once."""

    async def groups(self) -> Sequence[str]:
        """The names of all groups, found by their records' queues; raises Unsupported without a management API."""
        ...

    async def listen(self, group: str, *, seconds: float) -> Sequence[Beat]:
        """The status reports that members of `group` send within `seconds`."""
        ...

    async def indexes(self, group: str, *, below: int) -> frozenset[int]:
        """The indexes below this one that a member has, whether it reports or not: those that have a mailbox."""
        ...

    async def key_moves(self, group: str) -> KeyMoveState:
        """State of the change of the group's number of queues, from its stream."""
        ...


async def observe_existing(admin: BrokerAdmin, group: str) -> Snapshot:
    """A group that is there. Raises GroupNotFound, AdminError, and SpecError for what cannot be a group's name."""
    Names(group)
    observed = await admin.observe(group)
    if observed.is_empty:
        raise GroupNotFound(group)
    return observed


async def rewrite_record(admin: BrokerAdmin, group: str, before: Record, **changes: Any) -> Record:
    """Writes the record with these fields unless it has them, and returns it. Raises AdminError."""
    record = replace(before, **changes)
    if record != before:
        await admin.perform(WriteRecord(group, record, before))
    return record


async def renew_unchanged(admin: BrokerAdmin, group: str, record: Record) -> None:
    """Renews the lock. Raises Busy, also where it was lost and another caller wrote a record in place of this one."""
    if await admin.renew_lock(group) and (await admin.observe(group)).record != record:
        raise Busy(group)
