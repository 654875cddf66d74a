"""The half of `BrokerAdmin` that needs the management HTTP API: what exists, users, permissions, policies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, unquote

from lbg_broker.group import Names, Permissions
from lbg_broker.group.topology import Binding

from .actions import PutPermissions, PutUser
from .errors import Refused
from .management import ManagementApi, path
from .observed import UNKNOWN, ExchangeSeen, Policy, QueueSeen, Unknown, UserSeen

_MADE_FOR = "lbg"
_OF_NOW = (
    "name,arguments,policy,messages_ready,messages_unacknowledged&disable_stats=true&enable_queue_totals=true"
)
_SAMPLED = "name,consumers,single_active_consumer_tag,effective_policy_definition"
_EXCHANGE = "name,type,arguments"
_RECORD_QUEUE = re.compile(r"lbg\.([a-z0-9-]+)\.config")
_GROUP_EXCHANGE = re.compile(r"lbg\.([a-z0-9-]+)")
PAGE_SIZE = 500
"""The most that the API gives at a time where it is to choose by name."""

BY_NAME_MAX = 64
"""Up to so many queues are asked for one by one before they are listed: RabbitMQ goes through all queues of a virtual
host for a list, even a filtered one (40 us each on 3.10), and answers for one name in 1 ms."""


class ManagementSide:
    """Reads and writes one virtual host through the API."""

    def __init__(self, api: ManagementApi, *, vhost: str) -> None:
        self._api = api
        self._vhost = vhost

    async def check(self) -> None:
        """Raises Unreachable or Denied unless the API lets us in."""
        await self._api.get(path("whoami"))

    async def exchanges(self, names: Names, *, asked: Sequence[str] | None = None) -> dict[str, ExchangeSeen]:
        """Every exchange of the group; where names are `asked` for, those of them that are there."""
        if asked is None:
            found = await self._chosen("exchanges", f"^{re.escape(names.exchange)}(\\.|$)", _EXCHANGE)
        else:
            where = [f"{path('exchanges', self._vhost, name)}?columns={_EXCHANGE}" for name in asked]
            found = [one for one in await asyncio.gather(*map(self._api.get, where)) if one is not None]
        return {str(one["name"]): _exchange(one) for one in found}

    async def queues(self, names: Names, *, asked: Sequence[str] | None = None) -> dict[str, QueueSeen]:
        """Every queue of the group, except those that members and provisioners claim for themselves.

        If none of those `asked` for is there, none is listed. Consumers are left unknown: AMQP counts them, and
        messages. RabbitMQ samples what it calls statistics every 5 s, and tells policy of now only where these are left
        out.
        """
        if asked is not None and len(asked) <= BY_NAME_MAX and not await self._any_queue(asked):
            return {}
        of_group = f"^{re.escape(names.exchange)}\\."
        now = await self._chosen("queues", of_group, _OF_NOW)
        sampled = {one["name"]: one for one in await self._chosen("queues", of_group, _SAMPLED)}
        own = _claimed(names.group)
        return {
            str(one["name"]): _queue(one, sampled.get(one["name"], {}))
            for one in now
            if not str(one["name"]).startswith(own)
        }

    async def groups(self) -> list[str]:
        """The names of all groups, by their records' queues."""
        found = await self._chosen("queues", f"^{_RECORD_QUEUE.pattern}$", "name&disable_stats=true")
        return [group[1] for one in found if (group := _RECORD_QUEUE.fullmatch(str(one["name"])))]

    async def groups_with_exchange(self) -> list[str]:
        """The names of all groups that can be published to: a list of exchanges costs RabbitMQ a fifth of one of
        queues."""
        found = await self._chosen("exchanges", f"^{_GROUP_EXCHANGE.pattern}$", "name")
        return [group[1] for one in found if (group := _GROUP_EXCHANGE.fullmatch(str(one["name"])))]

    async def bound_to(self, queue: str) -> set[str]:
        """The names of the exchanges that `queue` is bound to."""
        found = await self._list(path("queues", self._vhost, queue, "bindings") + "?columns=source")
        return {str(one["source"]) for one in found} - {""}

    async def bindings(self, exchanges: Sequence[str]) -> frozenset[Binding]:
        """Every binding of a queue to one of `exchanges`."""
        found = set()
        for exchange in exchanges:
            for one in await self._list(path("exchanges", self._vhost, exchange, "bindings", "source")):
                if one.get("destination_type") == "queue":
                    found.add(Binding(exchange, str(one["destination"]), str(one["routing_key"])))
        return frozenset(found)

    async def users(self) -> dict[str, UserSeen]:
        """Every user of the broker."""
        users = (self._user(one) for one in await self._list(path("users") + "?columns=name,tags"))
        return {user.name: user for user in users}

    async def connections(self, users: Sequence[str]) -> dict[str, int]:
        """How many connections each user has, now: the list of all connections is up to 5 s behind on RabbitMQ."""
        found = {}
        for user in users:
            listed = await self._api.get(path("connections", "username", user))
            if listed is None:
                raise Refused("the management API does not list the connections of a user", status=404)
            found[user] = len(listed)
        return found

    async def permissions(self, user: str) -> Permissions | None:
        found = await self._api.get(path("permissions", self._vhost, user))
        return None if found is None else Permissions(found["configure"], found["write"], found["read"])

    async def policies(self) -> tuple[Policy, ...]:
        """Users' and operators' policies; none where the API knows of none."""
        own, operators = await asyncio.gather(
            self._list(path("policies", self._vhost)), self._list(path("operator-policies", self._vhost))
        )
        return (
            *(_policy(one, of_operator=False) for one in own),
            *(_policy(one, of_operator=True) for one in operators),
        )

    async def put_user(self, action: PutUser) -> None:
        tags = f"{_MADE_FOR}:{quote(self._vhost, safe='')}:{action.group}"
        await self._api.put(path("users", action.name), {"password": action.password, "tags": tags})

    async def delete_user(self, name: str) -> None:
        await self._api.delete(path("users", name))

    async def put_permissions(self, action: PutPermissions) -> None:
        wanted = action.permissions
        patterns = {"configure": wanted.configure, "write": wanted.write, "read": wanted.read}
        await self._api.put(path("permissions", self._vhost, action.user), patterns)

    async def revoke_permissions(self, user: str) -> None:
        await self._api.delete(path("permissions", self._vhost, user))

    async def close(self) -> None:
        await self._api.close()

    def _user(self, found: Mapping[str, Any]) -> UserSeen:
        """A user's tag says which group it was made for: users belong to a broker, groups to a virtual host."""
        tags = found.get("tags", ())
        # A list since RabbitMQ 3.9, a comma-separated text before.
        listed = tags.split(",") if isinstance(tags, str) else tags
        for tag in listed:
            mark, _, rest = str(tag).partition(":")
            vhost, _, group = rest.partition(":")
            if mark == _MADE_FOR and group:
                there = "" if unquote(vhost) == self._vhost else f" of virtual host {unquote(vhost)}"
                return UserSeen(str(found["name"]), group + there)
        return UserSeen(str(found["name"]))

    async def _any_queue(self, names: Sequence[str]) -> bool:
        where = [f"{path('queues', self._vhost, name)}?columns=name&disable_stats=true" for name in names]
        return any(one is not None for one in await asyncio.gather(*map(self._api.get, where)))

    async def _chosen(self, kind: str, pattern: str, columns: str) -> list[Mapping[str, Any]]:
        """Those whose names match, with these columns, page by page."""
        found: list[Mapping[str, Any]] = []
        chosen = f"name={quote(pattern, safe='')}&use_regex=true&page_size={PAGE_SIZE}&columns={columns}"
        page = pages = 1
        while page <= pages:
            answer = await self._api.get(f"{path(kind, self._vhost)}?page={page}&{chosen}")
            if answer is None:
                break
            found += answer["items"]
            page, pages = page + 1, int(answer["page_count"])
        return found

    async def _list(self, where: str) -> list[Mapping[str, Any]]:
        found = await self._api.get(where)
        return [] if found is None else list(found)


def _exchange(found: Mapping[str, Any]) -> ExchangeSeen:
    return ExchangeSeen(str(found["type"]), found.get("arguments", {}))


def _claimed(group: str) -> tuple[str, ...]:
    """How the names of the queues begin that belong to a connection."""
    names = Names(group)
    return names.mailbox(0)[:-1], f"{names.exchange}.provisioning"


def _queue(now: Mapping[str, Any], sampled: Mapping[str, Any]) -> QueueSeen:
    return QueueSeen(
        unacked=_count(now.get("messages_unacknowledged")),
        active_consumer=_active(sampled),
        arguments=now.get("arguments", {}),
        policy=now.get("policy"),
        effective=sampled.get("effective_policy_definition") or {},
    )


def _count(value: object) -> int | Unknown:
    return value if isinstance(value, int) else UNKNOWN


def _active(queue: Mapping[str, Any]) -> str | Unknown | None:
    if "single_active_consumer_tag" not in queue:
        return UNKNOWN
    return queue["single_active_consumer_tag"] or None


def _policy(found: Mapping[str, Any], *, of_operator: bool) -> Policy:
    return Policy(
        name=str(found["name"]),
        pattern=str(found["pattern"]),
        apply_to=str(found.get("apply-to", "all")),
        priority=int(found.get("priority", 0)),
        definition=found.get("definition", {}),
        of_operator=of_operator,
    )
