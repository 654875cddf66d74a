"""Connections, channels and consumers; overview, nodes, virtual hosts and health checks."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from aiohttp import web

from lbg_broker.core.commands import CloseConnection
from lbg_broker.core.entities import Connection
from lbg_broker.core.exchange import EXCHANGE_TYPES
from lbg_broker.management.json_objects import (
    NODE,
    channel_json,
    connection_json,
    consumer_json,
    vhost_json,
)
from lbg_broker.management.request import (
    ONE_VHOST,
    BadRequest,
    Columns,
    Failed,
    NotFound,
    Request,
    chosen,
    listed,
)

ROUTES = web.RouteTableDef()


@ROUTES.get("/api/connections")
@ROUTES.get("/api/vhosts/{vhost}/connections")
async def list_connections(request: web.Request) -> web.StreamResponse:
    return await listed(request, _visible(Request(request)), _connection_row)


@ROUTES.get("/api/connections/username/{user}")
async def list_connections_of_user(request: web.Request) -> web.StreamResponse:
    return await listed(request, _of_user(request), _connection_row)


@ROUTES.delete("/api/connections/username/{user}")
async def close_connections_of_user(request: web.Request) -> web.Response:
    for connection in _of_user(request):
        _close(request, connection)
    return web.Response(status=204)


@ROUTES.get("/api/connections/{name}")
async def get_connection(request: web.Request) -> web.Response:
    return web.json_response(chosen(request, connection_json(_connection(Request(request)))))


@ROUTES.delete("/api/connections/{name}")
async def close_connection(request: web.Request) -> web.Response:
    _close(request, _connection(Request(request)))
    return web.Response(status=204)


@ROUTES.get("/api/channels")
@ROUTES.get("/api/vhosts/{vhost}/channels")
@ROUTES.get("/api/connections/{name}/channels")
async def list_channels(request: web.Request) -> web.StreamResponse:
    api_request = Request(request)
    connections = [_connection(api_request)] if "name" in request.match_info else _visible(api_request)
    channels = [channel for connection in connections for channel in connection.channels.values()]
    return await listed(request, channels, lambda channel, _columns: channel_json(channel))


@ROUTES.get("/api/consumers")
@ROUTES.get("/api/consumers/{vhost}")
async def list_consumers(request: web.Request) -> web.StreamResponse:
    consumers = [
        consumer
        for vhost in Request(request).visible_vhosts
        for _, queue in sorted(vhost.queues.items())
        for consumer in queue.policy.consumers
    ]
    return await listed(request, consumers, lambda consumer, _columns: consumer_json(consumer))


def _connection_row(connection: Connection, _columns: Columns) -> dict[str, Any]:
    return connection_json(connection)


def _visible(api_request: Request) -> list[Connection]:
    """Those in the virtual hosts to be seen; without the monitoring tag, the user's own only."""
    vhosts = api_request.visible_vhosts
    return [
        connection
        for connection in api_request.broker.state.connections.values()
        if connection.vhost in vhosts
        and (api_request.user.may_monitor or connection.user == api_request.user.name)
    ]


def _of_user(request: web.Request) -> list[Connection]:
    return [one for one in _visible(Request(request)) if one.user == request.match_info["user"]]


def _close(request: web.Request, connection: Connection) -> None:
    reason = request.headers.get("X-Reason", "Closed via management plugin")
    Request(request).broker.apply(CloseConnection(connection.id, reason))


def _connection(api_request: Request) -> Connection:
    name = api_request.name()
    for connection in _visible_anywhere(api_request):
        if connection.peer.name == name:
            return connection
    raise NotFound


def _visible_anywhere(api_request: Request) -> list[Connection]:
    mine, everyone = api_request.user.name, api_request.user.may_monitor
    return [
        connection
        for connection in api_request.broker.state.connections.values()
        if everyone or connection.user == mine
    ]


COMPATIBLE_VERSION: Final = "3.10.8"
"""The RabbitMQ whose API this is; clients choose requests by it. `product_name` is the embedded broker's."""


@ROUTES.get("/api/overview")
async def overview(request: web.Request) -> web.Response:
    api_request = Request(request)
    state = api_request.broker.state
    vhosts = api_request.visible_vhosts
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    channels = [
        channel for connection in state.connections.values() for channel in connection.channels.values()
    ]
    ready = sum(queue.messages_ready for queue in queues)
    unacknowledged = sum(queue.messages_unacknowledged for queue in queues)
    host, _, port = api_request.broker.address.rpartition(":")
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
    Request(request)
    return web.json_response({"name": NODE})


@ROUTES.get("/api/nodes")
async def list_nodes(request: web.Request) -> web.StreamResponse:
    api_request = Request(request)
    api_request.need_monitor()
    alarmed = api_request.broker.state.blocked_reason is not None
    node = {
        "name": NODE,
        "type": "disc",
        "running": True,
        "mem_alarm": api_request.broker.is_short_of_memory,
        "disk_free_alarm": alarmed,
    }
    return await listed(request, [node], lambda one, _columns: one)


@ROUTES.get("/api/vhosts")
async def list_vhosts(request: web.Request) -> web.StreamResponse:
    vhosts = Request(request).visible_vhosts
    return await listed(request, vhosts, lambda vhost, _columns: vhost_json(vhost))


@ROUTES.get("/api/vhosts/{vhost}")
async def get_vhost(request: web.Request) -> web.Response:
    api_request = Request(request)
    api_request.need_administrator()
    return web.json_response(chosen(request, vhost_json(api_request.vhost)))


@ROUTES.put("/api/vhosts/{vhost}")
async def put_vhost(request: web.Request) -> web.Response:
    api_request = Request(request)
    api_request.need_administrator()
    name = api_request.name("vhost")
    if name not in api_request.broker.state.vhosts:
        raise BadRequest(f"virtual host {name!r:.300} cannot be made: {ONE_VHOST}")
    return web.Response(status=204)


@ROUTES.get("/api/policies")
@ROUTES.get("/api/policies/{vhost}")
@ROUTES.get("/api/operator-policies")
@ROUTES.get("/api/operator-policies/{vhost}")
async def list_policies(request: web.Request) -> web.StreamResponse:
    _ = Request(request).visible_vhosts
    none: list[Connection] = []
    return await listed(request, none, _connection_row)


@ROUTES.get("/api/policies/{vhost}/{name}")
@ROUTES.delete("/api/policies/{vhost}/{name}")
@ROUTES.get("/api/operator-policies/{vhost}/{name}")
@ROUTES.delete("/api/operator-policies/{vhost}/{name}")
async def no_policy(request: web.Request) -> web.Response:
    _ = Request(request).vhost
    raise NotFound


@ROUTES.put("/api/policies/{vhost}/{name}")
@ROUTES.put("/api/operator-policies/{vhost}/{name}")
async def put_policy(request: web.Request) -> web.Response:
    _ = Request(request).vhost
    raise BadRequest("the embedded broker has no policies: set the arguments of a queue when you declare it")


@ROUTES.get("/api/health/checks/alarms")
@ROUTES.get("/api/health/checks/local-alarms")
@ROUTES.get("/api/health/checks/virtual-hosts")
@ROUTES.get("/api/health/checks/node-is-quorum-critical")
async def check_health(request: web.Request) -> web.Response:
    return _healthy(Request(request))


@ROUTES.get("/api/aliveness-test/{vhost}")
async def check_aliveness(request: web.Request) -> web.Response:
    api_request = Request(request)
    _ = api_request.vhost
    return _healthy(api_request)


def _healthy(api_request: Request) -> web.Response:
    reason = api_request.broker.state.blocked_reason
    if reason is not None:
        raise Failed(f"the store cannot write: {reason}")
    return web.json_response({"status": "ok"})


def _own_version() -> str:
    try:
        return version("lbgroup")
    except PackageNotFoundError:
        return "unknown"
