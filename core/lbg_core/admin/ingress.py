"""Ingress of a group: closed for every publisher, and opened again.

A repartition closes it for its time, and an administrator for a pause, which the group's record states: what opens
ingress again leaves it closed while it is paused. A changed pattern of permissions has all that is needed to restore
it (`lbg_core.admin.ingress_permissions`), so that a process that was killed leaves all that its successor needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from lbg_core.admin.actions import ActOnQueue, OpenIngress
from lbg_core.admin.ingress_permissions import allows, is_without, without
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management_admin import ManagementAdmin, with_write
from lbg_core.admin.plan import existing, require_by_hand
from lbg_core.admin.progress import Progress, Report, Stage, unreported
from lbg_core.admin.protocol import BrokerAdmin, observe_existing, renew_unchanged, rewrite_record
from lbg_core.admin.record import INGRESS, paused_words
from lbg_core.admin.snapshot import Snapshot
from lbg_core.group import Names, is_native


@dataclass(frozen=True, slots=True)
class QueueIngress:
    """Of a partitioned queue of the embedded broker, which refuses what comes while it is closed."""

    admin: BrokerAdmin
    queue: str

    async def ensure_closed(self) -> bool:
        """Closes it, with what was opened since the last call. False if a publisher was connected meanwhile."""
        await self.admin.perform(ActOnQueue(self.queue, "ingress", {"open": False}))
        return True

    async def open(self) -> None:
        await self.admin.perform(ActOnQueue(self.queue, "ingress", {"open": True}))


REPARTITIONED = "the number of queues of group {} changes"
INGRESS_PAUSED = "ingress of group {} is paused"
"""Reasons with which connections of publishers are closed."""

LISTED_S = 6.0
"""For RabbitMQ to list each connection, and its publishes: it does so every `collect_statistics_interval`, 5 s by
default (https://www.rabbitmq.com/docs/management#statistics-interval)."""


@dataclass(slots=True)
class PermissionIngress:
    """By the permission to write to the group's exchange, taken from every user of the virtual host who has it.

    The embedded broker checks it at each message. A channel of RabbitMQ caches the result for as long as it is
    busy (rabbit_channel:check_resource_access/4; the cache ends when it hibernates, after a second of silence at the
    least), so there the connections of before that publish are closed as well.

    `reason`: that with which they are closed. `stays_closed`: ingress is paused, so `open` leaves it closed.
    """

    admin: BrokerAdmin
    management: ManagementAdmin
    names: Names
    closes: bool
    reason: str = REPARTITIONED
    stays_closed: bool = False
    _of_before: dict[str, str] = field(default_factory=dict)
    """Connections that were there when their user lost the permission, and whose they are."""
    _seen: set[str] = field(default_factory=set)
    """All connections that were listed at that time."""
    _withdrawn: set[str] = field(default_factory=set)
    _listed_at: float = 0.0
    _is_new: bool = True

    @property
    def unlisted_s(self) -> float:
        """Seconds for which RabbitMQ may list connections from before for the first time; 0 on the embedded broker."""
        return max(0.0, self._listed_at - asyncio.get_running_loop().time()) if self.closes else 0.0

    async def ensure_closed(self) -> bool:
        was_closed = not await self._withdraw()
        had_late = await self._cut_late()
        return not await self._cut_publishers() and was_closed and not had_late

    async def open(self) -> None:
        if not self.stays_closed:
            await self.admin.perform(OpenIngress(self.names.group))

    async def _withdraw(self) -> bool:
        """True if any user still had it."""
        exchange = self.names.exchange
        async with self.management.lock_permissions(self.names.group):
            permissions = await self.management.all_permissions()
            writers = [user for user, now in permissions.items() if allows(now.write, exchange)]
            for user in writers:
                await self.admin.perform(
                    with_write(user, permissions[user], without(permissions[user].write, exchange))
                )
        if self.closes:
            before = [user for user, now in permissions.items() if is_without(now.write, exchange)]
            for user in (*writers, *(before if self._is_new else ())):
                connections = await self.management.connections_of(user)
                self._of_before |= dict.fromkeys(connections, user)
                self._seen.update(connections)
            if writers or self._is_new:
                self._listed_at = asyncio.get_running_loop().time() + LISTED_S
            self._is_new = False
            self._withdrawn = {*writers, *before}
        return bool(writers)

    async def _cut_late(self) -> bool:
        """Closes connections that RabbitMQ lists for the first time, and over which messages were published: only those
        from before could, as a channel of later is refused. True if there was any."""
        if not self.unlisted_s:
            return False
        is_any = False
        for user in self._withdrawn:
            for connection in await self.management.connections_of(user):
                if connection in self._seen:
                    continue
                if not await self.management.has_published(connection):
                    continue
                called = await self.management.connection_name(connection)
                if called is not None and not self._is_spared(called):
                    await self._close(connection)
                    is_any = True
        return is_any

    async def _cut_publishers(self) -> bool:
        """True if there was any to close, or one without a sample yet: RabbitMQ describes and closes a connection from
        its first sample on."""
        if not self._of_before:
            return False
        users = set(self._of_before.values())
        present = {one for user in users for one in await self.management.connections_of(user)}
        own = await self._own_users()
        is_over = True
        for connection, user in list(self._of_before.items()):
            called = await self.management.connection_name(connection)
            if connection not in present or (called is not None and self._is_spared(called)):
                del self._of_before[connection]
            elif called is None:
                is_over = False
            elif user in own or await self.management.has_published(connection):
                await self._close(connection)
                is_over = False
        return not is_over

    async def _close(self, connection: str) -> None:
        await self.management.close_connection(connection, reason=self.reason.format(self.names.group))

    async def _own_users(self) -> Collection[str]:
        """The group's users: a connection of one that is not a member's is a publisher's."""
        users = await self.management.users()
        return {name for name, user in users.items() if user.made_for == self.names.group}

    def _is_spared(self, called: str) -> bool:
        """True if a connection of this name is one of ours that does not publish to the group."""
        return called.startswith("lbg ") and not called.startswith(f"lbg publish {self.names.group} ")


Ingress = QueueIngress | PermissionIngress

PUBLISHERS_S = 15.0
"""For connections of publishers to be closed: RabbitMQ describes one from its first sample on, up to 5 s after it was
opened."""

CLOSE_LOOK_S = 0.5


async def pause_ingress(
    admin: LiveAdmin,
    group: str,
    *,
    is_paused: bool = True,
    within_s: float = PUBLISHERS_S,
    require: Callable[[str, Snapshot], None] = require_by_hand,
    report: Report = unreported,
) -> bool:
    """Pauses the ingress of a group, or resumes it, as its record states from then on. Publishers of LBG wait, and go
    on by themselves; every other one is refused. Members go on.

    True if no connection of a publisher from before is left; on RabbitMQ, one that is may publish until it is idle for
    a second, and it takes `LISTED_S`, for connections that are not listed yet. `report` gets a line when those that are
    listed are closed. Killed at any time, it can be repeated. While the number of queues is changed, ingress stays
    closed.

    `require` raises for a group that the caller may not change. Raises NotOwned for a group of Kubernetes,
    GroupNotFound, RecordUnavailable, RecordUnreadable, Unsupported without a management API, Busy and AdminError.
    """
    names = Names(group)
    management = admin.management_for("ingress can only be paused")
    async with admin.lock(group):
        observed = await observe_existing(admin, group)
        require(group, observed)
        spec, record = existing(group, observed)
        # A change of the number of separate queues needs the permission withdrawn, and restores it itself.
        if not is_paused and (observed.queue_count_to_be is None or is_native(spec, observed.engine)):
            await admin.perform(OpenIngress(group))
        # Publishers wait for the record, and who is refused reads there why.
        words = paused_words(record.paused, INGRESS, is_paused=is_paused)
        record = await rewrite_record(admin, group, record, paused=words)
        if not is_paused:
            return True
        ingress = PermissionIngress(
            admin, management, names, closes=observed.engine.is_rabbitmq, reason=INGRESS_PAUSED
        )
        deadline = asyncio.get_running_loop().time() + within_s
        is_reported = False
        while not (is_closed := await ingress.ensure_closed()) or ingress.unlisted_s:
            if is_closed and not is_reported:
                report(Progress(Stage.REFUSED, figures={"left_s": ingress.unlisted_s}))
                is_reported = True
            if asyncio.get_running_loop().time() >= deadline:
                return False
            await renew_unchanged(admin, group, record)
            await asyncio.sleep(CLOSE_LOOK_S)
        return True
