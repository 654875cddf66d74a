"""Every method of AMQP 0-9-1 and of RabbitMQ's extensions, one class each, and `decode_method`.

Arguments are in the order of the specification, in snake case (``no-wait`` is `nowait`, ``global`` is
`global_`), all with defaults; the reserved ones are left out.
"""

from struct import Struct

from lbg_core.amqp.errors import DecodeError, PeerError, ReplyCode
from lbg_core.amqp.methods.base import METHODS, Method
from lbg_core.amqp.methods.basic import (
    BasicAck,
    BasicCancel,
    BasicCancelOk,
    BasicCapacity,
    BasicConsume,
    BasicConsumeOk,
    BasicDeliver,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicNack,
    BasicPublish,
    BasicQos,
    BasicQosOk,
    BasicRecover,
    BasicRecoverAsync,
    BasicRecoverOk,
    BasicReject,
    BasicReturn,
    BasicRevoke,
    BasicRevokeOk,
    ConfirmSelect,
    ConfirmSelectOk,
    TxCommit,
    TxCommitOk,
    TxRollback,
    TxRollbackOk,
    TxSelect,
    TxSelectOk,
)
from lbg_core.amqp.methods.connection import (
    ChannelClose,
    ChannelCloseOk,
    ChannelFlow,
    ChannelFlowOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from lbg_core.amqp.methods.exchange_queue import (
    AccessRequest,
    AccessRequestOk,
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
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
    QueueUnbind,
    QueueUnbindOk,
)

__all__ = [
    "AccessRequest",
    "AccessRequestOk",
    "BasicAck",
    "BasicCancel",
    "BasicCancelOk",
    "BasicCapacity",
    "BasicConsume",
    "BasicConsumeOk",
    "BasicDeliver",
    "BasicGet",
    "BasicGetEmpty",
    "BasicGetOk",
    "BasicNack",
    "BasicPublish",
    "BasicQos",
    "BasicQosOk",
    "BasicRecover",
    "BasicRecoverAsync",
    "BasicRecoverOk",
    "BasicReject",
    "BasicReturn",
    "BasicRevoke",
    "BasicRevokeOk",
    "ChannelClose",
    "ChannelCloseOk",
    "ChannelFlow",
    "ChannelFlowOk",
    "ChannelOpen",
    "ChannelOpenOk",
    "ConfirmSelect",
    "ConfirmSelectOk",
    "ConnectionBlocked",
    "ConnectionClose",
    "ConnectionCloseOk",
    "ConnectionOpen",
    "ConnectionOpenOk",
    "ConnectionSecure",
    "ConnectionSecureOk",
    "ConnectionStart",
    "ConnectionStartOk",
    "ConnectionTune",
    "ConnectionTuneOk",
    "ConnectionUnblocked",
    "ConnectionUpdateSecret",
    "ConnectionUpdateSecretOk",
    "ExchangeBind",
    "ExchangeBindOk",
    "ExchangeDeclare",
    "ExchangeDeclareOk",
    "ExchangeDelete",
    "ExchangeDeleteOk",
    "ExchangeUnbind",
    "ExchangeUnbindOk",
    "Method",
    "QueueBind",
    "QueueBindOk",
    "QueueDeclare",
    "QueueDeclareOk",
    "QueueDelete",
    "QueueDeleteOk",
    "QueuePurge",
    "QueuePurgeOk",
    "QueueUnbind",
    "QueueUnbindOk",
    "TxCommit",
    "TxCommitOk",
    "TxRollback",
    "TxRollbackOk",
    "TxSelect",
    "TxSelectOk",
    "decode_method",
]

_NUMBER = Struct(">I")


def decode_method(payload: bytes, errors: str = "surrogateescape") -> Method:
    """The method in a method frame's payload.

    Raises `DecodeError` (502) when the arguments are malformed, `PeerError` (540) for an unknown number.
    """
    if len(payload) < 4:
        raise DecodeError("a method frame is too short to hold a method")
    (number,) = _NUMBER.unpack_from(payload)
    cls = METHODS.get(number)
    if cls is None:
        raise PeerError(ReplyCode.NOT_IMPLEMENTED, f"unknown method {number >> 16}.{number & 0xFFFF}")
    return cls.decode_arguments(payload, 4, errors)
