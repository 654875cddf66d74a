"""Durable things as rows of the store, and back: exchanges, queues, bindings."""

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from lbg_broker.amqp import FieldValue, decode_table, encode_table
from lbg_broker.server.core.arguments import QueueArguments
from lbg_broker.server.core.changes import StoredState
from lbg_broker.server.core.errors import RestoreError
from lbg_broker.server.core.exchange import Binding, Exchange
from lbg_broker.server.core.queue import Queue
from lbg_broker.server.core.spool import Spool
from lbg_broker.server.core.state import State
from lbg_broker.server.core.vhost import Vhost

__all__ = ["KINDS", "define_binding", "define_exchange", "define_queue", "restore"]

KINDS = ("exchange", "queue", "binding")
"""The kinds of definition that are read here; others (users, permissions) have readers of their own."""


def define_exchange(state: State, vhost: Vhost, exchange: Exchange, *, there: bool = True) -> None:
    """Keep a durable exchange, or delete it."""
    value = {
        "type": exchange.type,
        "auto_delete": exchange.auto_delete,
        "internal": exchange.internal,
        "arguments": _packed(exchange.arguments),
    }
    state.define("exchange", _text([vhost.name, exchange.name]), _text(value) if there else None)


def define_queue(state: State, vhost: Vhost, queue: Queue, *, there: bool = True) -> None:
    """Keep a durable queue, or delete it."""
    value = {
        "spool": queue.spool.id,
        "auto_delete": queue.auto_delete,
        "arguments": _packed(queue.arguments),
    }
    state.define("queue", _text([vhost.name, queue.name]), _text(value) if there else None)


def define_binding(state: State, vhost: Vhost, binding: Binding, *, there: bool = True) -> None:
    """Keep a binding between durable things, or delete it."""
    key = [
        vhost.name,
        binding.source,
        binding.kind,
        binding.destination,
        binding.routing_key,
        binding.arguments,
    ]
    state.define("binding", _text(key), "{}" if there else None)


def restore(state: State, stored: StoredState) -> None:
    """Build exchanges, queues and bindings from what the store holds. Raises `RestoreError`."""
    by_kind: dict[str, list[tuple[Any, Any]]] = {kind: [] for kind in KINDS}
    for definition in stored.definitions:
        if definition.kind in by_kind and definition.value is not None:
            by_kind[definition.kind].append((json.loads(definition.key), json.loads(definition.value)))
    records = {record.spool: record for record in stored.spools}
    try:
        for (vhost_name, name), value in by_kind["exchange"]:
            _vhost(state, vhost_name).exchanges[name] = Exchange(
                name,
                value["type"],
                durable=True,
                auto_delete=value["auto_delete"],
                internal=value["internal"],
                arguments=_unpacked(value["arguments"]),
            )
        for (vhost_name, name), value in by_kind["queue"]:
            vhost = _vhost(state, vhost_name)
            arguments = _unpacked(value["arguments"])
            queue = Queue(
                vhost,
                name,
                durable=True,
                auto_delete=value["auto_delete"],
                owner=None,
                arguments=arguments,
                rules=QueueArguments.parse(arguments, where=f"queue '{name}'"),
                spool=Spool.restored(records[value["spool"]], touched=state.touched),
            )
            vhost.queues[name] = queue
            state.spools[queue.spool.id] = queue.spool
        for (vhost_name, source, kind, destination, routing_key, arguments_text), _ in by_kind["binding"]:
            _vhost(state, vhost_name).bind(Binding(source, kind, destination, routing_key, arguments_text))
    except (KeyError, TypeError, ValueError) as error:
        raise RestoreError(f"the stored definitions cannot be read: {error!r}") from error
    state.next_spool = max(records, default=0) + 1


def _vhost(state: State, name: str) -> Vhost:
    return state.vhosts.setdefault(name, Vhost(name))


def _text(value: Mapping[str, object] | Iterable[object]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _packed(arguments: Mapping[str, FieldValue]) -> str:
    """Arguments as they came on the wire: JSON has not all their types."""
    return base64.b64encode(encode_table(arguments)).decode()


def _unpacked(text: str) -> dict[str, FieldValue]:
    return decode_table(base64.b64decode(text))
