"""Watches of kopf, their readiness and their liveness.

The operator writes statuses all the time, and each write must come back through the watch of its kind.

kopf does not report when it opens a watch or opens it again, but its requests can be traced, which shows it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import kopf
from yarl import URL

from lbg_operator.kube.api import Cluster
from lbg_operator.kube.kinds import (
    AUTOSCALER,
    BROKER,
    BUDGET,
    CONFIG_MAP,
    DEPLOYMENT,
    GROUP,
    NETWORK_POLICY,
    POD,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    VOLUME_CLAIM,
    Kind,
)
from lbg_operator.kube.login import log_in
from lbg_operator.reconcile.object_cache import Key, ObjectCache, WatchedObject, gone, group_of, listed
from lbg_operator.resources.names import BROKER_LABEL, GROUP_LABEL, OURS

SILENT_S = 120.0
"""A watch that has not brought a write of ours for so long is dead. kopf renews one that is idle for 70 s by itself."""


@dataclass(slots=True)
class WatchLiveness:
    _seen: dict[tuple[Kind, Key], int] = field(default_factory=dict)
    _unseen: dict[tuple[Kind, Key], tuple[int, float]] = field(default_factory=dict)

    def wrote(self, kind: Kind, key: Key, version: str, now: float) -> None:
        """`version`: the resourceVersion of the API server's answer, which grows (Kubernetes: "Resource versions").

        A write that changed nothing has the version of before, and no watch will report it.
        """
        if int(version) > self._seen.get((kind, key), 0):
            self._unseen.setdefault((kind, key), (int(version), now))

    def saw(self, kind: Kind, key: Key, version: str) -> None:
        self._seen[kind, key] = int(version)
        wrote = self._unseen.get((kind, key))
        if wrote is not None and int(version) >= wrote[0]:
            del self._unseen[kind, key]

    def gone(self, kind: Kind, key: Key) -> None:
        self._unseen.pop((kind, key), None)
        self._seen.pop((kind, key), None)

    def silent_s(self, kind: Kind, now: float) -> float:
        """For how long the oldest write of this kind has not been seen."""
        return max((now - since for (one, _), (_, since) in self._unseen.items() if one is kind), default=0.0)


PATIENCE_S = 15.0
"""kopf opens a watch anew whenever the API server ends it, each few minutes. That takes milliseconds, and is no cause
to take the operator out of its Service."""


@dataclass(slots=True)
class WatchReadiness:
    """`paths`: of the collections that are to be watched. `relisted` is set when a watch begins again from a list, as
    it does when the API server has forgotten its version (410): no list shows what was deleted meanwhile."""

    paths: tuple[str, ...]
    relisted: asyncio.Event = field(default_factory=asyncio.Event)
    _closed_since: dict[str, float | None] = field(default_factory=dict)

    def requested(self, path: str, now: float) -> None:
        """A list or a watch is requested, so the former watch is over."""
        if (known := self._known(path)) is not None and self._closed_since.get(known, now) is None:
            self._closed_since[known] = now

    def listed(self, path: str) -> None:
        if self._known(path) in self._closed_since:
            self.relisted.set()

    def opened(self, path: str) -> None:
        if (known := self._known(path)) is not None:
            self._closed_since[known] = None

    def unready(self, now: float) -> str:
        """Watch that is not open, in one line; empty for none."""
        for path in self.paths:
            if path not in self._closed_since:
                return f"the watch of {path} has not begun yet"
            since = self._closed_since[path]
            if since is not None and now - since > PATIENCE_S:
                return f"the watch of {path} has been closed for {now - since:.0f} s"
        return ""

    def _known(self, path: str) -> str | None:
        """An API server may be behind a path of its own (`/k8s/clusters/one/apis/...`)."""
        return next((one for one in self.paths if path.endswith(one)), None)


def register_login(readiness: WatchReadiness, registry: kopf.OperatorRegistry) -> None:
    """Have kopf log in as our own requests do, with a session whose requests are traced."""

    @kopf.on.login(registry=registry)
    async def login(**_: Any) -> kopf.AiohttpSession:
        credentials = await log_in()
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=credentials.ssl or True),
            headers=credentials.headers,
            trust_env=True,
            trace_configs=[trace_config(readiness)],
        )
        return kopf.AiohttpSession(server=credentials.server, aiohttp_session=session)


def trace_config(readiness: WatchReadiness) -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()

    async def on_request_start(_: object, __: object, params: aiohttp.TraceRequestStartParams) -> None:
        if params.method == "GET":
            if not _is_watch(params.url):
                readiness.listed(params.url.path)
            readiness.requested(params.url.path, time.monotonic())

    async def on_request_end(_: object, __: object, params: aiohttp.TraceRequestEndParams) -> None:
        if _is_watch(params.url) and params.response.status == 200:
            readiness.opened(params.url.path)

    trace.on_request_start.append(on_request_start)
    trace.on_request_end.append(on_request_end)
    return trace


def paths_of(kinds: Iterable[Kind], namespaces: tuple[str, ...]) -> tuple[str, ...]:
    """Paths that kopf watches: each kind everywhere, or in each of `namespaces`."""
    return tuple(kind.path(namespace) for kind in kinds for namespace in namespaces or (None,))


def _is_watch(url: URL) -> bool:
    return url.query.get("watch") == "true"


SELECTORS: dict[Kind, str] = {
    GROUP: "",
    BROKER: "",
    POD: GROUP_LABEL,
    **dict.fromkeys(
        (
            DEPLOYMENT,
            AUTOSCALER,
            BUDGET,
            NETWORK_POLICY,
            CONFIG_MAP,
            SECRET,
            SERVICE,
            STATEFUL_SET,
            VOLUME_CLAIM,
        ),
        OURS,
    ),
}
"""Kinds that are watched, and the label selector of each watch."""

OnEvent = Callable[[Kind, Key, WatchedObject, bool], None]
"""A kind, the object's key, the object as it is or was, and whether it is gone."""


async def list_all(cluster: Cluster, store: ObjectCache, namespaces: tuple[str, ...]) -> None:
    """Fill `store` before the first reconcile, which would report a Broker that is not in it as missing.

    Raises ClusterError.
    """
    for kind, selector in SELECTORS.items():
        for seen in await listed(cluster, kind, selector, namespaces):
            store.put(kind, seen)


async def missed(
    cluster: Cluster, store: ObjectCache, namespaces: tuple[str, ...]
) -> list[tuple[Kind, WatchedObject]]:
    """Objects in `store` that are gone from the cluster, with their kinds. Raises ClusterError."""
    return [
        (kind, seen)
        for kind, selector in SELECTORS.items()
        for seen in await gone(cluster, store, kind, selector, namespaces)
    ]


def registry_of(on_event: OnEvent, readiness: WatchReadiness) -> kopf.OperatorRegistry:
    registry = kopf.OperatorRegistry()
    register_login(readiness, registry)
    for kind in SELECTORS:
        _register(registry, kind, on_event)
    return registry


def settings_of() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.scanning.disabled = True
    for kind, selector in SELECTORS.items():
        if selector:
            settings.watching.label_selectors[_parts(kind)] = selector
    return settings


def take(store: ObjectCache, kind: Kind, seen: WatchedObject, *, is_gone: bool) -> None:
    if is_gone:
        store.drop(kind, seen)
    else:
        store.put(kind, seen)


def owner_of(kind: Kind, seen: WatchedObject) -> tuple[Kind, Key] | None:
    """Object that an event wakes: a group or a broker."""
    if kind in (GROUP, BROKER):
        return kind, Key.of(seen)
    if (group := group_of(seen)) is not None:
        return GROUP, group
    broker = seen["metadata"].get("labels", {}).get(BROKER_LABEL)
    return None if broker is None else (BROKER, Key(seen["metadata"]["namespace"], broker))


def _register(registry: kopf.OperatorRegistry, kind: Kind, on_event: OnEvent) -> None:
    # A task or timer keeps the context in which it was begun, and kopf's has the event with all of the object in it.
    context = Context()

    @kopf.on.event(*_parts(kind), registry=registry, id=kind.plural)
    async def seen(*, event: Any, **_: Any) -> None:
        raw = dict(event["object"])
        context.run(on_event, kind, Key.of(raw), raw, event["type"] == "DELETED")


def _parts(kind: Kind) -> tuple[str, str, str]:
    return kind.api_group, kind.api_version.rpartition("/")[2], kind.plural
