"""The management half of `BrokerAdmin`: lists, users, permissions, policies and closed connections."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from functools import lru_cache
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from lbg_core.admin.actions import (
    Action,
    ActOnQueue,
    DeleteUser,
    OpenIngress,
    PutPermissions,
    PutUser,
    RevokePermissions,
)
from lbg_core.admin.errors import Refused
from lbg_core.admin.ingress_permissions import is_without, restored
from lbg_core.admin.management import ManagementApi, path
from lbg_core.admin.snapshot import (
    COLUMNS,
    UNKNOWN,
    ExchangeState,
    Policy,
    QueueStatus,
    Unknown,
    UserState,
    native_of,
)
from lbg_core.group import Names, Permissions
from lbg_core.group.names import SERVED_QUEUE
from lbg_core.group.topology import Binding

T = TypeVar("T")
Listed: TypeAlias = list[tuple[str, Mapping[str, Any]]]
"""Listed objects, each with its group."""


class Counts(NamedTuple):
    """Counts of a queue, as in `QueueStatus`, which costs five times as much to make for each of a long list."""

    ready: int | Unknown
    unacked: int | Unknown
    consumers: int | Unknown


_COUNTS = "name,messages_ready,messages_unacknowledged,members,online"
_OF_NOW = f"{_COUNTS},leader,arguments,policy"
_ACTIVE = ("single_active_consumer_tag", "single_active_consumer_ctag")
"""RabbitMQ's name of it for a classic queue, and of a quorum queue (`rabbit_quorum_queue`, STATISTICS_KEYS)."""
_SAMPLED = f"consumers,message_bytes_ready,{','.join(_ACTIVE)},effective_policy_definition"
_EXCHANGE = "name,type,arguments"
_WITHOUT_SAMPLES = "&disable_stats=true&enable_queue_totals=true"
_RECORD_QUEUE = re.compile(r"lbg\.([a-z0-9-]+)\.config")
_GROUP_EXCHANGE = re.compile(r"lbg\.([a-z0-9-]+)")

PAGE_SIZE = 500
"""The most that the API gives at a time where it is to choose by name."""

FEW = 20
"""Up to so many groups are chosen by name; of more, everything is listed in one answer."""

PATTERN_MAX = 1024
"""In characters; RabbitMQ from 4.3 on refuses to choose by a longer pattern (`rabbit_mgmt_util`, MAX_FILTER_LENGTH)."""


def _pattern(groups: Sequence[str], rest: str) -> str:
    return f"^lbg\\.({'|'.join(groups)}){rest}"


def _are_few(groups: Sequence[str], rest: str) -> bool:
    return len(groups) <= FEW and len(_pattern(groups, rest)) <= PATTERN_MAX


def _of(groups: Collection[str], listed: Iterable[Mapping[str, Any]]) -> Listed:
    named = ((str(one["name"]).split(".", 2), one) for one in listed)
    return [
        (parts[1], one) for parts, one in named if parts[0] == "lbg" and parts[1:2] and parts[1] in groups
    ]


def _exchange(fields: Mapping[str, Any]) -> ExchangeState:
    return ExchangeState(sys.intern(str(fields["type"])), _shared(fields.get("arguments")))


def _claimed(group: str) -> tuple[str, ...]:
    """Prefix of the names of queues that belong to a connection."""
    names = Names(group)
    return names.mailbox(0)[:-1], f"{names.exchange}.provisioning"


def _by_group(
    groups: Sequence[str], listed: Listed, status_of: Callable[[Mapping[str, Any]], T]
) -> dict[str, dict[str, T]]:
    """Status of each object, by group and name, without queues that belong to a connection."""
    by_group: dict[str, dict[str, T]] = {group: {} for group in groups}
    claimed = {group: _claimed(group) for group in groups}
    for group, one in listed:
        name = str(one["name"])
        if not name.startswith(claimed[group]):
            by_group[group][name] = status_of(one)
    return by_group


def _queue(now: Mapping[str, Any], sampled: Mapping[str, Any]) -> QueueStatus:
    ready, unacked, _ = _counts(now)
    return QueueStatus(
        ready=ready,
        consumers=_count(sampled.get("consumers")),
        unacked=unacked,
        active_consumer=_active(sampled),
        arguments=_shared(now.get("arguments")),
        policy=now.get("policy"),
        effective=_shared(sampled.get("effective_policy_definition")),
        native=native_of(now),
        is_down=not _can_count(now),
        bytes_ready=_count(sampled.get("message_bytes_ready")) if _can_count(now) else UNKNOWN,
        leader=sys.intern(now["leader"]) if now.get("leader") else None,
        nodes=_nodes(*sorted(now.get("members") or ())),
    )


@lru_cache(maxsize=64)
def _nodes(*names: str) -> tuple[str, ...]:
    """One object for all equal values."""
    return names


def _shared(arguments: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """One object for all equal values: the queues of hundreds of groups have few different arguments."""
    return _one_of(json.dumps(arguments, sort_keys=True)) if arguments else _NOTHING


@lru_cache(maxsize=1024)
def _one_of(text: str) -> Mapping[str, Any]:
    value: Mapping[str, Any] = json.loads(text)
    return value


def _counts(queue: Mapping[str, Any]) -> Counts:
    messages: tuple[int | Unknown, int | Unknown] = UNKNOWN, UNKNOWN
    if _can_count(queue):
        messages = _count(queue.get("messages_ready")), _count(queue.get("messages_unacknowledged"))
    return Counts(*messages, _count(queue.get("consumers")))


def _all_counts(queues: Iterable[Mapping[str, Any]] | None) -> dict[str, Counts]:
    named = ((str(one["name"]), one) for one in queues or ())
    return {name: _counts(one) for name, one in named if SERVED_QUEUE.fullmatch(name)}


_NOTHING: Mapping[str, Any] = {}


def _can_count(queue: Mapping[str, Any]) -> bool:
    """True if most of its nodes are up. RabbitMQ counts 0 of a quorum queue where they are not, at every door.

    Of a classic queue it lists none: `online` is missing, and from 4.3 on null. Of a stream 4.0 lists no `members`.
    """
    online, members = queue.get("online"), queue.get("members")
    return online is None or members is None or 2 * len(online) > len(members)


def _count(value: object) -> int | Unknown:
    return value if isinstance(value, int) else UNKNOWN


def _active(queue: Mapping[str, Any]) -> str | Unknown | None:
    tags = [queue[name] for name in _ACTIVE if name in queue]
    return (tags[0] or None) if tags else UNKNOWN


_MADE_FOR = "lbg"


class ManagementAdmin:
    """Reads and writes one virtual host through the API. `lock_permissions`: held, for a group, by who changes a part
    of the permissions that it read."""

    def __init__(
        self,
        api: ManagementApi,
        *,
        vhost: str,
        lock_permissions: Callable[[str], AbstractAsyncContextManager[None]],
    ) -> None:
        self._api = api
        self._vhost = vhost
        self.lock_permissions = lock_permissions

    async def exchanges_of(self, groups: Sequence[str]) -> Mapping[str, Mapping[str, ExchangeState]]:
        """Every exchange of each of `groups`."""
        return await self._of_groups("exchanges", groups, "(\\.|$)", _EXCHANGE, _exchange)

    async def exchanges_named(self, names: Sequence[str]) -> dict[str, ExchangeState]:
        """Those of `names` that are there."""
        rows = await self._named("exchanges", names, _EXCHANGE)
        return {str(one["name"]): _exchange(one) for one in rows}

    async def queues_of(
        self, groups: Sequence[str], *, is_sampled: bool
    ) -> Mapping[str, Mapping[str, QueueStatus]]:
        """Every queue of each of `groups`, except those that members and provisioners declare as their own.

        `is_sampled`: as on RabbitMQ, which samples its statistics every 5 s, and has current policies and counts
        only in a request without them; and then leaves out the queues whose leader's node is down. These are there,
        and that is all that is known of them.
        """
        if not is_sampled:
            columns = f"{_OF_NOW},{_SAMPLED},{COLUMNS}"
            return await self._of_groups("queues", groups, "\\.", columns, lambda one: _queue(one, one))
        listed = await self._listed("queues", groups, "\\.", f"name,{_SAMPLED}")
        sampled = {str(one["name"]): one for _, one in listed}
        by_group = _by_group(groups, listed, lambda one: QueueStatus())
        listed = await self._listed("queues", groups, "\\.", f"{_OF_NOW}{_WITHOUT_SAMPLES}")
        now = _by_group(groups, listed, lambda one: _queue(one, sampled.get(str(one["name"]), {})))
        return {group: {**by_group[group], **now[group]} for group in groups}

    async def queues_named(self, names: Sequence[str]) -> dict[str, QueueStatus]:
        """Those of `names` that exist, one request each: RabbitMQ goes through all queues of a virtual host for a
        list, even of a few (40 us for each queue there is, on 3.10), and answers for one name in 1 ms. The policy in
        force on it is not in the answer."""
        rows = await self._named("queues", names, f"{_OF_NOW}{_WITHOUT_SAMPLES}")
        return {str(one["name"]): replace(_queue(one, {}), policy=UNKNOWN, effective=UNKNOWN) for one in rows}

    async def counts(self, groups: Sequence[str]) -> Mapping[str, Counts]:
        """Counts by name of the queues that carry messages to members of `groups`, or of all groups, as of now on the
        embedded broker, up to 5 s ago on RabbitMQ, which does not report consumers beside them."""
        rest, columns = "\\.q(\\.|$)", f"{_COUNTS},consumers{_WITHOUT_SAMPLES}"
        if _are_few(groups, rest):
            return _all_counts(await self._chosen("queues", _pattern(groups, rest), columns))
        return await self._api.get_as(self._everything("queues", columns), _all_counts, key=None)

    async def all_answer(self, queues: Sequence[str]) -> bool:
        """True if each of these queues is there and can count."""
        rows = await self._named("queues", queues, "members,online&disable_stats=true")
        return len(rows) == len(queues) and all(map(_can_count, rows))

    async def groups(self) -> list[str]:
        """The names of all groups, by their records' queues."""
        rows = await self._chosen("queues", f"^{_RECORD_QUEUE.pattern}$", "name&disable_stats=true")
        return [group[1] for one in rows if (group := _RECORD_QUEUE.fullmatch(str(one["name"])))]

    async def groups_with_exchange(self) -> list[str]:
        """The names of all groups that can be published to: a list of exchanges costs RabbitMQ a fifth of one of
        queues."""
        rows = await self._chosen("exchanges", f"^{_GROUP_EXCHANGE.pattern}$", "name")
        return [group[1] for one in rows if (group := _GROUP_EXCHANGE.fullmatch(str(one["name"])))]

    async def bound_to(self, queue: str) -> set[str]:
        """The names of the exchanges that `queue` is bound to."""
        rows = await self._list(path("queues", self._vhost, queue, "bindings") + "?columns=source")
        return {str(one["source"]) for one in rows} - {""}

    async def bindings(self, exchanges: Sequence[str]) -> frozenset[Binding]:
        """Every binding of a queue to one of `exchanges`."""
        bindings = set()
        for exchange in exchanges:
            for one in await self._list(path("exchanges", self._vhost, exchange, "bindings", "source")):
                if one.get("destination_type") == "queue":
                    bindings.add(Binding(exchange, str(one["destination"]), str(one["routing_key"])))
        return frozenset(bindings)

    async def _of_groups(
        self,
        kind: str,
        groups: Sequence[str],
        rest: str,
        columns: str,
        status_of: Callable[[Mapping[str, Any]], T],
    ) -> Mapping[str, Mapping[str, T]]:
        """Status of each object that is named after `groups` and `rest` (a pattern), by group and name. The same object
        as before where all is listed and nothing has changed."""
        if _are_few(groups, rest):
            return _by_group(groups, await self._listed(kind, groups, rest, columns), status_of)
        names = frozenset(groups)
        return await self._api.get_as(
            self._everything(kind, columns),
            lambda rows: _by_group(groups, _of(names, rows or ()), status_of),
            key=(rest, names),
        )

    async def _listed(self, kind: str, groups: Sequence[str], rest: str, columns: str) -> Listed:
        if _are_few(groups, rest):
            listed = await self._chosen(kind, _pattern(groups, rest), columns)
        else:
            listed = await self._list(self._everything(kind, columns))
        return _of(frozenset(groups), listed)

    def _everything(self, kind: str, columns: str) -> str:
        """Path of the list of all objects of this kind, with these columns."""
        return f"{path(kind, self._vhost)}?columns={columns}"

    async def _named(self, kind: str, names: Sequence[str], columns: str) -> list[Mapping[str, Any]]:
        where = [f"{path(kind, self._vhost, name)}?columns={columns}" for name in names]
        return [one for one in await asyncio.gather(*map(self._api.get, where)) if one is not None]

    async def _chosen(self, kind: str, pattern: str, columns: str) -> list[Mapping[str, Any]]:
        """Those whose names match, with these columns, page by page."""
        rows: list[Mapping[str, Any]] = []
        chosen = f"name={quote(pattern, safe='')}&use_regex=true&page_size={PAGE_SIZE}&columns={columns}"
        page = pages = 1
        while page <= pages:
            answer = await self._api.get(f"{path(kind, self._vhost)}?page={page}&{chosen}")
            if answer is None:
                break
            rows += answer["items"]
            page, pages = page + 1, int(answer["page_count"])
        return rows

    async def _list(self, where: str) -> list[Mapping[str, Any]]:
        rows = await self._api.get(where)
        return [] if rows is None else list(rows)

    async def check(self) -> None:
        """Raises Unreachable or Denied unless the API lets us in."""
        await self._api.get(path("whoami"))

    async def tags(self) -> frozenset[str]:
        """Tags of the login, as administrator. Raises Unreachable, and Denied for a login without this API."""
        tags = (await self._api.get(path("whoami")) or {}).get("tags", ())
        return frozenset(tags.split(",") if isinstance(tags, str) else tags)

    async def alarms(self) -> tuple[str, ...]:
        """Problems of the broker's nodes, as sentences: short of memory or of disk, or down. RabbitMQ reports
        samples of up to 5 s ago."""
        columns = "name,running,mem_alarm,disk_free_alarm"
        nodes = await self._list(path("nodes") + f"?columns={columns}")
        return tuple(f"{node['name']} {alarm}" for node in nodes for alarm in _wrong_with(node))

    async def users(self) -> Mapping[str, UserState]:
        """Every user of the broker."""

        def read(rows: Any) -> dict[str, UserState]:
            return {user.name: user for user in map(self._user, rows or ())}

        return await self._api.get_as(path("users") + "?columns=name,tags,password_hash", read, key=None)

    async def connections(self, users: Sequence[str]) -> dict[str, int]:
        """Number of connections of each user, now: the list of all connections is up to 5 s behind on RabbitMQ."""
        counts = {}
        for user in users:
            listed = await self._api.get(path("connections", "username", user))
            if listed is None:
                raise Refused("the management API does not list the connections of a user", status=404)
            counts[user] = len(listed)
        return counts

    async def connections_of(self, user: str) -> list[str]:
        """The broker's names of the connections that `user` has to this virtual host, now."""
        listed = await self._list(path("connections", "username", user))
        return [str(one["name"]) for one in listed if one.get("vhost") == self._vhost]

    async def connection_name(self, connection: str) -> str | None:
        """Name that its client gave it, empty if none; None when it is gone, or not sampled yet."""
        fields = await self._api.get(path("connections", connection))
        if fields is None:
            return None
        return str((fields.get("client_properties") or {}).get("connection_name") or "")

    async def has_published(self, connection: str) -> bool:
        """True if anything was published over it, as of up to 5 s ago on RabbitMQ, which answers 500 about a connection
        that ends meanwhile (3.10.8)."""
        try:
            channels = await self._list(path("connections", connection, "channels"))
        except Refused as error:
            if error.status != HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            return False
        return any((one.get("message_stats") or {}).get("publish") for one in channels)

    async def close_connection(self, connection: str, *, reason: str) -> None:
        """One that is gone is fine; one that RabbitMQ has not sampled yet stays. `reason`: for its client."""
        await self._api.delete(path("connections", connection), reason=reason)

    async def permissions(self, user: str) -> Permissions | None:
        fields = await self._api.get(path("permissions", self._vhost, user))
        return None if fields is None else _permissions(fields)

    async def all_permissions(self) -> Mapping[str, Permissions]:
        """Of every user in the virtual host."""

        def read(rows: Any) -> dict[str, Permissions]:
            return {str(one["user"]): _permissions(one) for one in rows or ()}

        return await self._api.get_as(path("vhosts", self._vhost, "permissions"), read, key=None)

    async def policies(self) -> tuple[Policy, ...]:
        """Users' and operators' policies; none where the API has none."""
        own, operators = await asyncio.gather(
            self._list(path("policies", self._vhost)), self._list(path("operator-policies", self._vhost))
        )
        return (
            *(_policy(one, of_operator=False) for one in own),
            *(_policy(one, of_operator=True) for one in operators),
        )

    async def perform(self, action: Action) -> None:
        """Makes a change of users, permissions or queues of the embedded broker. Raises Refused with the broker's
        reason."""
        match action:
            case PutUser(name, password, group):
                tags = f"{_MADE_FOR}:{_in_a_tag(self._vhost)}:{group}"
                await self._api.put(path("users", name), {"password": password, "tags": tags})
            case DeleteUser(name):
                await self._api.delete(path("users", name))
            case PutPermissions(user, permissions):
                await self._api.put(path("permissions", self._vhost, user), asdict(permissions))
            case RevokePermissions(user):
                await self._api.delete(path("permissions", self._vhost, user))
            case OpenIngress(group):
                exchange = Names(group).exchange
                async with self.lock_permissions(group):
                    for user, now in (await self.all_permissions()).items():
                        if is_without(now.write, exchange):
                            await self.perform(with_write(user, now, restored(now.write, exchange)))
            case ActOnQueue(queue, act, arguments):
                where = path("lbg", "queues", self._vhost, queue, act)
                if await self._api.post(where, arguments) is None:
                    raise Refused(f"queue {queue} is not there, or this broker cannot {act} it", status=404)
            case _:
                raise TypeError(f"{type(action).__name__} is no change by the management API")

    async def head_of(self, queue: str, count: int, body_bytes: int) -> Sequence[Mapping[str, Any]]:
        """First messages of a queue that wait; none where the broker cannot show them."""
        where = path("lbg", "queues", self._vhost, queue, "messages")
        return await self._api.get(f"{where}?count={count}&truncate={body_bytes}") or ()

    async def close(self) -> None:
        await self._api.close()

    def _user(self, fields: Mapping[str, Any]) -> UserState:
        """A user's tag has the group that it was made for: users belong to a broker, groups to a virtual host."""
        name, password_hash = str(fields["name"]), str(fields.get("password_hash") or "")
        tags = fields.get("tags", ())
        # A list since RabbitMQ 3.9, a comma-separated text before.
        listed = tags.split(",") if isinstance(tags, str) else tags
        for tag in listed:
            mark, _, rest = str(tag).partition(":")
            vhost, _, group = rest.partition(":")
            if mark == _MADE_FOR and group:
                there = "" if vhost == _in_a_tag(self._vhost) else f" of virtual host {unquote(vhost)}"
                return UserState(name, group + there, password_hash)
        return UserState(name, password_hash=password_hash)


def with_write(user: str, now: Permissions, write: str) -> PutPermissions:
    """The change of a user's permission to write."""
    return PutPermissions(user, Permissions(now.configure, write, now.read), before=now)


def _in_a_tag(vhost: str) -> str:
    return quote(vhost, safe="")


def _permissions(fields: Mapping[str, Any]) -> Permissions:
    return Permissions(fields["configure"], fields["write"], fields["read"])


def _policy(fields: Mapping[str, Any], *, of_operator: bool) -> Policy:
    return Policy(
        name=str(fields["name"]),
        pattern=str(fields["pattern"]),
        apply_to=str(fields.get("apply-to", "all")),
        priority=int(fields.get("priority", 0)),
        definition=fields.get("definition", {}),
        of_operator=of_operator,
    )


def _wrong_with(node: Mapping[str, Any]) -> list[str]:
    if node.get("running") is False:
        return ["is down"]
    kinds = {"mem_alarm": "memory", "disk_free_alarm": "disk"}
    return [f"is short of {kind}" for field, kind in kinds.items() if node.get(field) is True]
