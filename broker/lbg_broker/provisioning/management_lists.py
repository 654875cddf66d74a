"""What the management HTTP API lists: exchanges, queues and bindings, of one group or of all."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias
from urllib.parse import quote

from lbg_broker.group import Names
from lbg_broker.group.topology import Binding

from .management import ManagementApi, path
from .native import COLUMNS, native_of
from .observed import UNKNOWN, ExchangeSeen, QueueSeen, Unknown

Counts: TypeAlias = tuple[int | Unknown, int | Unknown]
"""Ready and unacknowledged messages of a queue."""

_COUNTS = "name,messages_ready,messages_unacknowledged,members,online"
_OF_NOW = f"{_COUNTS},arguments,policy"
_ACTIVE = ("single_active_consumer_tag", "single_active_consumer_ctag")
"""What RabbitMQ calls it of a classic queue, and of a quorum queue (`rabbit_quorum_queue`, STATISTICS_KEYS)."""
_SAMPLED = f"consumers,{','.join(_ACTIVE)},effective_policy_definition"
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


class ManagementLists:
    """Of one virtual host."""

    def __init__(self, api: ManagementApi, *, vhost: str) -> None:
        self._api = api
        self._vhost = vhost

    async def exchanges_of(self, groups: Sequence[str]) -> dict[str, dict[str, ExchangeSeen]]:
        """Every exchange of each of `groups`."""
        found: dict[str, dict[str, ExchangeSeen]] = {group: {} for group in groups}
        for group, one in await self._of_groups("exchanges", groups, "(\\.|$)", _EXCHANGE):
            found[group][str(one["name"])] = _exchange(one)
        return found

    async def exchanges_named(self, names: Sequence[str]) -> dict[str, ExchangeSeen]:
        """Those of `names` that are there."""
        found = await self._named("exchanges", names, _EXCHANGE)
        return {str(one["name"]): _exchange(one) for one in found}

    async def queues_of(self, groups: Sequence[str], *, is_sampled: bool) -> dict[str, dict[str, QueueSeen]]:
        """Every queue of each of `groups`, except those that members and provisioners claim for themselves.

        `is_sampled`: as on RabbitMQ, which samples what it calls statistics every 5 s, and tells policy and counts of
        now only where these are left out; and then leaves out the queues whose leader's node is down. These are there,
        and that is all that is known of them.
        """
        found: dict[str, dict[str, QueueSeen]] = {group: {} for group in groups}
        sampled: dict[str, Mapping[str, Any]] = {}
        columns = f"{_OF_NOW}{_WITHOUT_SAMPLES}" if is_sampled else f"{_OF_NOW},{_SAMPLED},{COLUMNS}"
        if is_sampled:
            for group, one in await self._of_groups("queues", groups, "\\.", f"name,{_SAMPLED}"):
                name = str(one["name"])
                sampled[name] = one
                if not name.startswith(_claimed(group)):
                    found[group][name] = QueueSeen()
        for group, one in await self._of_groups("queues", groups, "\\.", columns):
            name = str(one["name"])
            if not name.startswith(_claimed(group)):
                found[group][name] = _queue(one, sampled.get(name, {}) if is_sampled else one)
        return found

    async def queues_named(self, names: Sequence[str]) -> dict[str, QueueSeen]:
        """Those of `names` that are there, one question each: RabbitMQ goes through all queues of a virtual host for a
        list, even of a few (40 us for each queue there is, on 3.10), and answers for one name in 1 ms. The policy in
        force on it is not told."""
        found = await self._named("queues", names, f"{_OF_NOW}{_WITHOUT_SAMPLES}")
        return {
            str(one["name"]): replace(_queue(one, {}), policy=UNKNOWN, effective=UNKNOWN) for one in found
        }

    async def counts(self, groups: Sequence[str]) -> dict[str, Counts]:
        """Of the queues that carry messages to members of `groups`, as of now on the embedded broker, up to 5 s ago on
        RabbitMQ."""
        columns = f"{_COUNTS}{_WITHOUT_SAMPLES}"
        listed = await self._of_groups("queues", groups, "\\.q(\\.|$)", columns)
        return {str(one["name"]): _counts(one) for _, one in listed}

    async def all_answer(self, queues: Sequence[str]) -> bool:
        """Whether each of these queues is there and can count."""
        found = await self._named("queues", queues, "members,online&disable_stats=true")
        return len(found) == len(queues) and all(map(_can_count, found))

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

    async def _of_groups(
        self, kind: str, groups: Sequence[str], rest: str, columns: str
    ) -> list[tuple[str, Mapping[str, Any]]]:
        """What has `rest` (a pattern) after the names of `groups`, each with its group."""
        pattern = f"^lbg\\.({'|'.join(groups)}){rest}"
        if len(groups) <= FEW and len(pattern) <= PATTERN_MAX:
            listed = await self._chosen(kind, pattern, columns)
        else:
            listed = await self._list(f"{path(kind, self._vhost)}?columns={columns}")
        asked = frozenset(groups)
        named = ((str(one["name"]).split(".", 2), one) for one in listed)
        return [
            (parts[1], one) for parts, one in named if parts[0] == "lbg" and parts[1:2] and parts[1] in asked
        ]

    async def _named(self, kind: str, names: Sequence[str], columns: str) -> list[Mapping[str, Any]]:
        where = [f"{path(kind, self._vhost, name)}?columns={columns}" for name in names]
        return [one for one in await asyncio.gather(*map(self._api.get, where)) if one is not None]

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
    ready, unacked = _counts(now)
    return QueueSeen(
        ready=ready,
        consumers=_count(sampled.get("consumers")),
        unacked=unacked,
        active_consumer=_active(sampled),
        arguments=now.get("arguments", {}),
        policy=now.get("policy"),
        effective=sampled.get("effective_policy_definition") or {},
        native=native_of(now),
        is_down=not _can_count(now),
    )


def _counts(queue: Mapping[str, Any]) -> Counts:
    if not _can_count(queue):
        return UNKNOWN, UNKNOWN
    return _count(queue.get("messages_ready")), _count(queue.get("messages_unacknowledged"))


def _can_count(queue: Mapping[str, Any]) -> bool:
    """Whether most of its nodes are up. RabbitMQ counts 0 of a quorum queue where they are not, at every door.

    Of a classic queue it lists none: `online` is missing, and from 4.3 on null.
    """
    online = queue.get("online")
    return online is None or 2 * len(online) > len(queue["members"])


def _count(value: object) -> int | Unknown:
    return value if isinstance(value, int) else UNKNOWN


def _active(queue: Mapping[str, Any]) -> str | Unknown | None:
    told = [queue[name] for name in _ACTIVE if name in queue]
    return (told[0] or None) if told else UNKNOWN
