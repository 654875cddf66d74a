"""Exchanges, queues and bindings: /api/exchanges, /api/queues, /api/bindings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from aiohttp import web

from lbg_broker.amqp.methods import (
    ExchangeBind,
    ExchangeDeclare,
    ExchangeDelete,
    ExchangeUnbind,
    Method,
    QueueBind,
    QueueDeclare,
    QueueDelete,
    QueuePurge,
    QueueUnbind,
)
from lbg_broker.server.core.exchange import Binding, Exchange
from lbg_broker.server.core.queue import Queue
from lbg_broker.server.core.vhost import Vhost
from lbg_broker.server.management.json_objects import (
    binding_json,
    consumer_json,
    default_binding_json,
    exchange_json,
    properties_key,
    queue_json,
)
from lbg_broker.server.management.request import Field, NotFound, Request, chosen, described, listed

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
        for vhost in Request(request).visible_vhosts
        for exchange in vhost.exchanges.values()
    ]
    return described(request, found, lambda one, _columns: exchange_json(one.vhost, one.exchange))


@ROUTES.get("/api/exchanges/{vhost}/{name}")
async def get_exchange(request: web.Request) -> web.Response:
    asked = Request(request)
    return web.json_response(chosen(request, exchange_json(asked.vhost, _exchange(asked))))


@ROUTES.put("/api/exchanges/{vhost}/{name}")
async def put_exchange(request: web.Request) -> web.Response:
    asked = Request(request)
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
    asked = Request(request)
    method = ExchangeDelete(exchange=_exchange(asked).name, if_unused=asked.flag("if-unused"))
    await asked.administer(method)
    return web.Response(status=204)


@ROUTES.get("/api/queues")
@ROUTES.get("/api/queues/{vhost}")
async def list_queues(request: web.Request) -> web.Response:
    vhosts = Request(request).visible_vhosts
    found = [queue for vhost in vhosts for queue in vhost.queues.values()]
    return described(request, found, queue_json)


@ROUTES.get("/api/queues/{vhost}/{name}")
async def get_queue(request: web.Request) -> web.Response:
    queue = _queue(Request(request))
    details = [consumer_json(consumer) for consumer in queue.policy.consumers]
    return web.json_response(chosen(request, {**queue_json(queue), "consumer_details": details}))


@ROUTES.put("/api/queues/{vhost}/{name}")
async def put_queue(request: web.Request) -> web.Response:
    asked = Request(request)
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
    asked = Request(request)
    method = QueueDelete(
        queue=_queue(asked).name, if_unused=asked.flag("if-unused"), if_empty=asked.flag("if-empty")
    )
    await asked.administer(method)
    return web.Response(status=204)


@ROUTES.delete("/api/queues/{vhost}/{name}/contents")
async def purge_queue(request: web.Request) -> web.Response:
    asked = Request(request)
    await asked.administer(QueuePurge(queue=_queue(asked).name))
    return web.Response(status=204)


@ROUTES.post("/api/lbg/queues/{vhost}/{name}/{action}")
async def act_on_queue(request: web.Request) -> web.Response:
    """Carries out what RabbitMQ's API has no path for: an action of the queue's kind (docs/embedded-broker.md)."""
    asked = Request(request)
    body, queue = await asked.body(), _queue(asked)
    answer = await asked.broker.act(asked.user.name, asked.vhost.name, queue.name, asked.name("action"), body)
    return web.json_response(answer)


def _exchange(asked: Request) -> Exchange:
    exchange = asked.vhost.exchanges.get(exchange_name(asked.name()))
    if exchange is None:
        raise NotFound
    return exchange


def _queue(asked: Request) -> Queue:
    queue = asked.vhost.queues.get(asked.name())
    if queue is None:
        raise NotFound
    return queue


BETWEEN = "/api/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}"
Json = dict[str, Any]


@ROUTES.get("/api/bindings")
@ROUTES.get("/api/bindings/{vhost}")
async def list_bindings(request: web.Request) -> web.Response:
    return listed(request, [found for vhost in Request(request).visible_vhosts for found in _all(vhost)])


@ROUTES.get("/api/queues/{vhost}/{name}/bindings")
async def list_of_queue(request: web.Request) -> web.Response:
    asked = Request(request)
    return listed(request, list(_to_queue(asked.vhost, asked.name())))


@ROUTES.get("/api/exchanges/{vhost}/{name}/bindings/{end:source|destination}")
async def list_of_exchange(request: web.Request) -> web.Response:
    asked = Request(request)
    name = exchange_name(asked.name())
    ends = _from if asked.name("end") == "source" else _to_exchange
    return listed(request, list(ends(asked.vhost, name)))


@ROUTES.get(BETWEEN)
async def list_between(request: web.Request) -> web.Response:
    asked = Request(request)
    source, kind, destination = _ends(asked)
    return listed(
        request, [found for found in _from(asked.vhost, source) if _leads_to(found, kind, destination)]
    )


@ROUTES.post(BETWEEN)
async def post_binding(request: web.Request) -> web.Response:
    asked = Request(request)
    field = Field(await asked.body())
    source, kind, destination = _ends(asked)
    routing_key, arguments = field.text("routing_key", ""), field.table("arguments")
    method: Method
    if kind == "queue":
        # The method would take an empty queue and key for the last queue declared, but a path has no empty part.
        method = QueueBind(queue=destination, exchange=source, routing_key=routing_key, arguments=arguments)
    else:
        method = ExchangeBind(
            destination=destination, source=source, routing_key=routing_key, arguments=arguments
        )
    await asked.administer(method)
    key = properties_key(Binding(source, "queue", "", routing_key, Binding.arguments_text(arguments)))
    location = f"{quote(destination, safe='')}/{quote(key, safe='~')}"
    return web.Response(status=201, headers={"Location": location})


@ROUTES.get(BETWEEN + "/{properties}")
async def get_binding(request: web.Request) -> web.Response:
    asked = Request(request)
    return web.json_response(binding_json(asked.vhost, _binding(asked)))


@ROUTES.delete(BETWEEN + "/{properties}")
async def delete_binding(request: web.Request) -> web.Response:
    asked = Request(request)
    binding = _binding(asked)
    key, arguments = binding.routing_key, binding_json(asked.vhost, binding)["arguments"]
    method: Method
    if binding.kind == "queue":
        method = QueueUnbind(
            queue=binding.destination, exchange=binding.source, routing_key=key, arguments=arguments
        )
    else:
        method = ExchangeUnbind(
            destination=binding.destination, source=binding.source, routing_key=key, arguments=arguments
        )
    await asked.administer(method)
    return web.Response(status=204)


def _all(vhost: Vhost) -> Iterator[Json]:
    for _, queue in sorted(vhost.queues.items()):
        yield default_binding_json(queue)
    for _, exchange in sorted(vhost.exchanges.items()):
        yield from _described(vhost, exchange.bindings)


def _from(vhost: Vhost, source: str) -> Iterator[Json]:
    if source == "":
        for _, queue in sorted(vhost.queues.items()):
            yield default_binding_json(queue)
    elif source in vhost.exchanges:
        yield from _described(vhost, vhost.exchanges[source].bindings)


def _to_queue(vhost: Vhost, name: str) -> Iterator[Json]:
    if name in vhost.queues:
        yield default_binding_json(vhost.queues[name])
        yield from _described(vhost, vhost.queues[name].bindings)


def _to_exchange(vhost: Vhost, name: str) -> Iterator[Json]:
    if name in vhost.exchanges:
        yield from _described(vhost, vhost.exchanges[name].feeders)


def _described(vhost: Vhost, bindings: Iterable[Binding]) -> Iterator[Json]:
    for binding in sorted(bindings, key=lambda made: (made.source, made.destination, made.routing_key)):
        yield binding_json(vhost, binding)


def _leads_to(found: Json, kind: str, destination: str) -> bool:
    return bool(found["destination_type"] == kind and found["destination"] == destination)


def _ends(asked: Request) -> tuple[str, str, str]:
    """Source, kind of destination and destination of the path."""
    kind = "queue" if asked.name("kind") == "q" else "exchange"
    return exchange_name(asked.name("source")), kind, exchange_name(asked.name("destination"))


def _binding(asked: Request) -> Binding:
    """The one that the path means. Its last part is escaped twice by careful clients and once by others."""
    source, kind, destination = _ends(asked)
    exchange = asked.vhost.exchanges.get(source)
    properties = asked.name("properties")
    for binding in exchange.bindings if exchange is not None else ():
        key = properties_key(binding)
        if binding.kind == kind and binding.destination == destination and properties in (key, unquote(key)):
            return binding
    raise NotFound
