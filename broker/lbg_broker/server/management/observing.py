"""Who is connected and who consumes: /api/connections, /api/channels, /api/consumers."""

from __future__ import annotations

from aiohttp import web

from lbg_broker.server.core.commands import CloseConnection
from lbg_broker.server.core.connection import Connection
from lbg_broker.server.management.asking import Asked
from lbg_broker.server.management.describing import channel_json, connection_json, consumer_json
from lbg_broker.server.management.errors import NotFound
from lbg_broker.server.management.listing import chosen, listed

__all__ = ["ROUTES"]

ROUTES = web.RouteTableDef()


@ROUTES.get("/api/connections")
@ROUTES.get("/api/vhosts/{vhost}/connections")
async def list_connections(request: web.Request) -> web.Response:
    return listed(request, [connection_json(connection) for connection in _visible(Asked(request))])


@ROUTES.get("/api/connections/username/{user}")
async def list_connections_of_user(request: web.Request) -> web.Response:
    return listed(request, [connection_json(connection) for connection in _of_user(request)])


@ROUTES.delete("/api/connections/username/{user}")
async def close_connections_of_user(request: web.Request) -> web.Response:
    for connection in _of_user(request):
        _close(request, connection)
    return web.Response(status=204)


@ROUTES.get("/api/connections/{name}")
async def get_connection(request: web.Request) -> web.Response:
    return web.json_response(chosen(request, connection_json(_connection(Asked(request)))))


@ROUTES.delete("/api/connections/{name}")
async def close_connection(request: web.Request) -> web.Response:
    _close(request, _connection(Asked(request)))
    return web.Response(status=204)


@ROUTES.get("/api/channels")
@ROUTES.get("/api/vhosts/{vhost}/channels")
@ROUTES.get("/api/connections/{name}/channels")
async def list_channels(request: web.Request) -> web.Response:
    asked = Asked(request)
    connections = [_connection(asked)] if "name" in request.match_info else _visible(asked)
    return listed(
        request,
        [channel_json(channel) for connection in connections for channel in connection.channels.values()],
    )


@ROUTES.get("/api/consumers")
@ROUTES.get("/api/consumers/{vhost}")
async def list_consumers(request: web.Request) -> web.Response:
    return listed(
        request,
        [
            consumer_json(consumer)
            for vhost in Asked(request).visible_vhosts
            for _, queue in sorted(vhost.queues.items())
            for consumer in queue.policy.consumers
        ],
    )


def _visible(asked: Asked) -> list[Connection]:
    """Those in the virtual hosts to be seen; without the monitoring tag, the user's own only."""
    vhosts = asked.visible_vhosts
    return [
        connection
        for connection in asked.broker.state.connections.values()
        if connection.vhost in vhosts and (asked.user.sees_everything or connection.user == asked.user.name)
    ]


def _of_user(request: web.Request) -> list[Connection]:
    return [one for one in _visible(Asked(request)) if one.user == request.match_info["user"]]


def _close(request: web.Request, connection: Connection) -> None:
    reason = request.headers.get("X-Reason", "Closed via management plugin")
    Asked(request).broker.apply(CloseConnection(connection.id, reason))


def _connection(asked: Asked) -> Connection:
    name = asked.name()
    for connection in _visible_anywhere(asked):
        if connection.peer.name == name:
            return connection
    raise NotFound


def _visible_anywhere(asked: Asked) -> list[Connection]:
    mine, everyone = asked.user.name, asked.user.sees_everything
    return [found for found in asked.broker.state.connections.values() if everyone or found.user == mine]
