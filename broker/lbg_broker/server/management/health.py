"""For probes, which have no login: /healthz and /readyz, beside the API. They tell nothing about anybody.

RabbitMQ's own health checks (`overview`) ask for one. Who asks here while the broker recovers finds nobody listening.
"""

from __future__ import annotations

from aiohttp import web

from lbg_broker.server.management.asking import BROKER
from lbg_broker.server.management.errors import Failed

__all__ = ["ROUTES"]

ROUTES = web.RouteTableDef()


@ROUTES.get("/healthz")
async def is_alive(_request: web.Request) -> web.Response:
    """The event loop turns. A full disk is no reason to end the broker: consumers make room."""
    return web.json_response({"status": "ok"})


@ROUTES.get("/readyz")
async def is_ready(request: web.Request) -> web.Response:
    """What is published now will be confirmed."""
    reason = request.app[BROKER].unready_because
    if reason is not None:
        raise Failed(reason)
    return web.json_response({"status": "ok"})
