"""Exchanges and queues: /api/exchanges, /api/queues."""

from __future__ import annotations

from typing import NamedTuple

from aiohttp import web

from lbg_broker.amqp.methods import ExchangeDeclare, ExchangeDelete, QueueDeclare, QueueDelete, QueuePurge
from lbg_broker.server.core.exchange import Exchange
from lbg_broker.server.core.queue import Queue
from lbg_broker.server.core.vhost import Vhost
from lbg_broker.server.management.asking import Asked, Field
from lbg_broker.server.management.describing import consumer_json, exchange_json
from lbg_broker.server.management.describing_queues import queue_json
from lbg_broker.server.management.errors import NotFound
from lbg_broker.server.management.listing import chosen, described

__all__ = ["ROUTES", "exchange_name"]

ROUTES = web.RouteTableDef()
DEFAULT_EXCHANGE = "amq.default"


class _Placed(NamedTuple):
    name: str
    vhost: Vhost
    exchange: Exchange


def exchange_name(part: str) -> str:
    """An exchange's name in a path: the default one, which has none, is written `amq.default`."""
    return "" if part == DEFAULT_EXCHANGE else part


@ROUTES.get("/api/exchanges")
@ROUTES.get("/api/exchanges/{vhost}")
async def list_exchanges(request: web.Request) -> web.Response:
    found = [
        _Placed(exchange.name, vhost, exchange)
        for vhost in Asked(request).visible_vhosts
        for exchange in vhost.exchanges.values()
    ]
    return described(request, found, lambda one, _columns: exchange_json(one.vhost, one.exchange))


@ROUTES.get("/api/exchanges/{vhost}/{name}")
async def get_exchange(request: web.Request) -> web.Response:
    asked = Asked(request)
    return web.json_response(chosen(request, exchange_json(asked.vhost, _exchange(asked))))


@ROUTES.put("/api/exchanges/{vhost}/{name}")
async def put_exchange(request: web.Request) -> web.Response:
    asked = Asked(request)
    field, vhost, name = Field(await asked.body()), asked.vhost, exchange_name(asked.name())
    existing = name in vhost.exchanges
    method = ExchangeDeclare(
        exchange=name,
        type=field.text("type", "direct"),
        durable=field.boolean("durable"),
        auto_delete=field.boolean("auto_delete"),
        internal=field.boolean("internal"),
        arguments=field.table("arguments"),
    )
    await asked.administer(method)
    return web.Response(status=204 if existing else 201)


@ROUTES.delete("/api/exchanges/{vhost}/{name}")
async def delete_exchange(request: web.Request) -> web.Response:
    asked = Asked(request)
    method = ExchangeDelete(exchange=_exchange(asked).name, if_unused=asked.flag("if-unused"))
    await asked.administer(method)
    return web.Response(status=204)


@ROUTES.get("/api/queues")
@ROUTES.get("/api/queues/{vhost}")
async def list_queues(request: web.Request) -> web.Response:
    vhosts = Asked(request).visible_vhosts
    found = [queue for vhost in vhosts for queue in vhost.queues.values()]
    return described(request, found, queue_json)


@ROUTES.get("/api/queues/{vhost}/{name}")
async def get_queue(request: web.Request) -> web.Response:
    queue = _queue(Asked(request))
    details = [consumer_json(consumer) for consumer in queue.policy.consumers]
    return web.json_response(chosen(request, {**queue_json(queue), "consumer_details": details}))


@ROUTES.put("/api/queues/{vhost}/{name}")
async def put_queue(request: web.Request) -> web.Response:
    asked = Asked(request)
    field, vhost, name = Field(await asked.body()), asked.vhost, asked.name()
    existing = name in vhost.queues
    method = QueueDeclare(
        queue=name,
        durable=field.boolean("durable"),
        auto_delete=field.boolean("auto_delete"),
        arguments=field.table("arguments"),
    )
    await asked.administer(method)
    return web.Response(status=204 if existing else 201)


@ROUTES.delete("/api/queues/{vhost}/{name}")
async def delete_queue(request: web.Request) -> web.Response:
    asked = Asked(request)
    method = QueueDelete(
        queue=_queue(asked).name, if_unused=asked.flag("if-unused"), if_empty=asked.flag("if-empty")
    )
    await asked.administer(method)
    return web.Response(status=204)


@ROUTES.delete("/api/queues/{vhost}/{name}/contents")
async def purge_queue(request: web.Request) -> web.Response:
    asked = Asked(request)
    await asked.administer(QueuePurge(queue=_queue(asked).name))
    return web.Response(status=204)


@ROUTES.post("/api/lbg/queues/{vhost}/{name}/{action}")
async def act_on_queue(request: web.Request) -> web.Response:
    """What RabbitMQ's API has no path for: an action of the queue's kind (docs/embedded-broker.md)."""
    asked = Asked(request)
    body, queue = await asked.body(), _queue(asked)
    answer = await asked.broker.act(asked.user.name, asked.vhost.name, queue.name, asked.name("action"), body)
    return web.json_response(answer)


def _exchange(asked: Asked) -> Exchange:
    exchange = asked.vhost.exchanges.get(exchange_name(asked.name()))
    if exchange is None:
        raise NotFound
    return exchange


def _queue(asked: Asked) -> Queue:
    queue = asked.vhost.queues.get(asked.name())
    if queue is None:
        raise NotFound
    return queue
