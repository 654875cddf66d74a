"""Bindings: /api/bindings, and those of one exchange or queue."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, unquote

from aiohttp import web

from lbg_broker.amqp.methods import ExchangeBind, ExchangeUnbind, Method, QueueBind, QueueUnbind
from lbg_broker.server.core.exchange import Binding
from lbg_broker.server.core.vhost import Vhost
from lbg_broker.server.management.asking import Asked, Field
from lbg_broker.server.management.describing import binding_json, default_binding_json, properties_key
from lbg_broker.server.management.errors import NotFound
from lbg_broker.server.management.listing import listed
from lbg_broker.server.management.topology import exchange_name

__all__ = ["ROUTES"]

ROUTES = web.RouteTableDef()
BETWEEN = "/api/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}"
Json = dict[str, Any]


@ROUTES.get("/api/bindings")
@ROUTES.get("/api/bindings/{vhost}")
async def list_bindings(request: web.Request) -> web.Response:
    return listed(request, [found for vhost in Asked(request).visible_vhosts for found in _all(vhost)])


@ROUTES.get("/api/queues/{vhost}/{name}/bindings")
async def list_of_queue(request: web.Request) -> web.Response:
    asked = Asked(request)
    return listed(request, list(_to_queue(asked.vhost, asked.name())))


@ROUTES.get("/api/exchanges/{vhost}/{name}/bindings/{end:source|destination}")
async def list_of_exchange(request: web.Request) -> web.Response:
    asked = Asked(request)
    name = exchange_name(asked.name())
    ends = _from if asked.name("end") == "source" else _to_exchange
    return listed(request, list(ends(asked.vhost, name)))


@ROUTES.get(BETWEEN)
async def list_between(request: web.Request) -> web.Response:
    asked = Asked(request)
    source, kind, destination = _ends(asked)
    return listed(
        request, [found for found in _from(asked.vhost, source) if _leads_to(found, kind, destination)]
    )


@ROUTES.post(BETWEEN)
async def post_binding(request: web.Request) -> web.Response:
    asked = Asked(request)
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
    asked = Asked(request)
    return web.json_response(binding_json(asked.vhost, _binding(asked)))


@ROUTES.delete(BETWEEN + "/{properties}")
async def delete_binding(request: web.Request) -> web.Response:
    asked = Asked(request)
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


def _ends(asked: Asked) -> tuple[str, str, str]:
    """Source, kind of destination and destination of the path."""
    kind = "queue" if asked.name("kind") == "q" else "exchange"
    return exchange_name(asked.name("source")), kind, exchange_name(asked.name("destination"))


def _binding(asked: Asked) -> Binding:
    """The one that the path means. Its last part is escaped twice by careful clients and once by others."""
    source, kind, destination = _ends(asked)
    exchange = asked.vhost.exchanges.get(source)
    properties = asked.name("properties")
    for binding in exchange.bindings if exchange is not None else ():
        key = properties_key(binding)
        if binding.kind == kind and binding.destination == destination and properties in (key, unquote(key)):
            return binding
    raise NotFound
