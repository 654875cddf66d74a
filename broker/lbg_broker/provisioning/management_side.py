"""The half of `BrokerAdmin` that needs the management HTTP API: what exists, users, permissions, policies."""

from __future__ import annotations

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
_OF_NOW = "columns=name,arguments,policy,messages_unacknowledged&disable_stats=true&enable_queue_totals=true"
_SAMPLED = "columns=name,single_active_consumer_tag,effective_policy_definition"
_RECORD_QUEUE = re.compile(r"lbg\.([a-z0-9-]+)\.config")


class ManagementSide:
    """Reads and writes one virtual host through the API."""

    def __init__(self, api: ManagementApi, *, vhost: str) -> None:
        self._api = api
        self._vhost = vhost

    async def check(self) -> None:
        """Raises Unreachable or Denied unless the API lets us in."""
        await self._api.get(path("whoami"))

    async def exchanges(self, names: Names) -> dict[str, ExchangeSeen]:
        """Every exchange of the group."""
        found = await self._list(path("exchanges", self._vhost))
        return {
            str(one["name"]): ExchangeSeen(str(one["type"]), one.get("arguments", {}))
            for one in found
            if one["name"] == names.exchange or str(one["name"]).startswith(f"{names.exchange}.")
        }

    async def queues(self, names: Names) -> dict[str, QueueSeen]:
        """Every queue of the group, except those that members and provisioners claim for themselves.

        Ready messages and consumers are left unknown: AMQP counts them. RabbitMQ samples what it calls statistics
        every 5 s, and tells policy and counts of now only where these are left out.
        """
        where = path("queues", self._vhost)
        now = await self._list(f"{where}?{_OF_NOW}")
        sampled = {one["name"]: one for one in await self._list(f"{where}?{_SAMPLED}")}
        own = (names.mailbox(0)[:-1], f"{names.exchange}.provisioning")
        return {
            str(one["name"]): _queue(one, sampled.get(one["name"], {}))
            for one in now
            if str(one["name"]).startswith(f"{names.exchange}.") and not str(one["name"]).startswith(own)
        }

    async def groups(self) -> list[str]:
        """The names of all groups, by their records' queues."""
        names = (
            str(one["name"])
            for one in await self._list(path("queues", self._vhost) + "?columns=name&disable_stats=true")
        )
        return [found[1] for name in names if (found := _RECORD_QUEUE.fullmatch(name))]

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
        users = (self._user(one) for one in await self._list(path("users")))
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
        own = await self._list(path("policies", self._vhost))
        operators = await self._list(path("operator-policies", self._vhost))
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

    async def _list(self, where: str) -> list[Mapping[str, Any]]:
        found = await self._api.get(where)
        return [] if found is None else list(found)


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
