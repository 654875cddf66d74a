"""Which watches are open: an operator is ready when it hears of every kind.

kopf tells nobody when it opens a watch or begins one anew, but its requests can be traced, and they say it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import kopf
from yarl import URL

from ..cluster.kinds import Kind

PATIENCE_S = 15.0
"""kopf opens a watch anew whenever the API server ends it, each few minutes. That takes milliseconds, and is no cause
to take the operator out of its Service."""


@dataclass(slots=True)
class Openness:
    """`paths`: of the collections that are to be watched."""

    paths: tuple[str, ...]
    _closed_since: dict[str, float | None] = field(default_factory=dict)

    def asked(self, path: str, now: float) -> None:
        """A list or a watch is asked for, so the former watch is over."""
        if (known := self._known(path)) is not None and self._closed_since.get(known, now) is None:
            self._closed_since[known] = now

    def opened(self, path: str) -> None:
        if (known := self._known(path)) is not None:
            self._closed_since[known] = None

    def unready(self, now: float) -> str:
        """Which watch is not there, in one line; empty for none."""
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


def logging_in(openness: Openness, registry: kopf.OperatorRegistry) -> None:
    """Have kopf log in as it does by itself, with a session whose requests are traced."""

    @kopf.on.login(registry=registry)
    async def login(**told: Any) -> kopf.AiohttpSession | None:
        info = await asyncio.to_thread(kopf.login_via_client, **told)
        if info is None:
            return None
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=info.as_ssl_context()),
            headers=info.as_http_headers(),
            trust_env=info.trust_env,
            trace_configs=[traced(openness)],
        )
        return kopf.AiohttpSession(server=info.server, aiohttp_session=session, expiration=info.expiration)


def traced(openness: Openness) -> aiohttp.TraceConfig:
    trace = aiohttp.TraceConfig()

    async def began(_: object, __: object, told: aiohttp.TraceRequestStartParams) -> None:
        if told.method == "GET":
            openness.asked(told.url.path, time.monotonic())

    async def answered(_: object, __: object, told: aiohttp.TraceRequestEndParams) -> None:
        if _is_watch(told.url) and told.response.status == 200:
            openness.opened(told.url.path)

    trace.on_request_start.append(began)
    trace.on_request_end.append(answered)
    return trace


def paths_of(kinds: Iterable[Kind], namespaces: tuple[str, ...]) -> tuple[str, ...]:
    """What kopf watches: each kind everywhere, or in each of `namespaces`."""
    return tuple(kind.path(namespace) for kind in kinds for namespace in namespaces or (None,))


def _is_watch(url: URL) -> bool:
    return url.query.get("watch") == "true"
