"""Objects of the broker as RabbitMQ's JSON.

A field of RabbitMQ's that is missing here has no meaning in this broker: Erlang's memory, sampled rates.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from lbg_broker.core.entities import Channel, Connection, Consumer, Queue, Vhost
from lbg_broker.core.exchange import Binding, Exchange
from lbg_broker.core.message import Message
from lbg_broker.core.permissions import Grant, User
from lbg_broker.management.request import Columns
from lbg_core.amqp import BasicProperties, DecodeError
from lbg_core.passwords import RABBITMQ_SHA256, hash_algorithm

Json = dict[str, Any]

NODE: Final = "lbg@localhost"
"""The one node there is, in the form of an Erlang node's name, which tools take apart at the @."""


def vhost_json(vhost: Vhost) -> Json:
    description = "Default virtual host" if vhost.name == "/" else ""
    return {
        "name": vhost.name,
        "description": description,
        "tags": [],
        "metadata": {"description": description, "tags": []},
        "default_queue_type": "undefined",
        "tracing": False,
        "cluster_state": {NODE: "running"},
        **counts_json(vhost.queues.values()),
    }


def user_json(user: User) -> Json:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": hash_algorithm(user.password_hash) or RABBITMQ_SHA256,
        "tags": list(user.tags),
        "limits": {},
    }


def grant_json(grant: Grant) -> Json:
    return dict(grant.to_row())


def message_json(message: Message, redelivered: bool, truncate: int) -> Json:
    """A message as RabbitMQ's `/get` has it, with `truncate` bytes of its body and the headers that JSON can have."""
    body = message.body[:truncate]
    try:
        payload, encoding = body.decode(), "string"
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data" and len(body) < len(message.body) and error.start:
            payload, encoding = body[: error.start].decode(), "string"
        else:
            payload, encoding = base64.b64encode(body).decode(), "base64"
    properties = {}
    with suppress(DecodeError):
        decoded = BasicProperties.decode(message.header)
        properties = {field.name: getattr(decoded, field.name) for field in fields(decoded)}
    properties["headers"] = {
        name: plain(value)
        for name, value in (properties.get("headers") or {}).items()
        if value is None or isinstance(value, str | int | float | bool)
    }
    return {
        "exchange": message.origin.exchange,
        "routing_key": message.origin.routing_key,
        "redelivered": redelivered,
        "payload": payload,
        "payload_encoding": encoding,
        "payload_bytes": message.size,
        "properties": {name: value for name, value in properties.items() if value is not None},
    }


def exchange_json(vhost: Vhost, exchange: Exchange) -> Json:
    return {
        "name": exchange.name,
        "vhost": vhost.name,
        "type": exchange.type,
        "durable": exchange.durable,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": plain(exchange.arguments),
    }


def consumer_json(consumer: Consumer) -> Json:
    queue, channel = consumer.queue, consumer.channel
    active = queue.policy.is_active(consumer)
    status = "up"
    if queue.rules.single_active_consumer:
        status = "single_active" if active else "waiting"
    return {
        "consumer_tag": consumer.tag,
        "queue": {"name": queue.name, "vhost": queue.vhost.name},
        "channel_details": {
            "name": channel_name(channel),
            "number": channel.number,
            "node": NODE,
            "connection_name": channel.connection.peer.name,
            "peer_host": channel.connection.peer.host,
            "peer_port": channel.connection.peer.port,
            "user": channel.user,
        },
        "ack_required": not consumer.no_ack,
        "active": active,
        "activity_status": status,
        "exclusive": consumer.exclusive,
        "prefetch_count": consumer.prefetch,
        "arguments": plain(consumer.arguments),
    }


def connection_json(connection: Connection) -> Json:
    peer = connection.peer
    return {
        **peer_json(connection),
        "node": NODE,
        "type": "network",
        "protocol": "AMQP 0-9-1",
        "user": connection.user,
        "vhost": connection.vhost.name,
        "state": "flow" if connection.paused else "running",
        "channels": len(connection.channels),
        "connected_at": round(connection.opened_at * 1000),
        "client_properties": plain(peer.client_properties),
        "ssl": peer.tls,
    }


def channel_json(channel: Channel) -> Json:
    return {
        "name": channel_name(channel),
        "number": channel.number,
        "node": NODE,
        "user": channel.user,
        "vhost": channel.vhost.name,
        "state": "closing" if channel.closing else "running",
        "confirm": channel.confirms,
        "transactional": False,
        "consumer_count": len(channel.consumers),
        "messages_unacknowledged": len(channel.unsettled),
        "prefetch_count": channel.prefetch,
        "global_prefetch_count": channel.prefetch_total,
        "connection_details": peer_json(channel.connection),
    }


def channel_name(channel: Channel) -> str:
    return f"{channel.connection.peer.name} ({channel.number})"


def binding_json(vhost: Vhost, binding: Binding) -> Json:
    return {
        "source": binding.source,
        "vhost": vhost.name,
        "destination": binding.destination,
        "destination_type": binding.kind,
        "routing_key": binding.routing_key,
        "arguments": plain(json.loads(binding.arguments)),
        "properties_key": properties_key(binding),
    }


def default_binding(queue: Queue) -> Binding:
    """The binding to the default exchange, which every queue has by itself."""
    return Binding("", "queue", queue.name, queue.name)


def properties_key(binding: Binding) -> str:
    """Key of a binding among those between the same two: the key escaped, and a hash of any arguments."""
    key = quote(binding.routing_key, safe="").replace("~", "%7E")
    if binding.arguments == "{}":
        return key or "~"
    digest = zlib.crc32(binding.arguments.encode()).to_bytes(4, "big")
    return f"{key}~{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def plain(value: Any) -> Any:
    """A field table as JSON: what JSON has no type for becomes text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes | bytearray):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str | int | float | bool) or value is None else str(value)


def peer_json(connection: Connection) -> Json:
    peer = connection.peer
    return {"name": peer.name, "peer_host": peer.host, "peer_port": peer.port}


def counts_json(queues: Iterable[Queue]) -> Json:
    counted = [(queue.messages_ready, queue.messages_unacknowledged) for queue in queues]
    ready, unacknowledged = sum(one for one, _ in counted), sum(one for _, one in counted)
    return {
        "messages": ready + unacknowledged,
        "messages_ready": ready,
        "messages_unacknowledged": unacknowledged,
    }


Field = Callable[[Queue], Any]


def queue_json(queue: Queue, columns: Columns = None) -> dict[str, Any]:
    """A queue as of now. `policy` and its kin are null: policies do not exist here, so none is in effect."""
    described = {name: field(queue) for name, field in _chosen(columns)}
    if columns is None or not columns <= _FIELDS.keys():
        special = queue.policy.describe()
        described |= {name: value for name, value in special.items() if columns is None or name in columns}
    if queue.owner is not None:
        described["owner_pid_details"] = peer_json(queue.owner)
    if queue.rules.queue_type == "quorum":
        described |= {"leader": NODE, "members": [NODE], "online": [NODE]}
    return described


@lru_cache(maxsize=64)
def _chosen(columns: Columns) -> tuple[tuple[str, Field], ...]:
    return tuple((name, field) for name, field in _FIELDS.items() if columns is None or name in columns)


def _single_active(queue: Queue) -> str | None:
    consumers = queue.policy.consumers
    return consumers[0].tag if queue.rules.single_active_consumer and consumers else None


def _exclusive(queue: Queue) -> str | None:
    return next((consumer.tag for consumer in queue.policy.consumers if consumer.exclusive), None)


_FIELDS: Final[Mapping[str, Field]] = {
    "name": lambda queue: queue.name,
    "vhost": lambda queue: queue.vhost.name,
    "type": lambda queue: queue.rules.queue_type,
    "node": lambda _queue: NODE,
    "state": lambda _queue: "running",
    "durable": lambda queue: queue.declared_durable,
    "auto_delete": lambda queue: queue.auto_delete,
    "exclusive": lambda queue: queue.owner is not None,
    "arguments": lambda queue: plain(queue.arguments),
    "policy": lambda _queue: None,
    "operator_policy": lambda _queue: None,
    "effective_policy_definition": lambda _queue: {},
    "consumers": lambda queue: len(queue.policy.consumers),
    "single_active_consumer_tag": _single_active,
    "exclusive_consumer_tag": _exclusive,
    "message_bytes": lambda queue: queue.bytes_ready + queue.bytes_unacknowledged,
    "message_bytes_ready": lambda queue: queue.bytes_ready,
    "message_bytes_unacknowledged": lambda queue: queue.bytes_unacknowledged,
    "head_message_timestamp": lambda _queue: None,
    "messages": lambda queue: queue.messages_ready + queue.messages_unacknowledged,
    "messages_ready": lambda queue: queue.messages_ready,
    "messages_unacknowledged": lambda queue: queue.messages_unacknowledged,
}
