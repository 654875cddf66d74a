"""`BrokerAdmin` on a broker: AMQP for what carries messages, the management API, if there is one, for the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TypeVar

from lbg_broker.client import ConnectionSettings
from lbg_broker.group import Engine, GroupSpec, Names, Permissions, SpecError, Topology, topology_of

from .actions import (
    Action,
    Bind,
    CheckPolicies,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteUser,
    PutPermissions,
    PutUser,
    RevokePermissions,
    Unbind,
    WriteRecord,
)
from .admin import Beat
from .amqp_side import AmqpSide
from .errors import AdminError, Unsupported, would_lose
from .management import ManagementApi
from .management_side import ManagementSide
from .observed import UNKNOWN, ExchangeSeen, Observed, QueueSeen, Unknown
from .policies import losses

T = TypeVar("T")
NO_API = "no management API was given"


class LiveAdmin:
    """Both halves together. `where`: one address or several of the same virtual host, tried in turn. `api` None: only
    what AMQP can do; all else is unknown, or refused with the reason."""

    def __init__(
        self, where: ConnectionSettings | Sequence[ConnectionSettings], api: ManagementApi | None = None
    ) -> None:
        places = (where,) if isinstance(where, ConnectionSettings) else tuple(where)
        self.amqp = AmqpSide(places)
        self._management = ManagementSide(api, vhost=places[0].vhost) if api is not None else None

    def lock(self, group: str) -> AbstractAsyncContextManager[None]:
        return self.amqp.lock(group)

    async def close(self) -> None:
        await self.amqp.close()
        if self._management is not None:
            await self._management.close()

    async def check(self) -> Engine:
        """What answers, once both it and its management API let us in. Raises AdminError, and Unsupported."""
        engine = await self.amqp.engine()
        await self._require_management("the login can only be checked").check()
        return engine

    async def groups(self) -> Sequence[str]:
        return await self._require_management("groups can only be listed").groups()

    async def listen(self, group: str, *, seconds: float) -> Sequence[Beat]:
        return await self.amqp.listen(group, seconds=seconds)

    async def observe(self, group: str, *, wanted: GroupSpec | None = None) -> Observed:
        engine = await self.amqp.engine()
        record = await self.amqp.record(group)
        spec = wanted or _recorded(record, group)
        topology = topology_of(spec, engine) if spec is not None else None
        why: dict[str, str] = {}
        management = await self._reachable_management(why)
        base = Observed(engine, record=record, why=why)
        if management is None:
            return await self._observe_by_amqp(base, Names(group), topology)
        return await self._observe_by_both(management, base, Names(group), spec, topology)

    async def perform(self, action: Action) -> None:
        amqp = self.amqp
        match action:
            case DeclareExchange(exchange):
                await amqp.declare_exchange(exchange)
            case DeclareQueue(queue):
                await amqp.declare_queue(queue)
            case CheckPolicies(group, topology):
                await self._check_policies(group, topology)
            case Bind(_, bindings):
                await amqp.bind(bindings)
            case Unbind(_, bindings):
                await amqp.unbind(bindings)
            case WriteRecord(group, text):
                await amqp.write_record(group, text)
            case DeleteExchange(name):
                await amqp.delete_exchange(name)
            case DeleteQueue(name, only_idle):
                engine = await amqp.engine()
                await amqp.delete_queue(name, only_idle=only_idle, checked_by_broker=not engine.is_rabbitmq)
            case PutUser():
                await self._require_management(str(action)).put_user(action)
            case DeleteUser(name):
                await self._require_management(str(action)).delete_user(name)
            case PutPermissions():
                await self._require_management(str(action)).put_permissions(action)
            case RevokePermissions(user):
                await self._require_management(str(action)).revoke_permissions(user)

    async def _observe_by_amqp(self, base: Observed, names: Names, topology: Topology | None) -> Observed:
        exchanges = _exchange_names(names, topology)
        return replace(
            base,
            exchanges={
                name: ExchangeSeen() if await self.amqp.has_exchange(name) else None for name in exchanges
            },
            queues=await self._probed_queues(names, topology),
        )

    async def _observe_by_both(
        self,
        management: ManagementSide,
        base: Observed,
        names: Names,
        spec: GroupSpec | None,
        topology: Topology | None,
    ) -> Observed:
        why = dict(base.why)
        listed = await _or_unknown("exchanges", management.exchanges(names), why)
        exchanges: dict[str, ExchangeSeen | Unknown | None] = dict.fromkeys(_exchange_names(names, topology))
        if listed is UNKNOWN:
            exchanges = dict.fromkeys(exchanges, UNKNOWN)
        else:
            exchanges |= listed
        present = [name for name, one in exchanges.items() if one is not None]
        queues = await _or_unknown("queues", management.queues(names), why)
        counted = await self._counted_queues(names, topology, queues)
        bindings = await _or_unknown("bindings", management.bindings(present), why)
        permissions: Permissions | Unknown | None = None
        if spec is not None:
            permissions = await _or_unknown("permissions", management.permissions(spec.client_username), why)
        seen = replace(base, users=await _or_unknown("users", management.users(), why))
        if len(users := seen.users_of(names.group)) > 1:
            seen = replace(
                seen, connections=await _or_unknown("connections", management.connections(users), why)
            )
        return replace(
            seen,
            exchanges=exchanges,
            queues=counted,
            bindings=bindings,
            permissions=permissions,
            policies=await _or_unknown("policies", management.policies(), why),
            prefixes=await _or_unknown("prefixes", self._prefixes(management, but=names.group), why),
            why=why,
        )

    async def _check_policies(self, group: str, topology: Topology) -> None:
        management = self._require_management("policies can only be checked")
        queues = await management.queues(Names(group))
        seen = Observed(await self.amqp.engine(), queues=queues, policies=await management.policies())
        if losing := losses(topology, seen):
            raise would_lose(group, losing)

    async def _probed_queues(
        self, names: Names, topology: Topology | None
    ) -> dict[str, QueueSeen | Unknown | None]:
        """Without a list, ask by name; queues beyond the known ones are found by counting up."""
        asked = (
            [queue.name for queue in topology.queues]
            if topology
            else [names.unrouted, names.dead, names.config]
        )
        found: dict[str, QueueSeen | Unknown | None] = {name: await self.amqp.counts(name) for name in asked}
        number = sum(name.startswith(names.queue(0)[:-1]) for name in asked)
        while (seen := await self.amqp.counts(names.queue(number))) is not None:
            found[names.queue(number)] = seen
            number += 1
        if (seen := await self.amqp.counts(names.validation)) is not None:
            found[names.validation] = seen
        return found

    async def _counted_queues(
        self, names: Names, topology: Topology | None, listed: Mapping[str, QueueSeen] | Unknown
    ) -> dict[str, QueueSeen | Unknown | None]:
        """The listed queues with the counts that AMQP gives now."""
        if listed is UNKNOWN:
            return await self._probed_queues(names, topology)
        wanted = [queue.name for queue in topology.queues] if topology else [names.config]
        found: dict[str, QueueSeen | Unknown | None] = dict.fromkeys(wanted)
        for name, one in listed.items():
            counts = await self.amqp.counts(name)
            found[name] = counts and replace(one, ready=counts.ready, consumers=counts.consumers)
        return found

    async def _prefixes(self, management: ManagementSide, *, but: str) -> dict[str, str]:
        """The hash prefix of every other group; a group whose record cannot be read has none to compare."""
        found = {}
        for group in await management.groups():
            spec = _recorded(await self.amqp.record(group), group) if group != but else None
            if spec is not None:
                found[group] = spec.hash_prefix
        return found

    async def _reachable_management(self, why: dict[str, str]) -> ManagementSide | None:
        what = "users, permissions, bindings, policies, prefixes"
        if self._management is None:
            why[what] = NO_API
            return None
        try:
            await self._management.check()
        except AdminError as error:
            why[what] = str(error)
            return None
        return self._management

    def _require_management(self, what: str) -> ManagementSide:
        if self._management is None:
            raise Unsupported(f"{what}: needs the management API, and {NO_API}")
        return self._management


async def _or_unknown(what: str, reading: Awaitable[T], why: dict[str, str]) -> T | Unknown:
    """The reading, or UNKNOWN with the reason noted."""
    try:
        return await reading
    except AdminError as error:
        why[what] = str(error)
        return UNKNOWN


def _exchange_names(names: Names, topology: Topology | None) -> list[str]:
    if topology is not None:
        return [exchange.name for exchange in topology.exchanges]
    return [names.unrouted_exchange, names.exchange, names.dlx, names.members, names.validate]


def _recorded(record: str | None, group: str) -> GroupSpec | None:
    try:
        return None if record is None else GroupSpec.from_record(record, name=group)
    except SpecError:
        return None
