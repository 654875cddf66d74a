"""The broker as a whole: overview, node, virtual hosts, policies (there are none), health checks."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from aiohttp import web

from lbg_broker.server.core.exchange import EXCHANGE_TYPES
from lbg_broker.server.management.asking import Asked
from lbg_broker.server.management.describing import NODE, vhost_json
from lbg_broker.server.management.errors import BadRequest, Failed, NotFound
from lbg_broker.server.management.listing import chosen, listed

__all__ = ["ROUTES"]

ROUTES = web.RouteTableDef()

COMPATIBLE_VERSION: Final = "3.10.8"
"""The RabbitMQ whose API this is; clients choose by it what they ask for. `product_name` says who answers."""


@ROUTES.get("/api/overview")
async def overview(request: web.Request) -> web.Response:
    asked = Asked(request)
    state = asked.broker.state
    vhosts = asked.visible_vhosts
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    channels = [
        channel for connection in state.connections.values() for channel in connection.channels.values()
    ]
    ready = sum(queue.messages_ready for queue in queues)
    unacknowledged = sum(queue.messages_unacknowledged for queue in queues)
    host, _, port = asked.broker.address.rpartition(":")
    described: dict[str, Any] = {
        "product_name": "LBG",
        "product_version": _own_version(),
        "rabbitmq_version": COMPATIBLE_VERSION,
        "management_version": COMPATIBLE_VERSION,
        "cluster_name": NODE,
        "node": NODE,
        "rates_mode": "none",
        "exchange_types": [{"name": kind, "description": "", "enabled": True} for kind in EXCHANGE_TYPES],
        "listeners": [{"node": NODE, "protocol": "amqp", "ip_address": host, "port": int(port)}],
        "queue_totals": {
            "messages": ready + unacknowledged,
            "messages_ready": ready,
            "messages_unacknowledged": unacknowledged,
        },
        "object_totals": {
            "connections": len(state.connections),
            "channels": len(channels),
            "exchanges": sum(len(vhost.exchanges) for vhost in vhosts),
            "queues": len(queues),
            "consumers": sum(len(queue.policy.consumers) for queue in queues),
        },
        "message_stats": {
            "publish": state.counters.published,
            "deliver_get": state.counters.delivered,
            "ack": state.counters.settled,
            "drop_unroutable": state.counters.unroutable,
        },
    }
    return web.json_response(chosen(request, described))


@ROUTES.get("/api/cluster-name")
async def cluster_name(request: web.Request) -> web.Response:
    Asked(request)
    return web.json_response({"name": NODE})


@ROUTES.get("/api/nodes")
async def list_nodes(request: web.Request) -> web.Response:
    asked = Asked(request)
    asked.need_monitor()
    alarmed = asked.broker.state.blocked_reason is not None
    node = {"name": NODE, "type": "disc", "running": True, "mem_alarm": False, "disk_free_alarm": alarmed}
    return listed(request, [node])


@ROUTES.get("/api/vhosts")
async def list_vhosts(request: web.Request) -> web.Response:
    return listed(request, [vhost_json(vhost) for vhost in Asked(request).visible_vhosts])


@ROUTES.get("/api/vhosts/{vhost}")
async def get_vhost(request: web.Request) -> web.Response:
    asked = Asked(request)
    asked.need_administrator()
    return web.json_response(chosen(request, vhost_json(asked.vhost)))


@ROUTES.put("/api/vhosts/{vhost}")
async def put_vhost(request: web.Request) -> web.Response:
    asked = Asked(request)
    asked.need_administrator()
    if asked.name("vhost") not in asked.broker.state.vhosts:
        raise BadRequest("the embedded broker has one virtual host, '/': more need RabbitMQ")
    return web.Response(status=204)


@ROUTES.get("/api/policies")
@ROUTES.get("/api/policies/{vhost}")
@ROUTES.get("/api/operator-policies")
@ROUTES.get("/api/operator-policies/{vhost}")
async def list_policies(request: web.Request) -> web.Response:
    _ = Asked(request).visible_vhosts
    return listed(request, [])


@ROUTES.get("/api/policies/{vhost}/{name}")
@ROUTES.delete("/api/policies/{vhost}/{name}")
@ROUTES.get("/api/operator-policies/{vhost}/{name}")
@ROUTES.delete("/api/operator-policies/{vhost}/{name}")
async def no_policy(request: web.Request) -> web.Response:
    _ = Asked(request).vhost
    raise NotFound


@ROUTES.put("/api/policies/{vhost}/{name}")
@ROUTES.put("/api/operator-policies/{vhost}/{name}")
async def put_policy(request: web.Request) -> web.Response:
    _ = Asked(request).vhost
    raise BadRequest("the embedded broker has no policies: give a queue its arguments when you declare it")


@ROUTES.get("/api/health/checks/alarms")
@ROUTES.get("/api/health/checks/local-alarms")
@ROUTES.get("/api/health/checks/virtual-hosts")
@ROUTES.get("/api/health/checks/node-is-quorum-critical")
async def check_health(request: web.Request) -> web.Response:
    return _healthy(Asked(request))


@ROUTES.get("/api/aliveness-test/{vhost}")
async def check_aliveness(request: web.Request) -> web.Response:
    asked = Asked(request)
    _ = asked.vhost
    return _healthy(asked)


def _healthy(asked: Asked) -> web.Response:
    reason = asked.broker.state.blocked_reason
    if reason is not None:
        raise Failed(f"the store cannot write: {reason}")
    return web.json_response({"status": "ok"})


def _own_version() -> str:
    try:
        return version("lbg")
    except PackageNotFoundError:
        return "unknown"
