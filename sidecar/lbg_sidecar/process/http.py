"""HTTP listeners of the sidecar: routes, and bounds for clients that hold connections or long waits."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version

from aiohttp import web
from aiohttp.typedefs import Middleware

from lbg_core.http_listener import BoundedRunner, bad_input
from lbg_core.http_listener import guard as browser_guard
from lbg_core.peers import FairPlaces, PeerLog, descriptors, listen_reason
from lbg_core.redaction import redacted
from lbg_sidecar.app.channel import read_extension, read_object
from lbg_sidecar.core.presence import LISTENERS_S
from lbg_sidecar.member import Member
from lbg_sidecar.process.lag import LagWatch
from lbg_sidecar.process.lifecycle import MemberLifecycle
from lbg_sidecar.process.metrics import Measures, exposition
from lbg_sidecar.process.settings import ConfigurationError, Listener
from lbg_sidecar.publish_api import PublishService


def guard(listener: Listener) -> Middleware:
    """Refuses pages of other hosts; no browser speaks to a unix socket."""
    return browser_guard(checks_host=listener.path is None and listener.is_local)


HEADER_MAX_BYTES = 8190
REQUEST_WITHIN_S = 15.0
"""A client that has not sent the whole head of a request for so long, or sends no further one, is disconnected."""


@dataclass(frozen=True, slots=True)
class ConnectionBounds:
    """Connections of a listener, in all and of one address."""

    in_all: int
    of_an_address: int


def observed_bounds() -> ConnectionBounds:
    """Of a listener that everybody reaches: the descriptors of other listeners and of the broker's connections remain.
    The kubelet and Prometheus need a few each."""
    in_all = min(128, descriptors() // 8)
    return ConnectionBounds(in_all, max(1, in_all // 4))


def local_bounds() -> ConnectionBounds:
    """Of a listener whose clients are one pod's, all of one address."""
    return ConnectionBounds(descriptors() // 2, descriptors() // 2)


SHUTDOWN_S = LISTENERS_S / 2
"""Time for open requests at the end, and again after their cancellation; no client may delay the process by
sending slowly."""


async def listen(
    listener: Listener,
    routes: Sequence[web.RouteDef],
    *,
    body_max_bytes: int,
    setting: str,
    bounds: ConnectionBounds,
    peer_log: PeerLog,
    middlewares: Sequence[Middleware] = (),
    request_within_s: float = REQUEST_WITHIN_S,
    ends_with_client: bool = False,
) -> web.AppRunner:
    """Raises ConfigurationError, which names `setting`. `ends_with_client`: a handler is cancelled when its client has
    gone."""
    application = web.Application(client_max_size=body_max_bytes, middlewares=[*middlewares, bad_input])
    application.add_routes(routes)
    runner = BoundedRunner(
        application,
        connections_max=bounds.in_all,
        of_an_address_max=bounds.of_an_address,
        peer_log=peer_log,
        access_log=None,
        handle_signals=False,
        handler_cancellation=ends_with_client,
        keepalive_timeout=request_within_s,
        max_line_size=HEADER_MAX_BYTES,
        max_field_size=HEADER_MAX_BYTES,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    site: web.BaseSite
    if listener.path is not None:
        site = web.UnixSite(runner, listener.path)
    else:
        site = web.TCPSite(runner, listener.host, listener.port)
    try:
        _require_unserved(listener)
        await site.start()
    except OSError as error:
        await runner.cleanup()
        why = listen_reason(error)
        raise ConfigurationError(f"{setting} is {listener}, but the address cannot be used: {why}") from None
    return runner


def _require_unserved(listener: Listener) -> None:
    """asyncio replaces a unix socket on which a process listens as it replaces one of a killed process. Raises
    OSError if a process listens."""
    if listener.path is None:
        return
    with socket.socket(socket.AF_UNIX) as probe, suppress(FileNotFoundError, ConnectionRefusedError):
        probe.setblocking(False)
        probe.connect(str(listener.path))
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def address_of(listener: Listener, runner: web.AppRunner) -> str:
    """With the port in use, where the setting has port 0."""
    if listener.path is not None or not runner.addresses:
        return str(listener)
    return str(Listener(listener.host, runner.addresses[0][1]))


WAIT_MAX_S = 3600.0
WAITS_MAX = 32
WAITS_OF_AN_ADDRESS_MAX = 8
"""Of GET /drained: the kubelet has one for each container of the pod."""


def local_routes(life: MemberLifecycle, publishing: PublishService, lag: LagWatch) -> list[web.RouteDef]:
    async def state(_: web.Request) -> web.Response:
        return _json({**life.state(), "lag": lag.describe(), "publishing": publishing.describe()})

    async def drain(request: web.Request) -> web.Response:
        """202 while it drains, 200 when nothing is delivered again, 409 when something is."""
        wait_s = _wait_s(request)
        if not life.is_leaving:
            life.stop("asked to drain")
        if not await _left(life, asyncio.timeout(wait_s)):
            return _json({"drained": False, "why": f"not within {wait_s:g} s; it continues"}, status=202)
        again = life.again
        return _json({"drained": True, "delivered_again": again}, status=409 if again else 200)

    async def extend(request: web.Request) -> web.Response:
        """200 with the seconds that the call has left, 404 if no call of this message runs here."""
        try:
            extension = read_extension(read_object(await request.read()))
        except ValueError as error:
            raise web.HTTPBadRequest(
                text=f'{error}; the body is {{"seconds": 60, "progress": "…"}}, without progress if there is none\n'
            ) from None
        left_s = life.extend(request.match_info["id"], *extension)
        if not left_s:
            return _json({"seconds": 0, "why": "no call of this message runs here"}, status=404)
        return _json({"seconds": left_s})

    return [
        web.get("/v1/state", state),
        web.post("/v1/drain", drain),
        web.post("/v1/calls/{id:.+}/extend", extend),
    ]


def metrics_route(member: Member | MemberLifecycle, measures: Measures, lag: LagWatch) -> web.RouteDef:
    running = version("lbgroup")

    async def metrics(_: web.Request) -> web.Response:
        body = exposition(
            member.state(), measures, version=running, lag=lag.lag(), last_received_at=member.last_received_at
        )
        return web.Response(body=body, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    return web.get("/metrics", metrics)


def observed_routes(life: MemberLifecycle, measures: Measures, lag: LagWatch) -> list[web.RouteDef]:
    async def healthz(_: web.Request) -> web.Response:
        return _json({"healthy": True})

    async def readyz(_: web.Request) -> web.Response:
        reasons = life.why_not_ready()
        return _json({"ready": not reasons, "reasons": reasons}, status=503 if reasons else 200)

    waits: FairPlaces[asyncio.Timeout] = FairPlaces(in_all=WAITS_MAX, per_address=WAITS_OF_AN_ADDRESS_MAX)

    async def drained(request: web.Request) -> web.Response:
        """For the preStop hook of the application's container: it waits, and does not make the member leave."""
        limit, address = asyncio.timeout(_wait_s(request)), request.remote or "unknown"
        left = life.left.is_set()
        if not left:
            has_place, loser = waits.enter(address, limit)
            if loser is not None and not loser.expired():
                loser.reschedule(0.0)
            if not has_place:
                return _json(
                    {"left": False, "why": "too many requests wait"}, status=429, headers={"Retry-After": "1"}
                )
            try:
                left = await _left(life, limit)
            finally:
                waits.leave(address, limit)
        return _json({"left": left}, status=200 if left else 503)

    return [
        metrics_route(life, measures, lag),
        web.get("/healthz", healthz),
        web.get("/readyz", readyz),
        web.get("/drained", drained),
    ]


async def _left(life: MemberLifecycle, limit: asyncio.Timeout) -> bool:
    """True if the member has left, or leaves within the limit."""
    with suppress(TimeoutError):
        async with limit:
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


def _json(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        text=redacted(json.dumps(content, default=str)) + "\n",
        status=status,
        headers=headers,
        content_type="application/json",
    )
