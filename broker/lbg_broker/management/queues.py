"""Exchanges, queues and bindings: /api/exchanges, /api/queues, /api/bindings."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote, unquote

from aiohttp import web

from lbg_broker.core.entities import Queue, Vhost
from lbg_broker.core.exchange import Binding, Exchange
from lbg_broker.management.json_objects import (
    binding_json,
    consumer_json,
    default_binding,
    exchange_json,
    message_json,
    properties_key,
    queue_json,
)
from lbg_broker.management.request import (
    Field,
    NotAuthorised,
    NotFound,
    Request,
    chosen,
    described,
    listed,
    number_in,
    streamed,
)
from lbg_core.amqp.methods import (
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

ROUTES = web.RouteTableDef()
DEFAULT_EXCHANGE = "amq.default"

MESSAGES_MAX = 5000
BODY_MAX_BYTES = 1 << 20


class _Placed(NamedTuple):
    name: str
    vhost: Vhost
    exchange: Exchange


def exchange_name(part: str) -> str:
    """An exchange's name in a path: the default one, which has none, is written `amq.default`."""
    return "" if part == DEFAULT_EXCHANGE else part


@ROUTES.get("/api/exchanges")
@ROUTES.get("/api/exchanges/{vhost}")
async def list_exchanges(request: web.Request) -> web.StreamResponse:
    exchanges = [
        _Placed(exchange.name, vhost, exchange)
        for vhost in Request(request).visible_vhosts
        for exchange in vhost.exchanges.values()
    ]
    return await described(request, exchanges, lambda one, _columns: exchange_json(one.vhost, one.exchange))


@ROUTES.get("/api/exchanges/{vhost}/{name}")
async def get_exchange(request: web.Request) -> web.Response:
    api_request = Request(request)
    return web.json_response(chosen(request, exchange_json(api_request.vhost, _exchange(api_request))))


@ROUTES.put("/api/exchanges/{vhost}/{name}")
async def put_exchange(request: web.Request) -> web.Response:
    api_request = Request(request)
    field, vhost, name = Field(await api_request.body()), api_request.vhost, exchange_name(api_request.name())
    existing = name in vhost.exchanges
    method = ExchangeDeclare(
        exchange=name,
        type=field.text("type", "direct"),
        durable=field.boolean("durable"),
        auto_delete=field.boolean("auto_delete"),
        internal=field.boolean("internal"),
        arguments=field.table("arguments"),
    )
    await api_request.administer(method)
    return web.Response(status=204 if existing else 201)


@ROUTES.delete("/api/exchanges/{vhost}/{name}")
async def delete_exchange(request: web.Request) -> web.Response:
    api_request = Request(request)
    method = ExchangeDelete(exchange=_exchange(api_request).name, if_unused=api_request.flag("if-unused"))
    await api_request.administer(method)
    return web.Response(status=204)


@ROUTES.get("/api/queues")
@ROUTES.get("/api/queues/{vhost}")
async def list_queues(request: web.Request) -> web.StreamResponse:
    vhosts = Request(request).visible_vhosts
    queues = [queue for vhost in vhosts for queue in vhost.queues.values()]
    return await described(request, queues, queue_json)


@ROUTES.get("/api/queues/{vhost}/{name}")
async def get_queue(request: web.Request) -> web.Response:
    queue = _queue(Request(request))
    details = [consumer_json(consumer) for consumer in queue.policy.consumers]
    return web.json_response(chosen(request, {**queue_json(queue), "consumer_details": details}))


@ROUTES.put("/api/queues/{vhost}/{name}")
async def put_queue(request: web.Request) -> web.Response:
    api_request = Request(request)
    field, vhost, name = Field(await api_request.body()), api_request.vhost, api_request.name()
    existing = name in vhost.queues
    method = QueueDeclare(
        queue=name,
        durable=field.boolean("durable"),
        auto_delete=field.boolean("auto_delete"),
        arguments=field.table("arguments"),
    )
    await api_request.administer(method)
    return web.Response(status=204 if existing else 201)


@ROUTES.delete("/api/queues/{vhost}/{name}")
async def delete_queue(request: web.Request) -> web.Response:
    api_request = Request(request)
    method = QueueDelete(
        queue=_queue(api_request).name,
        if_unused=api_request.flag("if-unused"),
        if_empty=api_request.flag("if-empty"),
    )
    await api_request.administer(method)
    return web.Response(status=204)


@ROUTES.delete("/api/queues/{vhost}/{name}/contents")
async def purge_queue(request: web.Request) -> web.Response:
    api_request = Request(request)
    await api_request.administer(QueuePurge(queue=_queue(api_request).name))
    return web.Response(status=204)


@ROUTES.get("/api/lbg/queues/{vhost}/{name}/messages")
async def list_messages(request: web.Request) -> web.StreamResponse:
    """The first undelivered messages of a queue that are in memory, in the words of RabbitMQ's `/get`, which would take
    and requeue them. `count`: at most so many of each line of the queue; `truncate`: bytes of a body."""
    api_request = Request(request)
    queue = _queue(api_request)
    if not api_request.broker.users.can(api_request.user.name, api_request.vhost.name, "read", queue.name):
        raise NotAuthorised("Access refused.")
    count = number_in(request, "count", default=100, most=MESSAGES_MAX)
    truncate = number_in(request, "truncate", default=1000, most=BODY_MAX_BYTES)
    heads = [one for line in queue.lines for one in line.head(count)]
    return await streamed(request, heads, lambda one: message_json(*one, truncate))


@ROUTES.post("/api/lbg/queues/{vhost}/{name}/{action}")
async def act_on_queue(request: web.Request) -> web.Response:
    """Carries out what RabbitMQ's API has no path for: an action of the queue's kind (docs/embedded-broker.md)."""
    api_request = Request(request)
    body, queue = await api_request.body(), _queue(api_request)
    answer = await api_request.broker.act(
        api_request.user.name, api_request.vhost.name, queue.name, api_request.name("action"), body
    )
    return web.json_response(answer)


def _exchange(api_request: Request) -> Exchange:
    exchange = api_request.vhost.exchanges.get(exchange_name(api_request.name()))
    if exchange is None:
        raise NotFound
    return exchange


def _queue(api_request: Request) -> Queue:
    queue = api_request.vhost.queues.get(api_request.name())
    if queue is None:
        raise NotFound
    return queue


BETWEEN = "/api/bindings/{vhost}/e/{source}/{kind:[qe]}/{destination}"


@ROUTES.get("/api/bindings")
@ROUTES.get("/api/bindings/{vhost}")
async def list_bindings(request: web.Request) -> web.StreamResponse:
    return await _listed(request, [one for vhost in Request(request).visible_vhosts for one in _all(vhost)])


@ROUTES.get("/api/queues/{vhost}/{name}/bindings")
async def list_of_queue(request: web.Request) -> web.StreamResponse:
    api_request = Request(request)
    return await _listed(request, _to_queue(api_request.vhost, api_request.name()))


@ROUTES.get("/api/exchanges/{vhost}/{name}/bindings/{end:source|destination}")
async def list_of_exchange(request: web.Request) -> web.StreamResponse:
    api_request = Request(request)
    name = exchange_name(api_request.name())
    ends = _from if api_request.name("end") == "source" else _to_exchange
    return await _listed(request, ends(api_request.vhost, name))


@ROUTES.get(BETWEEN)
async def list_between(request: web.Request) -> web.StreamResponse:
    api_request = Request(request)
    source, kind, destination = _ends(api_request)
    found = _from(api_request.vhost, source)
    return await _listed(
        request, [one for one in found if (one[1].kind, one[1].destination) == (kind, destination)]
    )


@ROUTES.post(BETWEEN)
async def post_binding(request: web.Request) -> web.Response:
    api_request = Request(request)
    field = Field(await api_request.body())
    source, kind, destination = _ends(api_request)
    routing_key, arguments = field.text("routing_key", ""), field.table("arguments")
    method: Method
    if kind == "queue":
        # The method would take an empty queue and key for the last queue declared, but a path has no empty part.
        method = QueueBind(queue=destination, exchange=source, routing_key=routing_key, arguments=arguments)
    else:
        method = ExchangeBind(
            destination=destination, source=source, routing_key=routing_key, arguments=arguments
        )
    await api_request.administer(method)
    key = properties_key(Binding(source, "queue", "", routing_key, Binding.arguments_text(arguments)))
    location = f"{quote(destination, safe='')}/{quote(key, safe='~')}"
    return web.Response(status=201, headers={"Location": location})


@ROUTES.get(BETWEEN + "/{properties}")
async def get_binding(request: web.Request) -> web.Response:
    api_request = Request(request)
    return web.json_response(binding_json(api_request.vhost, _binding(api_request)))


@ROUTES.delete(BETWEEN + "/{properties}")
async def delete_binding(request: web.Request) -> web.Response:
    api_request = Request(request)
    binding = _binding(api_request)
    key, arguments = binding.routing_key, binding_json(api_request.vhost, binding)["arguments"]
    method: Method
    if binding.kind == "queue":
        method = QueueUnbind(
            queue=binding.destination, exchange=binding.source, routing_key=key, arguments=arguments
        )
    else:
        method = ExchangeUnbind(
            destination=binding.destination, source=binding.source, routing_key=key, arguments=arguments
        )
    await api_request.administer(method)
    return web.Response(status=204)


_Found = tuple[Vhost, Binding]


async def _listed(request: web.Request, found: list[_Found]) -> web.StreamResponse:
    return await listed(request, found, lambda one, _columns: binding_json(*one))


def _all(vhost: Vhost) -> list[_Found]:
    bindings = [(vhost, one) for _, exchange in sorted(vhost.exchanges.items()) for one in exchange.bindings]
    return _from(vhost, "") + bindings


def _from(vhost: Vhost, source: str) -> list[_Found]:
    if source == "":
        return [(vhost, default_binding(queue)) for _, queue in sorted(vhost.queues.items())]
    return [(vhost, one) for one in vhost.exchanges[source].bindings] if source in vhost.exchanges else []


def _to_queue(vhost: Vhost, name: str) -> list[_Found]:
    queue = vhost.queues.get(name)
    return [] if queue is None else [(vhost, one) for one in (default_binding(queue), *queue.bindings)]


def _to_exchange(vhost: Vhost, name: str) -> list[_Found]:
    return [(vhost, one) for one in vhost.exchanges[name].feeders] if name in vhost.exchanges else []


def _ends(api_request: Request) -> tuple[str, str, str]:
    """Source, kind of destination and destination of the path."""
    kind = "queue" if api_request.name("kind") == "q" else "exchange"
    return exchange_name(api_request.name("source")), kind, exchange_name(api_request.name("destination"))


def _binding(api_request: Request) -> Binding:
    """The one that the path means. Its last part is escaped twice by careful clients and once by others."""
    source, kind, destination = _ends(api_request)
    exchange = api_request.vhost.exchanges.get(source)
    properties = api_request.name("properties")
    key = properties.partition("~")[0]
    keys = {key, unquote(key), unquote(properties)}
    for binding in exchange.bindings if exchange is not None else ():
        if binding.kind == kind and binding.destination == destination and binding.routing_key in keys:
            written = properties_key(binding)
            if properties in (written, unquote(written)):
                return binding
    raise NotFound
