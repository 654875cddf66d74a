"""AMQP 0-9-1 without I/O: the codec and the connection machine, for clients and servers alike.

Pure: no asyncio, sockets, threads or clock here, and nothing of LBG's own. `Connection` is the machine; the
methods are in `lbg_core.amqp.methods`.
"""

from __future__ import annotations

from lbg_core.amqp.connection import Connection, Pulse
from lbg_core.amqp.errors import (
    AmqpError,
    DecodeError,
    EncodeError,
    LocalProtocolError,
    PeerError,
    ReplyCode,
    is_channel_error,
)
from lbg_core.amqp.events import (
    AckEvent,
    ChannelFault,
    ConnectionFault,
    ContentEvent,
    DeliverEvent,
    Event,
    HeaderEvent,
    MethodEvent,
    PublishEvent,
)
from lbg_core.amqp.field_table import INTEGER_MAX, FieldValue, Table, decode_table, encode_table
from lbg_core.amqp.frames import PROTOCOL_HEADER
from lbg_core.amqp.methods.base import METHODS, Method, Role
from lbg_core.amqp.properties import NO_PROPERTIES, BasicProperties
from lbg_core.amqp.states import ChannelState, ConnectionState

__all__ = [
    "INTEGER_MAX",
    "METHODS",
    "NO_PROPERTIES",
    "PROTOCOL_HEADER",
    "AckEvent",
    "AmqpError",
    "BasicProperties",
    "ChannelFault",
    "ChannelState",
    "Connection",
    "ConnectionFault",
    "ConnectionState",
    "ContentEvent",
    "DecodeError",
    "DeliverEvent",
    "EncodeError",
    "Event",
    "FieldValue",
    "HeaderEvent",
    "LocalProtocolError",
    "Method",
    "MethodEvent",
    "PeerError",
    "PublishEvent",
    "Pulse",
    "ReplyCode",
    "Role",
    "Table",
    "decode_table",
    "encode_table",
    "is_channel_error",
]
