"""Durable exchanges, queues and bindings as rows of the store, and back."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

from lbg_broker.core.arguments import QueueArguments
from lbg_broker.core.effects import StoredState
from lbg_broker.core.entities import Queue, Vhost
from lbg_broker.core.errors import Refusal, RestoreError
from lbg_broker.core.exchange import Binding, Exchange
from lbg_broker.core.queue_factory import make_queue, queue_type_of
from lbg_broker.core.state import State
from lbg_core.amqp import FieldValue, decode_table, encode_table

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
    value: dict[str, object] = {
        "auto_delete": queue.auto_delete,
        "arguments": _packed(queue.arguments),
    }
    if queue.rules.kind is None:
        value["spool"] = queue.spool.id
    else:
        value["lines"] = [line.id for line in queue.lines]
        value["kept"] = queue.policy.stored_state()
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
    state.next_spool = max(records, default=0) + 1  # a kind may make new lines while it is restored
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
            rules = QueueArguments.parse(arguments, where=f"queue '{name}'")
            ids, policy_state = value.get("lines") or [value["spool"]], value.get("kept", {})
            lines = queue_type_of(rules).restored_lines(
                state, rules, [records[line] for line in ids], policy_state
            )
            state.spools.update((line.id, line) for line in lines)
            make_queue(
                state,
                vhost,
                name,
                durable=True,
                auto_delete=value["auto_delete"],
                owner=None,
                arguments=arguments,
                rules=rules,
                lines=lines,
                stored=policy_state,
            )
        for (vhost_name, source, kind, destination, routing_key, arguments_text), _ in by_kind["binding"]:
            _vhost(state, vhost_name).bind(Binding(source, kind, destination, routing_key, arguments_text))
    except (KeyError, TypeError, ValueError, Refusal) as error:
        raise RestoreError(f"the stored definitions cannot be read: {error!r}") from error


def _vhost(state: State, name: str) -> Vhost:
    return state.vhosts.setdefault(name, Vhost(name, state.wide))


def _text(value: Mapping[str, object] | Iterable[object]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _packed(arguments: Mapping[str, FieldValue]) -> str:
    """Arguments as they came on the wire: JSON has not all their types."""
    return base64.b64encode(encode_table(arguments)).decode()


def _unpacked(text: str) -> dict[str, FieldValue]:
    return decode_table(base64.b64decode(text))
