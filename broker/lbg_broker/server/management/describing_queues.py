"""A queue as RabbitMQ's JSON, column by column: lists of thousands are asked for two or three."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

from lbg_broker.server.core.queue import Queue
from lbg_broker.server.management.describing import NODE, peer_json, plain
from lbg_broker.server.management.listing import Columns

__all__ = ["queue_json"]

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
