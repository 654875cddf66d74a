"""One round of reading of one group, by AMQP and by the management API where there is one."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import replace
from typing import TypeVar

from lbg_broker.group import Engine, GroupSpec, Names, Permissions, Topology, topology_of

from .amqp_side import AmqpSide
from .errors import AdminError
from .management_side import ManagementSide
from .observed import UNKNOWN, ExchangeSeen, Observed, QueueSeen, Unknown
from .prefixes import Prefixes, recorded

T = TypeVar("T")
NO_API = "no management API was given"

BY_NAME_MAX = 64
"""Up to so many queues are asked for one by one before they are listed."""


class Observing:
    """`management` None: what AMQP alone cannot tell stays unknown."""

    def __init__(self, amqp: AmqpSide, management: ManagementSide | None) -> None:
        self._amqp = amqp
        self._management = management
        self._prefixes = Prefixes(amqp, management) if management is not None else None

    async def observe(self, group: str, *, wanted: GroupSpec | None) -> Observed:
        engine = await self._amqp.engine()
        record = await self._amqp.record(group)
        spec = wanted or recorded(record, group)
        topology = topology_of(spec, engine) if spec is not None else None
        why: dict[str, str] = {}
        management = await self._reachable_management(why)
        base = Observed(engine, record=record, why=why)
        if management is None:
            return await self._by_amqp(base, Names(group), topology)
        seen = await self._by_both(
            management, base, Names(group), spec, topology, is_wanted=wanted is not None
        )
        if wanted is not None and recorded(record, group) is None:
            seen = await self._with_prefixes(seen, group)
        return seen

    async def _by_amqp(self, base: Observed, names: Names, topology: Topology | None) -> Observed:
        exchanges: dict[str, ExchangeSeen | Unknown | None] = {}
        for name in _exchange_names(names, topology):
            is_there = await self._amqp.has_exchange(name)
            exchanges[name] = UNKNOWN if is_there is UNKNOWN else ExchangeSeen() if is_there else None
        queues = await self._probed_queues(names, topology)
        why = {**base.why, **_refused(names, {**exchanges, **queues})}
        return replace(base, exchanges=exchanges, queues=queues, why=why)

    async def _by_both(
        self,
        management: ManagementSide,
        base: Observed,
        names: Names,
        spec: GroupSpec | None,
        topology: Topology | None,
        *,
        is_wanted: bool,
    ) -> Observed:
        why = dict(base.why)
        needed = topology if is_wanted else None
        listed = await or_unknown("exchanges", _exchanges(management, base.engine, names, needed), why)
        exchanges: dict[str, ExchangeSeen | Unknown | None] = dict.fromkeys(_exchange_names(names, topology))
        if listed is UNKNOWN:
            exchanges = dict.fromkeys(exchanges, UNKNOWN)
        else:
            exchanges |= listed
        present = [name for name, one in exchanges.items() if one is not None]
        policies = await or_unknown("policies", management.policies(), why)
        is_plain = base.record is not None and policies == ()
        queues = await or_unknown(
            "queues", _queues(management, base.engine, names, needed, is_plain=is_plain), why
        )
        counted = await self._counted_queues(names, topology, queues)
        why |= _refused(names, counted)
        bindings = await or_unknown("bindings", management.bindings(present), why)
        permissions: Permissions | Unknown | None = None
        if spec is not None:
            permissions = await or_unknown("permissions", management.permissions(spec.client_username), why)
        seen = replace(base, users=await or_unknown("users", management.users(), why))
        if len(users := seen.users_of(names.group)) > 1:
            seen = replace(
                seen, connections=await or_unknown("connections", management.connections(users), why)
            )
        return replace(
            seen,
            exchanges=exchanges,
            queues=counted,
            bindings=bindings,
            permissions=permissions,
            policies=policies,
            why=why,
        )

    async def _with_prefixes(self, seen: Observed, group: str) -> Observed:
        assert self._prefixes is not None
        why = dict(seen.why)
        found = await or_unknown("prefixes", self._prefixes.but(group), why)
        if found is UNKNOWN:
            return replace(seen, why=why)
        prefixes, unread = found
        if unread:
            why["prefixes"] = f"the records of these groups are out of reach: {', '.join(unread)}"
        return replace(seen, prefixes=prefixes, why=why)

    async def _probed_queues(
        self, names: Names, topology: Topology | None
    ) -> dict[str, QueueSeen | Unknown | None]:
        """Without a list, ask by name; queues beyond the known ones are found by counting up."""
        asked = (
            [queue.name for queue in topology.queues]
            if topology
            else [names.parent, names.unrouted, names.dead, names.config]
        )
        found: dict[str, QueueSeen | Unknown | None] = {**await self._amqp.counts_of(asked)}
        if topology is None and found[names.parent] is None:
            del found[names.parent]
        number = sum(names.number_of(name) is not None for name in asked)
        while isinstance(seen := await self._amqp.counts(names.queue(number)), QueueSeen):
            found[names.queue(number)] = seen
            number += 1
        if isinstance(seen := await self._amqp.counts(names.validation), QueueSeen):
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
        for name, counts in (await self._amqp.counts_of(list(listed))).items():
            found[name] = listed[name].counted(counts)
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


def _refused(names: Names, seen: Mapping[str, ExchangeSeen | QueueSeen | Unknown | None]) -> dict[str, str]:
    """Why nothing is known of what AMQP refused to count, where it did."""
    refused = [
        name
        for name, one in seen.items()
        if one is UNKNOWN or (isinstance(one, QueueSeen) and one.ready is UNKNOWN and not one.is_down)
    ]
    if not refused:
        return {}
    return {
        ", ".join(
            refused
        ): "RabbitMQ from 4.3 on counts a queue for those users alone who may do something with it: "
        f"`lbg group create {names.group} …` with an administrator's login gives the group's user that permission"
    }


async def or_unknown(what: str, reading: Awaitable[T], why: dict[str, str]) -> T | Unknown:
    """The reading, or UNKNOWN with the reason noted."""
    try:
        return await reading
    except AdminError as error:
        why[what] = str(error)
        return UNKNOWN


async def _exchanges(
    management: ManagementSide, engine: Engine, names: Names, needed: Topology | None
) -> dict[str, ExchangeSeen]:
    """All of the group's; where some are `needed` and a list is dear, those of them."""
    if engine.is_rabbitmq and needed is not None:
        return await management.exchanges_named([one.name for one in needed.exchanges])
    return (await management.exchanges_of([names.group]))[names.group]


async def _queues(
    management: ManagementSide,
    engine: Engine,
    names: Names,
    needed: Topology | None,
    *,
    is_plain: bool,
) -> dict[str, QueueSeen]:
    """All of the group's; where some are `needed` and a list is dear, those of them.

    `is_plain`: no policy can be on them, and no others are looked for.
    """
    if engine.is_rabbitmq and needed is not None and len(needed.queues) <= BY_NAME_MAX:
        found = await management.queues_named([one.name for one in needed.queues])
        if not found or is_plain:
            return found
    return (await management.queues_of([names.group], is_sampled=engine.is_rabbitmq))[names.group]


def _exchange_names(names: Names, topology: Topology | None) -> list[str]:
    if topology is not None:
        return [exchange.name for exchange in topology.exchanges]
    return [names.unrouted_exchange, names.exchange, names.dlx, names.members, names.validate]
