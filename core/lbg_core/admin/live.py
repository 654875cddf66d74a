"""`BrokerAdmin` on a running broker: AMQP, and the management API where there is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from lbg_core.admin import moves_stream
from lbg_core.admin.actions import (
    Action,
    ActOnQueue,
    AppendEntry,
    CheckPolicies,
    DeleteQueue,
    DeleteUser,
    OpenIngress,
    PassFences,
    PutFence,
    PutPermissions,
    PutUser,
    ReturnMessages,
    RevokePermissions,
)
from lbg_core.admin.amqp import AmqpAdmin
from lbg_core.admin.errors import AdminError, Denied, Refused, StillInUse, Unreachable, Unsupported
from lbg_core.admin.lag import LagReader
from lbg_core.admin.management import ManagementApi
from lbg_core.admin.management_admin import ManagementAdmin
from lbg_core.admin.observe import NO_API, SnapshotReader
from lbg_core.admin.policies import require_order
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.record import Record
from lbg_core.admin.snapshot import QueueStatus, Snapshot, Unknown
from lbg_core.admin.status_reports import CollectedReports, collect_reports, member_reports
from lbg_core.client import ConnectionSettings
from lbg_core.group import Engine, GroupSpec, Names, Topology, is_native, stream_queues
from lbg_core.group.key_moves import KeyMoveState
from lbg_core.group.members_protocol import Beat


class LiveAdmin:
    """Both halves together. `where`: one address or several of the same virtual host, tried in turn. `api` None: only
    what AMQP can do; all else is unknown, or refused with the reason."""

    def __init__(
        self, where: ConnectionSettings | Sequence[ConnectionSettings], api: ManagementApi | None = None
    ) -> None:
        places = (where,) if isinstance(where, ConnectionSettings) else tuple(where)
        self.amqp = AmqpAdmin(places)
        lock = self.amqp.locks.of_permissions
        self._management = (
            None if api is None else ManagementAdmin(api, vhost=places[0].vhost, lock_permissions=lock)
        )
        self._observing = SnapshotReader(self.amqp, self._management)
        self.lag_reader = LagReader(self.amqp, self._management, self._surplus_queues)

    def lock(self, group: str) -> AbstractAsyncContextManager[None]:
        return self.amqp.locks.of(group)

    async def renew_lock(self, group: str) -> bool:
        return await self.amqp.locks.renew(group)

    async def drive(self, group: str, *, is_over: bool = False) -> None:
        await self.amqp.locks.drive(group, is_over=is_over)

    async def close(self) -> None:
        try:
            await self.amqp.close()
        finally:  # also for who does not wait for a broker that is silent
            if self._management is not None:
                await self._management.close()

    async def check(self) -> Engine:
        """Engine that answers, once both it and its management API accept the login. Raises AdminError, and
        Unsupported."""
        engine = await self.amqp.engine()
        await self.management_for("the login can only be checked").check()
        return engine

    async def groups(self) -> Sequence[str]:
        return await self.management_for("groups can only be listed").groups()

    async def listen(self, group: str, *, seconds: float) -> Sequence[Beat]:
        return await member_reports(self.amqp, group, seconds=seconds)

    async def indexes(self, group: str, *, below: int) -> frozenset[int]:
        return await self.amqp.mailboxes(group, range(below))

    async def observe(self, group: str, *, desired: GroupSpec | None = None) -> Snapshot:
        return await self._observing.observe(group, desired=desired)

    async def observe_many(self, specs: Sequence[GroupSpec]) -> Mapping[str, Snapshot]:
        """Snapshot of each group from lists, by its name; see `lbg_core.admin.observe`."""
        management = self.management_for("groups can only be surveyed")
        return await self._observing.observe_many(management, specs)

    async def observe_queues(self, spec: GroupSpec) -> Snapshot:
        """Snapshot of the queues that carry the group's messages, and of nothing else: for a view that is drawn several
        times a second. The record is taken to be that of `spec`. Raises AdminError."""
        engine = await self.amqp.engine()
        names = stream_queues(spec, engine)
        queues: Mapping[str, QueueStatus | Unknown | None] = {}
        if is_native(spec, engine) and self._management is not None:
            with suppress(AdminError):  # AMQP counts its messages
                queues = (await self._management.queues_of([spec.name], is_sampled=False))[spec.name]
        queues = {name: queues.get(name) for name in names} if queues else await self.amqp.counts_of(names)
        return Snapshot(engine, record=Record(spec.to_record(), paused=None), queues=queues)

    async def listen_many(
        self, groups: Sequence[str], *, seconds: float
    ) -> Mapping[str, CollectedReports | Refused]:
        """The status reports of each group within `seconds`, or why they could not be received."""
        return await collect_reports(self.amqp, groups, seconds=seconds)

    async def key_moves(self, group: str) -> KeyMoveState:
        """State of the change of the group's number of queues, from its stream as it is now. Raises AdminError, and
        EntryError for a stream that cannot be read."""
        return await moves_stream.read(self.amqp, group)

    def _surplus_queues(self, group: str) -> list[str]:
        """Those of the last survey, and only while keys move."""
        snapshot, names = self._observing.surveyed.get(group), Names(group)
        if snapshot is None or snapshot.queues.get(names.moves) is None:
            return []
        return [
            name for name, status in snapshot.queues.items() if status is not None and names.is_served(name)
        ]

    async def head_of(self, queue: str, count: int, body_bytes: int) -> Sequence[Mapping[str, Any]] | None:
        """First messages of a queue that wait at the embedded broker, which shows them without taking them. None
        without its management API, and for a login that may not use it, as a group's."""
        if self._management is None:
            return None
        try:
            return await self._management.head_of(queue, count, body_bytes)
        except Denied:
            return None

    async def perform(self, action: Action) -> None:
        match action:
            case CheckPolicies(group, topology):
                await self._check_policies(group, topology)
            case AppendEntry(group, entry):
                await moves_stream.append(self.amqp, group, entry)
            case PutFence(queue, move):
                await moves_stream.put_fence(self.amqp, queue, move)
            case ReturnMessages(group, number):
                await moves_stream.return_messages(self.amqp, group, number)
            case PassFences(group, number, move):
                await moves_stream.pass_fences(self.amqp, group, number, move)
            case (
                OpenIngress()
                | ActOnQueue()
                | PutUser()
                | DeleteUser()
                | PutPermissions()
                | RevokePermissions()
            ):
                await self.management_for(str(action)).perform(action)
            case _:
                if isinstance(action, DeleteQueue) and (action.only_idle or action.only_empty):
                    await self._require_answers(action.name)
                await self.amqp.perform(action)

    async def _check_policies(self, group: str, topology: Topology) -> None:
        management = self.management_for("policies can only be checked")
        policies = await management.policies()
        if not policies:
            return
        engine = await self.amqp.engine()
        queues = await management.queues_of([group], is_sampled=engine.is_rabbitmq)
        snapshot = Snapshot(engine, queues=queues[group], policies=policies)
        require_order(group, topology, snapshot)

    async def _require_answers(self, queue: str) -> None:
        """Raises StillInUse for a queue that is down: RabbitMQ's count is 0, and it may have messages. An API that
        cannot be reached counts as none: the caller got that with the snapshot of the group."""
        if self._management is None or not (await self.amqp.engine()).is_rabbitmq:
            return
        try:
            status = (await self._management.queues_named([queue])).get(queue)
        except (Unreachable, Denied):
            return
        if status is not None and status.is_down:
            raise StillInUse.at(queue, Kind.QUEUE_DOWN)

    def management_for(self, purpose: str) -> ManagementAdmin:
        """Raises Unsupported when there is none to do `purpose`."""
        if self._management is None:
            raise Unsupported(f"{purpose}: needs the management API, and {NO_API}")
        return self._management
