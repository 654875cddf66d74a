"""Reads the snapshot of one group or of many, by AMQP and by the management API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Generic, ParamSpec, TypeVar

from lbg_core.admin.amqp import AmqpAdmin
from lbg_core.admin.errors import AdminError, RecordUnavailable
from lbg_core.admin.management_admin import ManagementAdmin
from lbg_core.admin.record import HELD_READS, Record
from lbg_core.admin.snapshot import (
    UNKNOWN,
    ExchangeState,
    QueueStatus,
    Snapshot,
    Unknown,
    listed_publishers,
)
from lbg_core.client import ClientConnection
from lbg_core.group import (
    ONE_USER,
    Engine,
    GroupSpec,
    Names,
    Permissions,
    Topology,
    topology_of,
)
from lbg_core.group.topology import exchanges_of, queues_of

P = ParamSpec("P")
T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Shared readings: each caller gets one that began after its call. Calls during a reading share the next one. So
    there is one at a time, whatever the number of callers."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def __call__(self) -> T:
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way))
            self._next.add_done_callback(seen)
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._under_way, self._next = self._next, None
        return await self._read()


def seen(task: asyncio.Task[object]) -> None:
    """Marks a task's error as retrieved: its waiters get it, and there may be none."""
    if not task.cancelled():
        task.exception()


AT_A_TIME = 16

READ_S = 3.0
"""For one record. A record whose nodes are down must not delay the creation of another group."""

READ_AGAIN_S = 30.0
"""After one that could not be read, before it is tried again."""


class PrefixIndex:
    """Prefixes of groups, as read from their records; valid while a group's exchanges exist.

    To know that, a queue of our own is bound to the members' exchange before the record is read, with a key that
    is never published with: the binding goes when the exchange does, whoever deletes it, and does not come back with a
    group that is made anew under the same name.
    """

    def __init__(self, amqp: AmqpAdmin, management: ManagementAdmin) -> None:
        self._amqp = amqp
        self._management = management
        self._connection: ClientConnection | None = None
        self._marker = ""
        self._prefixes: dict[str, str] = {}
        self._unread: dict[str, float] = {}
        self._reading = SingleFlight(self._read)

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
        self._prefixes = {
            group: prefix for group, prefix in self._prefixes.items() if Names(group).members in bound
        }
        now = asyncio.get_running_loop().time()
        self._unread = {group: until for group, until in self._unread.items() if until > now}
        new = [group for group in groups if group not in self._prefixes and group not in self._unread]
        room = asyncio.Semaphore(AT_A_TIME)
        read = await asyncio.gather(*(self._prefix(group, room) for group in new))
        prefixes = self._prefixes | {
            group: one for group, one in zip(new, read, strict=True) if one is not None
        }
        return (
            {group: prefixes[group] for group in groups if group in prefixes},
            [group for group in groups if group in self._unread],
        )

    async def _have_marker(self) -> None:
        connection = await self._amqp.link.connection()
        if connection is not self._connection:
            self._prefixes = {}
            self._marker = await self._amqp.own_queue()
            self._connection = connection

    async def _prefix(self, group: str, room: asyncio.Semaphore) -> str | None:
        async with room:
            # Refused where it was deleted meanwhile, or in part; or we may not.
            refused = await self._amqp.bind_own(self._marker, [Names(group).members], keys=("nothing",))
            try:
                async with asyncio.timeout(READ_S):
                    record = await self._amqp.record(group)
            except (TimeoutError, RecordUnavailable):
                self._unread[group] = asyncio.get_running_loop().time() + READ_AGAIN_S
                return None
            spec = None if record is None else record.spec_of(group)
            if spec is not None and not refused:
                self._prefixes[group] = spec.hash_prefix
            return None if spec is None else spec.hash_prefix


Unread = dict[tuple[str, ...], str]
"""Causes for which parts of a snapshot are unknown."""

NO_API = "no management API was given"

BY_NAME_MAX = 64
"""Up to so many queues are read one by one before they are listed."""


class SnapshotReader:
    """`management` None: what AMQP alone cannot read stays unknown."""

    def __init__(self, amqp: AmqpAdmin, management: ManagementAdmin | None) -> None:
        self._amqp = amqp
        self._management = management
        self._prefixes = PrefixIndex(amqp, management) if management is not None else None
        self.surveyed: Mapping[str, Snapshot] = {}
        """Snapshots of the last survey, from `_last`: its groups and lists."""
        self._last: tuple[tuple[GroupSpec, ...], tuple[object, ...]] = (), ()

    async def observe(self, group: str, *, desired: GroupSpec | None) -> Snapshot:
        """Raises RecordUnavailable while a client keeps the record: taken for lost, it would be made anew without the
        pause, or the change of the number of queues, that it states."""
        record = await self._amqp.record(group)
        snapshot = await self._observed(group, desired, record)
        config = Names(group).config
        status = snapshot.queues.get(config)
        is_counted = (
            not snapshot.engine.is_rabbitmq and isinstance(status, QueueStatus) and status.unacked == 0
        )
        if record is None and not is_counted and snapshot.there.keys() > {config}:
            record = await self._amqp.record(group, reads=HELD_READS)
            snapshot = await self._observed(group, desired, record)
            status = snapshot.queues.get(config)
            if record is None and isinstance(status, QueueStatus) and status.unacked not in (0, UNKNOWN):
                raise RecordUnavailable(group, cause="a client reads it, and does not return it")
        if record is None and not snapshot.is_empty:  # it may have lost its record
            stream = await self._amqp.counts(Names(group).parked)
            if isinstance(stream, QueueStatus):
                snapshot = await self._observed(group, desired, None, has_parking=True)
        return snapshot

    async def observe_many(
        self, management: ManagementAdmin, specs: Sequence[GroupSpec]
    ) -> Mapping[str, Snapshot]:
        """Snapshot of each group from the lists, by its name. Records and bindings are not read: where a record's queue
        is, the record is taken to be that of the spec. Where no list has changed since the last survey, it is the same
        object.

        Raises AdminError where exchanges or queues cannot be listed.
        """
        engine = await self._amqp.engine()
        groups = [spec.name for spec in specs]
        why: Unread = {}
        exchanges, queues, users, permissions, policies = await asyncio.gather(
            management.exchanges_of(groups),
            management.queues_of(groups, is_sampled=engine.is_rabbitmq),
            or_unknown("users", why, management.users),
            or_unknown("permissions", why, management.all_permissions),
            or_unknown("policies", why, management.policies),
        )
        lists = (engine, exchanges, queues, users, permissions)
        last_specs, last_lists = self._last
        is_same = last_specs == tuple(specs) and all(map(is_, last_lists, lists))
        if is_same and not why and not policies:
            return self.surveyed
        snapshots = {}
        for spec in specs:
            names = Names(spec.name)
            granted = UNKNOWN if permissions is UNKNOWN else permissions.get(spec.client_username)
            publishers = listed_publishers(spec, queues[spec.name], granted)
            has_parking = names.parked in queues[spec.name]
            needed: dict[str, ExchangeState | Unknown | None] = {
                one.name: None for one in exchanges_of(names, has_parking=has_parking)
            }
            expected: dict[str, QueueStatus | Unknown | None] = {
                one.name: None for one in queues_of(spec, engine, publishers, has_parking=has_parking)
            }
            record: Record | None = None
            if names.moves in queues[spec.name]:
                # Keys may move: the record states between which numbers of queues.
                record = await self._amqp.record(spec.name)
            elif names.config in queues[spec.name]:
                record = Record(spec.to_record(), publishers=publishers, paused=None, has_parking=has_parking)
            snapshots[spec.name] = Snapshot(
                engine,
                record=record,
                exchanges={**needed, **exchanges[spec.name]},
                queues={**expected, **queues[spec.name]},
                users=users,
                permissions=granted,
                publisher_permissions=UNKNOWN
                if permissions is UNKNOWN
                else permissions.get(publishers.username),
                policies=policies,
                has_parked_stream=has_parking and names.config not in queues[spec.name],
                is_driven=await self._is_driven(names, queues[spec.name]),
                why=why,
            )
        if not why and not policies:
            self._last = tuple(specs), lists
            self.surveyed = snapshots
        return snapshots

    async def _observed(
        self, group: str, desired: GroupSpec | None, record: Record | None, *, has_parking: bool = False
    ) -> Snapshot:
        engine = await self._amqp.engine()
        has_parking = has_parking or (record is not None and record.has_parking)
        recorded = None if record is None else record.spec_of(group)
        spec = desired or recorded
        publishers = record.publishers if record is not None else ONE_USER
        topology = (
            topology_of(spec, engine, publishers, has_parking=has_parking) if spec is not None else None
        )
        why: Unread = {}
        management = await self._reachable_management(why)
        base = Snapshot(
            engine,
            record=record,
            has_parked_stream=record is None and has_parking,
            channel_max=await self._amqp.channel_max(),
            why=why,
        )
        if management is None:
            return await self._by_amqp(base, Names(group), topology, why)
        snapshot = await self._by_both(
            management, base, Names(group), spec, topology, why, is_desired=desired is not None
        )
        snapshot = replace(snapshot, is_driven=await self._is_driven(Names(group), snapshot.queues))
        if desired is None or recorded is not None:
            return snapshot
        assert self._prefixes is not None
        read = await or_unknown("prefixes", why, self._prefixes.but, group)
        if read is UNKNOWN:
            return snapshot
        prefixes, unread = read
        if unread:
            why["prefixes",] = f"the records of these groups are out of reach: {', '.join(unread)}"
        return replace(snapshot, prefixes=prefixes)

    async def _is_driven(
        self, names: Names, queues: Mapping[str, QueueStatus | Unknown | None]
    ) -> bool | None:
        """Asked only where a change is on its way, or has left something. None where it ends meanwhile."""
        if queues.get(names.moves) is None:
            return None
        is_driven = await self._amqp.locks.is_driven(names.group)
        return is_driven if is_driven or await self._amqp.counts(names.moves) is not None else None

    async def _by_amqp(
        self, base: Snapshot, names: Names, topology: Topology | None, why: Unread
    ) -> Snapshot:
        exchanges = await self._amqp.exchanges(_exchange_names(names, topology))
        queues = await self._probed_queues(names, topology)
        why |= _refused(names, {**exchanges, **queues})
        return replace(base, exchanges=exchanges, queues=queues)

    async def _by_both(
        self,
        management: ManagementAdmin,
        base: Snapshot,
        names: Names,
        spec: GroupSpec | None,
        topology: Topology | None,
        why: Unread,
        *,
        is_desired: bool,
    ) -> Snapshot:
        needed = topology if is_desired else None
        listed = await or_unknown("exchanges", why, _exchanges, management, base.engine, names, needed)
        exchanges: dict[str, ExchangeState | Unknown | None] = dict.fromkeys(_exchange_names(names, topology))
        exchanges |= dict.fromkeys(exchanges, UNKNOWN) if listed is UNKNOWN else listed
        present = [name for name, one in exchanges.items() if one is not None]
        policies = await or_unknown("policies", why, management.policies)
        is_plain = base.record is not None and policies == ()
        queues = await or_unknown(
            "queues", why, _queues, management, base.engine, names, needed, is_plain=is_plain
        )
        counted = await self._counted_queues(names, topology, queues)
        why |= _refused(names, counted)
        bindings = await or_unknown("bindings", why, management.bindings, present)
        permissions: Permissions | Unknown | None = None
        publisher_permissions: Permissions | Unknown | None = None
        if spec is not None:
            permissions = await or_unknown("permissions", why, management.permissions, spec.client_username)
        if base.publishers.username:
            publisher_permissions = await or_unknown(
                "the publishers' permissions", why, management.permissions, base.publishers.username
            )
        snapshot = replace(base, users=await or_unknown("users", why, management.users))
        if len(users := snapshot.users_of(names.group)) > 1:
            snapshot = replace(
                snapshot, connections=await or_unknown("connections", why, management.connections, users)
            )
        return replace(
            snapshot,
            exchanges=exchanges,
            queues=counted,
            bindings=bindings,
            permissions=permissions,
            publisher_permissions=publisher_permissions,
            policies=policies,
        )

    async def _probed_queues(
        self, names: Names, topology: Topology | None
    ) -> dict[str, QueueStatus | Unknown | None]:
        """Reads queues by name, without a list; those beyond the record's are found by counting up."""
        names_probed = (
            [queue.name for queue in topology.queues]
            if topology
            else [names.parent, names.unrouted, names.dead, names.config]
        )
        statuses: dict[str, QueueStatus | Unknown | None] = {**await self._amqp.counts_of(names_probed)}
        if topology is None and statuses[names.parent] is None:
            del statuses[names.parent]
        number = sum(names.number_of(name) is not None for name in names_probed)
        while isinstance(status := await self._amqp.counts(names.queue(number)), QueueStatus):
            statuses[names.queue(number)] = status
            number += 1
        if isinstance(status := await self._amqp.counts(names.validation), QueueStatus):
            statuses[names.validation] = status
        return statuses

    async def _counted_queues(
        self, names: Names, topology: Topology | None, listed: Mapping[str, QueueStatus] | Unknown
    ) -> dict[str, QueueStatus | Unknown | None]:
        """The listed queues with the counts that AMQP gives now."""
        if listed is UNKNOWN:
            return await self._probed_queues(names, topology)
        queue_names = [queue.name for queue in topology.queues] if topology else [names.config]
        statuses: dict[str, QueueStatus | Unknown | None] = dict.fromkeys(queue_names)
        for name, counts in (await self._amqp.counts_of(list(listed))).items():
            statuses[name] = listed[name].counted(counts)
        return statuses

    async def _reachable_management(self, why: Unread) -> ManagementAdmin | None:
        parts = ("users", "permissions", "bindings", "policies", "prefixes")
        if self._management is None:
            why[parts] = NO_API
            return None
        try:
            await self._management.check()
        except AdminError as error:
            why[parts] = str(error)
            return None
        return self._management


def _refused(names: Names, objects: Mapping[str, ExchangeState | QueueStatus | Unknown | None]) -> Unread:
    """The reasons for counts that AMQP refused."""
    refused = [
        name
        for name, one in objects.items()
        if one is UNKNOWN or (isinstance(one, QueueStatus) and one.ready is UNKNOWN and not one.is_down)
    ]
    why = (
        "RabbitMQ from 4.3 on counts a queue for those users alone who may do something with it: "
        f"`lbg group create {names.group} …` with an administrator's login gives the group's user that permission"
    )
    return {tuple(refused): why} if refused else {}


async def or_unknown(
    part: str, why: Unread, read: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs
) -> T | Unknown:
    """The reading, or UNKNOWN with the reason noted."""
    try:
        return await read(*arguments, **named)
    except AdminError as error:
        why[part,] = str(error)
        return UNKNOWN


async def _exchanges(
    management: ManagementAdmin, engine: Engine, names: Names, needed: Topology | None
) -> Mapping[str, ExchangeState]:
    """All of the group's; where some are `needed` and a list is dear, those of them."""
    if engine.is_rabbitmq and needed is not None:
        return await management.exchanges_named([one.name for one in needed.exchanges])
    return (await management.exchanges_of([names.group]))[names.group]


async def _queues(
    management: ManagementAdmin,
    engine: Engine,
    names: Names,
    needed: Topology | None,
    *,
    is_plain: bool,
) -> Mapping[str, QueueStatus]:
    """All of the group's; where some are `needed` and a list is dear, those of them.

    `is_plain`: no policy can be on them, and no others are searched.
    """
    if engine.is_rabbitmq and needed is not None and len(needed.queues) <= BY_NAME_MAX:
        statuses = await management.queues_named([one.name for one in needed.queues])
        if not statuses or is_plain:
            return statuses
    return (await management.queues_of([names.group], is_sampled=engine.is_rabbitmq))[names.group]


def _exchange_names(names: Names, topology: Topology | None) -> list[str]:
    if topology is not None:
        return [exchange.name for exchange in topology.exchanges]
    return [names.unrouted_exchange, names.exchange, names.dlx, names.members, names.validate]
