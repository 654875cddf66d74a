"""What exists, as RabbitMQ's JSON: one pure function per kind of object.

A field of RabbitMQ's that is missing here has no meaning in this broker: Erlang's memory, sampled rates.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote

from lbg_broker.passwords import RABBITMQ_SHA256, hash_algorithm
from lbg_broker.server.core.channel import Channel
from lbg_broker.server.core.connection import Connection
from lbg_broker.server.core.consumer import Consumer
from lbg_broker.server.core.exchange import Binding, Exchange
from lbg_broker.server.core.queue import Queue
from lbg_broker.server.core.users import Grant, User
from lbg_broker.server.core.vhost import Vhost

__all__ = [
    "NODE",
    "binding_json",
    "channel_json",
    "connection_json",
    "consumer_json",
    "counts_json",
    "default_binding_json",
    "exchange_json",
    "grant_json",
    "peer_json",
    "plain",
    "user_json",
    "vhost_json",
]

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
        "arguments": json.loads(binding.arguments),
        "properties_key": properties_key(binding),
    }


def default_binding_json(queue: Queue) -> Json:
    """The binding to the default exchange, which every queue has and nobody made."""
    return binding_json(queue.vhost, Binding("", "queue", queue.name, queue.name))


def properties_key(binding: Binding) -> str:
    """What tells a binding from others between the same two: the key escaped, and a hash of any arguments."""
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
