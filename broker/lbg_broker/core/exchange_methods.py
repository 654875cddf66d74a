"""exchange.* and queue.bind: declaring, binding, deleting."""

from __future__ import annotations

from typing import Final

from lbg_broker.core.arguments import check_exchange_arguments, inequivalent, same_arguments
from lbg_broker.core.definitions import define_binding, define_exchange
from lbg_broker.core.entities import Vhost
from lbg_broker.core.errors import ChannelRefusal, ConnectionRefusal
from lbg_broker.core.exchange import EXCHANGE_TYPES, Binding, Exchange, searched_words
from lbg_broker.core.resources import (
    Principal,
    check_not_default,
    check_not_reserved,
    check_owner,
    check_permission,
    find_exchange,
    find_queue,
    queue_name,
)
from lbg_broker.core.state import State
from lbg_core.amqp import ReplyCode
from lbg_core.amqp.methods import (
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    ExchangeDelete,
    ExchangeDeleteOk,
    ExchangeUnbind,
    ExchangeUnbindOk,
    QueueBind,
    QueueBindOk,
    QueueUnbind,
    QueueUnbindOk,
)


def declare_exchange(state: State, actor: Principal, method: ExchangeDeclare) -> ExchangeDeclareOk:
    """exchange.declare."""
    vhost, name = actor.vhost, method.exchange
    where = f"exchange '{name}' in vhost '{vhost.name}'"
    if method.passive:
        check_not_default(name)
        find_exchange(actor, name)
        return ExchangeDeclareOk()
    if method.type == "headers":
        raise ConnectionRefusal(ReplyCode.NOT_IMPLEMENTED, f"exchange type 'headers' of {where}")
    if method.type not in EXCHANGE_TYPES:
        raise ConnectionRefusal(ReplyCode.COMMAND_INVALID, f"unknown exchange type '{method.type}'")
    check_not_default(name)
    check_permission(state, actor, "configure", "exchange", name)
    existing = vhost.exchanges.get(name)
    if existing is not None:
        _check_equivalent(existing, method, where)
        return ExchangeDeclareOk()
    check_not_reserved("exchange", name)
    check_exchange_arguments(method.arguments, where=where)
    alternate = method.arguments.get("alternate-exchange")
    if isinstance(alternate, str):
        check_permission(state, actor, "read", "exchange", name)
        check_permission(state, actor, "write", "exchange", alternate)
    exchange = Exchange(
        name,
        method.type,
        durable=method.durable,
        auto_delete=method.auto_delete,
        internal=method.internal,
        arguments=method.arguments,
    )
    vhost.exchanges[name] = exchange
    vhost.changed()
    if exchange.durable:
        define_exchange(state, vhost, exchange)
    return ExchangeDeclareOk()


def delete_exchange(state: State, actor: Principal, method: ExchangeDelete) -> ExchangeDeleteOk:
    """exchange.delete. An exchange that is not there is deleted already."""
    vhost, name = actor.vhost, method.exchange
    check_not_default(name)
    if name.startswith("amq."):
        raise ChannelRefusal(
            ReplyCode.ACCESS_REFUSED,
            f"deletion of system exchange '{name}' in vhost '{vhost.name}' not allowed",
        )
    check_permission(state, actor, "configure", "exchange", name)
    exchange = vhost.exchanges.get(name)
    if exchange is not None:
        if method.if_unused and exchange.bindings:
            raise ChannelRefusal(
                ReplyCode.PRECONDITION_FAILED, f"exchange '{name}' in vhost '{vhost.name}' in use"
            )
        _remove_exchange(state, vhost, exchange)
    return ExchangeDeleteOk()


def bind_queue(state: State, actor: Principal, method: QueueBind) -> QueueBindOk:
    """queue.bind."""
    binding = _queue_binding(state, actor, method)
    find_exchange(actor, method.exchange)
    check_owner(actor, find_queue(actor, binding.destination))
    _add_binding(state, actor.vhost, binding)
    return QueueBindOk()


def unbind_queue(state: State, actor: Principal, method: QueueUnbind) -> QueueUnbindOk:
    """queue.unbind. What is not bound, or not there, is unbound already."""
    binding = _queue_binding(state, actor, method)
    queue = actor.vhost.queues.get(binding.destination)
    if queue is not None:
        check_owner(actor, queue)
        remove_binding(state, actor.vhost, binding)
    return QueueUnbindOk()


def bind_exchange(state: State, actor: Principal, method: ExchangeBind) -> ExchangeBindOk:
    """exchange.bind."""
    binding = _exchange_binding(state, actor, method)
    find_exchange(actor, method.source)
    find_exchange(actor, method.destination)
    _add_binding(state, actor.vhost, binding)
    return ExchangeBindOk()


def unbind_exchange(state: State, actor: Principal, method: ExchangeUnbind) -> ExchangeUnbindOk:
    """exchange.unbind."""
    remove_binding(state, actor.vhost, _exchange_binding(state, actor, method))
    return ExchangeUnbindOk()


def remove_binding(state: State, vhost: Vhost, binding: Binding) -> None:
    """Remove a binding if there is one, and the exchange it comes from if that was all it was for."""
    exchange = vhost.exchanges.get(binding.source)
    if exchange is None or binding not in exchange.bindings:
        return
    if vhost.is_durable(binding):
        define_binding(state, vhost, binding, there=False)
    vhost.unbind(binding)
    if exchange.auto_delete and not exchange.bindings:
        _remove_exchange(state, vhost, exchange)


SEARCHED_WORDS_MAX: Final = 1000
"""Of an exchange. With so many, a publish with 128 words takes at most 0.1 s."""


def _add_binding(state: State, vhost: Vhost, binding: Binding) -> None:
    exchange = vhost.exchanges[binding.source]
    if exchange.type == "topic" and binding not in exchange.bindings:
        more = searched_words(binding.routing_key)
        if more and exchange.searched_words + more > SEARCHED_WORDS_MAX:
            raise ChannelRefusal(
                ReplyCode.PRECONDITION_FAILED,
                f"the patterns of exchange '{exchange.name}' in vhost '{vhost.name}' have more than "
                f"{SEARCHED_WORDS_MAX} words behind a '#'",
            )
    if vhost.bind(binding) and vhost.is_durable(binding):
        define_binding(state, vhost, binding, there=True)


def _remove_exchange(state: State, vhost: Vhost, exchange: Exchange) -> None:
    for binding in list(exchange.bindings):
        if vhost.is_durable(binding):
            define_binding(state, vhost, binding, there=False)
        vhost.unbind(binding)
    for binding in list(exchange.feeders):
        remove_binding(state, vhost, binding)
    del vhost.exchanges[exchange.name]
    vhost.changed()
    if exchange.durable:
        define_exchange(state, vhost, exchange, there=False)


def _queue_binding(state: State, actor: Principal, method: QueueBind | QueueUnbind) -> Binding:
    name = queue_name(actor, method.queue)
    # Both names empty: the queue's own name is meant (AMQP 0-9-1, queue.bind, routing-key).
    routing_key = name if not method.queue and not method.routing_key else method.routing_key
    check_not_default(method.exchange)
    check_permission(state, actor, "write", "queue", name)
    check_permission(state, actor, "read", "exchange", method.exchange)
    return Binding(method.exchange, "queue", name, routing_key, Binding.arguments_text(method.arguments))


def _exchange_binding(state: State, actor: Principal, method: ExchangeBind | ExchangeUnbind) -> Binding:
    check_not_default(method.source)
    check_not_default(method.destination)
    check_permission(state, actor, "write", "exchange", method.destination)
    check_permission(state, actor, "read", "exchange", method.source)
    return Binding(
        method.source,
        "exchange",
        method.destination,
        method.routing_key,
        Binding.arguments_text(method.arguments),
    )


def _check_equivalent(exchange: Exchange, method: ExchangeDeclare, where: str) -> None:
    for name, received, current in (
        ("type", method.type, exchange.type),
        ("durable", method.durable, exchange.durable),
        ("auto_delete", method.auto_delete, exchange.auto_delete),
        ("internal", method.internal, exchange.internal),
    ):
        if received != current:
            raise inequivalent(name, where, received, current)
    same_arguments(method.arguments, exchange.arguments, names=("alternate-exchange",), where=where)
