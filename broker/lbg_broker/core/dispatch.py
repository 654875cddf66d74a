"""Dispatch of AMQP methods to the functions that carry them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lbg_broker.core import basic_methods, exchange_methods, queue_methods, settle
from lbg_broker.core.entities import Channel
from lbg_broker.core.errors import ConnectionRefusal
from lbg_broker.core.resources import Principal
from lbg_broker.core.state import State
from lbg_core.amqp import ReplyCode
from lbg_core.amqp.methods import (
    AccessRequest,
    AccessRequestOk,
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicCapacity,
    BasicConsume,
    BasicGet,
    BasicNack,
    BasicQos,
    BasicRecover,
    BasicRecoverAsync,
    BasicReject,
    BasicRevokeOk,
    ChannelFlow,
    ChannelFlowOk,
    ConfirmSelect,
    ConfirmSelectOk,
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

ADMINISTERED: Final[dict[type[Method], Callable[[State, Principal, Any], Method]]] = {
    ExchangeDeclare: exchange_methods.declare_exchange,
    ExchangeDelete: exchange_methods.delete_exchange,
    ExchangeBind: exchange_methods.bind_exchange,
    ExchangeUnbind: exchange_methods.unbind_exchange,
    QueueDeclare: queue_methods.declare_queue,
    QueueBind: exchange_methods.bind_queue,
    QueueUnbind: exchange_methods.unbind_queue,
    QueueDelete: queue_methods.delete_queue,
    QueuePurge: queue_methods.purge_queue,
}
"""Methods about what exists: they answer, and need a user but no channel."""


def handle(state: State, channel: Channel, method: Method) -> None:
    """Carry out a method without content. Raises `Refusal`."""
    kind = type(method)
    administered = ADMINISTERED.get(kind)
    if administered is not None:
        before = len(state.batch.definitions)
        answer = administered(state, channel, method)
        durable = len(state.batch.definitions) != before
        state.reply(channel, answer, nowait=getattr(method, "nowait", False), durable=durable)
        return
    handler = _CHANNEL_METHODS.get(kind)
    if handler is None:
        raise ConnectionRefusal(ReplyCode.NOT_IMPLEMENTED, f"method {method.NAME}")
    handler(state, channel, method)


def _select_confirms(state: State, channel: Channel, method: ConfirmSelect) -> None:
    channel.confirms = True
    channel.fenced.clear()
    state.reply(channel, ConfirmSelectOk(), nowait=method.nowait)


def _flow(state: State, channel: Channel, method: ChannelFlow) -> None:
    if not method.active:
        raise ConnectionRefusal(ReplyCode.NOT_IMPLEMENTED, "active=false")
    state.send(channel, ChannelFlowOk(True))


def _ack(state: State, channel: Channel, method: BasicAck) -> None:
    settle.ack(state, channel, method.delivery_tag, method.multiple)


def _ignore(state: State, channel: Channel, method: Method) -> None:
    """An answer to a method that awaits none."""


_CHANNEL_METHODS: Final[dict[type[Method], Callable[[State, Channel, Any], None]]] = {
    AccessRequest: lambda state, channel, _method: state.send(channel, AccessRequestOk()),
    BasicAck: _ack,
    BasicCancel: basic_methods.cancel,
    BasicCancelOk: _ignore,
    BasicCapacity: basic_methods.capacity,
    BasicConsume: basic_methods.consume,
    BasicGet: basic_methods.get,
    BasicNack: settle.nack,
    BasicQos: basic_methods.qos,
    BasicRecover: settle.recover,
    BasicRecoverAsync: settle.recover,
    BasicReject: settle.reject,
    BasicRevokeOk: settle.answered,
    ChannelFlow: _flow,
    ChannelFlowOk: _ignore,
    ConfirmSelect: _select_confirms,
}
