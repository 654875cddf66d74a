"""The half of `BrokerAdmin` that needs the management HTTP API: what exists, users, permissions, policies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from lbg_broker.group import Permissions

from .actions import ActOnQueue, PutPermissions, PutUser
from .errors import Refused
from .management import path
from .management_lists import ManagementLists
from .observed import Policy, UserSeen

_MADE_FOR = "lbg"


class ManagementSide(ManagementLists):
    """Reads and writes one virtual host through the API."""

    async def check(self) -> None:
        """Raises Unreachable or Denied unless the API lets us in."""
        await self._api.get(path("whoami"))

    async def alarms(self) -> tuple[str, ...]:
        """What is wrong with the broker's nodes, as sentences: short of memory or of disk, or down. RabbitMQ tells what
        it sampled up to 5 s ago."""
        columns = "name,running,mem_alarm,disk_free_alarm"
        nodes = await self._list(path("nodes") + f"?columns={columns}")
        return tuple(f"{node['name']} {what}" for node in nodes for what in _wrong_with(node))

    async def users(self) -> dict[str, UserSeen]:
        """Every user of the broker."""
        users = (
            self._user(one) for one in await self._list(path("users") + "?columns=name,tags,password_hash")
        )
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

    async def connections_of(self, user: str) -> list[str]:
        """The broker's names of the connections that `user` has to this virtual host, now."""
        listed = await self._list(path("connections", "username", user))
        return [str(one["name"]) for one in listed if one.get("vhost") == self._vhost]

    async def connection_name(self, connection: str) -> str | None:
        """What its client calls it, empty if nothing; None when it is gone, or not sampled yet."""
        found = await self._api.get(path("connections", connection))
        if found is None:
            return None
        return str((found.get("client_properties") or {}).get("connection_name") or "")

    async def has_published(self, connection: str) -> bool:
        """Whether anything was published over it, as of up to 5 s ago on RabbitMQ."""
        channels = await self._list(path("connections", connection, "channels"))
        return any((one.get("message_stats") or {}).get("publish") for one in channels)

    async def close_connection(self, connection: str) -> None:
        """One that is gone is fine; one that RabbitMQ has not sampled yet stays."""
        await self._api.delete(path("connections", connection))

    async def permissions(self, user: str) -> Permissions | None:
        found = await self._api.get(path("permissions", self._vhost, user))
        return None if found is None else _permissions(found)

    async def all_permissions(self) -> dict[str, Permissions]:
        """Of every user in the virtual host."""
        found = await self._list(path("vhosts", self._vhost, "permissions"))
        return {str(one["user"]): _permissions(one) for one in found}

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
        tags = f"{_MADE_FOR}:{_in_a_tag(self._vhost)}:{action.group}"
        await self._api.put(path("users", action.name), {"password": action.password, "tags": tags})

    async def delete_user(self, name: str) -> None:
        await self._api.delete(path("users", name))

    async def put_permissions(self, action: PutPermissions) -> None:
        wanted = action.permissions
        patterns = {"configure": wanted.configure, "write": wanted.write, "read": wanted.read}
        await self._api.put(path("permissions", self._vhost, action.user), patterns)

    async def revoke_permissions(self, user: str) -> None:
        await self._api.delete(path("permissions", self._vhost, user))

    async def act_on_queue(self, action: ActOnQueue) -> None:
        """Raises Refused with the broker's reason."""
        where = path("lbg", "queues", self._vhost, action.queue, action.action)
        if await self._api.post(where, action.arguments) is None:
            raise Refused(
                f"queue {action.queue} is not there, or this broker cannot {action.action} it", status=404
            )

    async def close(self) -> None:
        await self._api.close()

    def _user(self, found: Mapping[str, Any]) -> UserSeen:
        """A user's tag says which group it was made for: users belong to a broker, groups to a virtual host."""
        name, password_hash = str(found["name"]), str(found.get("password_hash") or "")
        tags = found.get("tags", ())
        # A list since RabbitMQ 3.9, a comma-separated text before.
        listed = tags.split(",") if isinstance(tags, str) else tags
        for tag in listed:
            mark, _, rest = str(tag).partition(":")
            vhost, _, group = rest.partition(":")
            if mark == _MADE_FOR and group:
                there = "" if vhost == _in_a_tag(self._vhost) else f" of virtual host {unquote(vhost)}"
                return UserSeen(name, group + there, password_hash)
        return UserSeen(name, password_hash=password_hash)


@lru_cache
def _in_a_tag(vhost: str) -> str:
    return quote(vhost, safe="")


def _permissions(found: Mapping[str, Any]) -> Permissions:
    return Permissions(found["configure"], found["write"], found["read"])


def _policy(found: Mapping[str, Any], *, of_operator: bool) -> Policy:
    return Policy(
        name=str(found["name"]),
        pattern=str(found["pattern"]),
        apply_to=str(found.get("apply-to", "all")),
        priority=int(found.get("priority", 0)),
        definition=found.get("definition", {}),
        of_operator=of_operator,
    )


def _wrong_with(node: Mapping[str, Any]) -> list[str]:
    if node.get("running") is False:
        return ["is down"]
    kinds = {"mem_alarm": "memory", "disk_free_alarm": "disk"}
    return [f"is short of {kind}" for field, kind in kinds.items() if node.get(field) is True]
