"""HTTP server of the management API: routes, errors as JSON, probes.

RabbitMQ's own health checks (`connections`) ask for one. Who asks here while the broker recovers finds nobody
listening.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Final

from aiohttp import web

from lbg_broker.core.entities import Queue
from lbg_broker.core.errors import Refusal
from lbg_broker.management import connections, queues, users
from lbg_broker.management.request import (
    BROKER,
    CALLER,
    TURN,
    ApiError,
    Failed,
    ManagedBroker,
    NotAuthorised,
    NotFound,
    log_in,
    of_refusal,
)
from lbg_core.http_listener import BoundedRunner, bad_input, guard
from lbg_core.peers import PeerLog, descriptors, is_of_here

ROUTES = web.RouteTableDef()


@ROUTES.get("/healthz")
async def is_alive(_request: web.Request) -> web.Response:
    """The event loop turns. A full disk is no reason to end the broker: consumers make room."""
    return web.json_response({"status": "ok"})


@ROUTES.get("/readyz")
async def is_ready(request: web.Request) -> web.Response:
    """Readiness: 200 if what is published now will be confirmed."""
    reason = request.app[BROKER].unready_because
    if reason is not None:
        raise Failed(reason)
    return web.json_response({"status": "ok"})


METRICS: Final[Mapping[str, tuple[str, Callable[[ManagedBroker], float]]]] = {
    "lbg_broker_ready": (
        "1 while a publish is confirmed soon, as /readyz.",
        lambda broker: broker.unready_because is None,
    ),
    "lbg_broker_disk_alarm": (
        "1 while the store cannot write, so that publishers wait.",
        lambda broker: broker.state.blocked_reason is not None,
    ),
    "lbg_broker_memory_alarm": (
        "1 while clients with incomplete messages take turns.",
        lambda broker: broker.is_short_of_memory,
    ),
    "lbg_broker_connections": ("AMQP connections.", lambda broker: len(broker.state.connections)),
    "lbg_broker_channels": (
        "Channels of all connections.",
        lambda broker: sum(len(one.channels) for one in broker.state.connections.values()),
    ),
    "lbg_broker_queues": (
        "Queues of all virtual hosts.",
        lambda broker: sum(len(vhost.queues) for vhost in broker.state.vhosts.values()),
    ),
    "lbg_broker_consumers": (
        "Consumers of all queues.",
        lambda broker: sum(len(queue.policy.consumers) for queue in _queues(broker)),
    ),
    "lbg_broker_messages_ready": (
        "Messages that no consumer has.",
        lambda broker: sum(queue.messages_ready for queue in _queues(broker)),
    ),
    "lbg_broker_messages_unacknowledged": (
        "Messages that were delivered and not acknowledged.",
        lambda broker: sum(queue.messages_unacknowledged for queue in _queues(broker)),
    ),
    "lbg_broker_messages_published_total": (
        "Messages from publishers since the start.",
        lambda broker: broker.state.counters.published,
    ),
    "lbg_broker_messages_delivered_total": (
        "Deliveries to consumers since the start.",
        lambda broker: broker.state.counters.delivered,
    ),
    "lbg_broker_messages_settled_total": (
        "Deliveries that were acknowledged or rejected since the start.",
        lambda broker: broker.state.counters.settled,
    ),
    "lbg_broker_messages_unroutable_total": (
        "Messages without a queue since the start.",
        lambda broker: broker.state.counters.unroutable,
    ),
}
"""Names, help and values of `/metrics`; those in _total are counters. No queue, user or client is named."""


@ROUTES.get("/metrics")
async def scrape(request: web.Request) -> web.Response:
    """Numbers of the whole broker in Prometheus' text format. No login, as for RabbitMQ's plugin."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector

    broker = request.app[BROKER]

    class Totals(Collector):
        def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
            build = GaugeMetricFamily("lbg_build_info", "The running version; always 1.", labels=["version"])
            build.add_metric([version("lbgroup")], 1.0)
            yield build
            for name, (about, value) in METRICS.items():
                family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                yield family(name, about, value=float(value(broker)))

    registry = CollectorRegistry()
    registry.register(Totals())
    ProcessCollector(registry=registry)
    content_type = "text/plain; version=0.0.4; charset=utf-8"
    return web.Response(body=generate_latest(registry), headers={"Content-Type": content_type})


def _queues(broker: ManagedBroker) -> Iterator[Queue]:
    return (queue for vhost in broker.state.vhosts.values() for queue in vhost.queues.values())


log = logging.getLogger("lbg.broker.management")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SHUTDOWN_S = 1.0


CONNECTIONS_MAX = 2048


def application(
    broker: ManagedBroker, *, checks_host: bool = False, console_url: str | None = None
) -> web.Application:
    """The API of one broker. `console_url`: /console leads there."""
    app = web.Application(
        middlewares=[guard(checks_host=checks_host), _errors_as_json, bad_input, _logged_in]
    )
    app[BROKER] = broker
    app[TURN] = asyncio.Lock()
    for routes in (connections.ROUTES, users.ROUTES, queues.ROUTES, ROUTES):
        app.add_routes(routes)
        # With a slash at the end too, as RabbitMQ: Go's client lists connections so.
        defined = [one for one in routes if isinstance(one, web.RouteDef)]
        app.add_routes([web.RouteDef(one.method, f"{one.path}/", one.handler, one.kwargs) for one in defined])
    if console_url is not None:
        app.router.add_get("/console", _redirect_to(console_url))
    return app


def _redirect_to(url: str) -> Handler:
    async def redirect(_request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(url)

    return redirect


@asynccontextmanager
async def managing(
    broker: ManagedBroker,
    *,
    host: str,
    port: int,
    peer_log: PeerLog,
    tls: ssl.SSLContext | None = None,
    console_url: str | None = None,
) -> AsyncIterator[int]:
    """Serve the API for as long as the block lasts; gives the port, which the system chooses when asked for 0.

    Raises OSError when it cannot listen there.
    """
    is_local = is_of_here(f"//[{host}]" if ":" in host else f"//{host}")
    connections_max = min(CONNECTIONS_MAX, descriptors() // 8)
    runner = BoundedRunner(
        # A page that was rebound has no certificate of the name.
        application(broker, checks_host=is_local and tls is None, console_url=console_url),
        connections_max=connections_max,
        of_an_address_max=connections_max * 3 // 4,
        peer_log=peer_log,
        access_log=None,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
        bound: int = runner.addresses[0][1]
        log.info("management API on %s:%d", host, bound)
        yield bound
    finally:
        await runner.cleanup()


@web.middleware
async def _errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refusal as refusal:
        return _answer(of_refusal(refusal))
    except ApiError as error:
        return _answer(error)
    except web.HTTPNotFound:
        return _answer(NotFound())
    except web.HTTPMethodNotAllowed as error:
        return web.json_response(
            {"error": "Method Not Allowed"}, status=405, headers={"Allow": error.headers["Allow"]}
        )
    except web.HTTPClientError as error:
        reason = (error.text or error.reason).strip()
        return web.json_response({"error": "bad_request", "reason": reason}, status=error.status)


@web.middleware
async def _logged_in(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets a request for a path below /api through after its login; a path that does not exist needs none."""
    if request.match_info.http_exception is None and request.path.startswith("/api/"):
        CALLER.set(await log_in(request.app[BROKER], request))
    return await handler(request)


def _answer(error: ApiError) -> web.Response:
    # Without the header no browser and few libraries would send a password.
    challenge = {"WWW-Authenticate": 'Basic realm="LBG"'} if isinstance(error, NotAuthorised) else None
    return web.json_response(error.body(), status=error.status, headers=challenge)
