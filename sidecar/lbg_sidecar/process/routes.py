"""What the two listeners answer."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from importlib.metadata import version

from aiohttp import web

from ..publishing import Publishing
from .lag import LagWatch
from .life import Life
from .measuring import Measures
from .redacting import redacted

WAIT_MAX_S = 3600.0


def local_routes(life: Life, publishing: Publishing, lag: LagWatch) -> list[web.RouteDef]:
    async def state(_: web.Request) -> web.Response:
        return _json({**life.state(), "lag": lag.describe(), "publishing": publishing.describe()})

    async def drain(request: web.Request) -> web.Response:
        """202 while it drains, 200 when nothing is delivered again, 409 when something is."""
        wait_s = _wait_s(request)
        if not life.is_leaving:
            life.stop("asked to drain")
        if not await _left(life, wait_s):
            return _json({"drained": False, "why": f"not within {wait_s:g} s; it goes on"}, status=202)
        again = life.again
        return _json({"drained": True, "delivered_again": again}, status=409 if again else 200)

    return [web.get("/v1/state", state), web.post("/v1/drain", drain)]


def observed_routes(life: Life, measures: Measures, lag: LagWatch) -> list[web.RouteDef]:
    running = version("lbg")

    async def metrics(_: web.Request) -> web.Response:
        from .metrics import exposition  # a sidecar that nobody scrapes does without the library

        body = exposition(life.state(), measures, version=running, lag=lag.lag(), heard_at=life.heard_at)
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    async def healthz(_: web.Request) -> web.Response:
        return _json({"healthy": True})

    async def readyz(_: web.Request) -> web.Response:
        reasons = life.why_not_ready()
        return _json({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    async def drained(request: web.Request) -> web.Response:
        """For the preStop hook of the application's container: it waits here and makes nobody leave."""
        left = await _left(life, _wait_s(request))
        return _json({"left": left}, status=200 if left else 503)

    return [
        web.get("/metrics", metrics),
        web.get("/healthz", healthz),
        web.get("/readyz", readyz),
        web.get("/drained", drained),
    ]


async def _left(life: Life, wait_s: float) -> bool:
    """Whether the member has left, or does within `wait_s`: also 0, for which `wait_for` does not look."""
    if not life.left.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await life.left.wait()
    return life.left.is_set()


def _wait_s(request: web.Request) -> float:
    text = request.query.get("wait", "0")
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= WAIT_MAX_S:
        raise web.HTTPBadRequest(
            text=f"wait is {text!r}, but must be a number of seconds from 0 to {WAIT_MAX_S:g}\n"
        )
    return wait_s


def _json(told: object, *, status: int = 200) -> web.Response:
    return web.Response(
        text=redacted(json.dumps(told, default=str)) + "\n", status=status, content_type="application/json"
    )
