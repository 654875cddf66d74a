"""Events that `Connection.batches` and `receive_data` return.

::

    HeaderEvent                 a server's: the client sent the protocol header
    MethodEvent                 a method without content
    └── AckEvent                basic.ack
    ContentEvent                a method with its content whole: basic.return, basic.get-ok
    ├── DeliverEvent            basic.deliver
    └── PublishEvent            basic.publish
    ChannelFault                the peer broke the protocol on one channel: a channel.close is in the output
    ConnectionFault             … on the connection: a connection.close (or a header) is in the output

The three frequent ones have the method's arguments as attributes and make `method` only when it is read.
Handle them by exact type: ``kind = type(event); if kind is PublishEvent: …``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lbg_core.amqp.errors import DecodeError
from lbg_core.amqp.field_table import Table
from lbg_core.amqp.methods.base import Method
from lbg_core.amqp.methods.basic import BasicAck, BasicDeliver, BasicPublish
from lbg_core.amqp.properties import BasicProperties


@dataclass(frozen=True, slots=True)
class HeaderEvent:
    """The client spoke ``AMQP 0-9-1``: answer with `ConnectionStart`."""


@dataclass(frozen=True, slots=True)
class ChannelFault:
    """The peer's error on a channel. Its close is in the output; what follows on the channel is discarded."""

    channel: int
    reply_code: int
    reply_text: str


@dataclass(frozen=True, slots=True)
class ConnectionFault:
    """The peer's error on the connection.

    `await_close_ok`: a close is in the output and the peer may answer it. Otherwise the bytes cannot be divided
    into frames any more: write what is in the output and close the socket.
    """

    reply_code: int
    reply_text: str
    await_close_ok: bool


class MethodEvent:
    """A method without content; channel 0 for the connection's own."""

    __slots__ = ("_method", "channel")

    channel: int

    def __init__(self, channel: int, method: Method) -> None:
        self.channel = channel
        self._method = method

    @property
    def method(self) -> Method:
        return self._method

    def __repr__(self) -> str:
        return f"{type(self).__name__}(channel={self.channel}, method={self.method!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _content_of(self) == _content_of(other)

    __hash__ = None  # type: ignore[assignment]  # events compare by value and are not kept in sets


class AckEvent(MethodEvent):
    """basic.ack."""

    __slots__ = ("delivery_tag", "multiple")

    delivery_tag: int
    multiple: bool

    @property
    def method(self) -> BasicAck:
        return BasicAck(self.delivery_tag, self.multiple)


class ContentEvent:
    """A method and its content. `header` is the encoded property flags and values, as they came."""

    __slots__ = ("_method", "_properties", "body", "channel", "header")

    channel: int
    header: bytes
    body: bytes
    _properties: BasicProperties

    def __init__(self, channel: int, method: Method, header: bytes, body: bytes) -> None:
        self.channel = channel
        self._method = method
        self.header = header
        self.body = body

    @property
    def method(self) -> Method:
        return self._method

    @property
    def properties(self) -> BasicProperties:
        """Decoded when first read. RabbitMQ delivers headers that are nested deeper than `DEPTH_MAX`: they are without
        their tables and arrays. Raises `DecodeError` on a client of a broker that sends what is none."""
        try:
            return self._properties
        except AttributeError:
            pass
        try:
            self._properties = BasicProperties.decode(self.header)
        except DecodeError:
            self._properties = BasicProperties.decode(self.header, is_flat=True)
        return self._properties

    @property
    def headers(self) -> Table:
        """The headers property; empty when there is none."""
        return self.properties.headers or {}

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(channel={self.channel}, method={self.method!r}, {len(self.body)} bytes)"
        )

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and _content_of(self) == _content_of(other)

    __hash__ = None  # type: ignore[assignment]  # as above


class DeliverEvent(ContentEvent):
    """basic.deliver."""

    __slots__ = ("consumer_tag", "delivery_tag", "exchange", "redelivered", "routing_key")

    consumer_tag: str
    delivery_tag: int
    redelivered: bool
    exchange: str
    routing_key: str

    @property
    def method(self) -> BasicDeliver:
        return BasicDeliver(
            self.consumer_tag, self.delivery_tag, self.redelivered, self.exchange, self.routing_key
        )


class PublishEvent(ContentEvent):
    """basic.publish."""

    __slots__ = ("exchange", "immediate", "mandatory", "routing_key")

    exchange: str
    routing_key: str
    mandatory: bool
    immediate: bool

    @property
    def method(self) -> BasicPublish:
        return BasicPublish(self.exchange, self.routing_key, self.mandatory, self.immediate)


Event: TypeAlias = HeaderEvent | MethodEvent | ContentEvent | ChannelFault | ConnectionFault


def _content_of(event: object) -> tuple[object, ...]:
    assert isinstance(event, MethodEvent | ContentEvent)
    content = (event.header, event.body) if isinstance(event, ContentEvent) else ()
    return (event.channel, event.method, *content)
