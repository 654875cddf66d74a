"""Messages as the broker delivers or returns them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lbg_broker.amqp import BasicProperties, ContentEvent, DeliverEvent, Table
from lbg_broker.amqp.methods import BasicGetOk, BasicReturn

Delivery: TypeAlias = DeliverEvent
"""A message for a consumer: `delivery_tag`, `redelivered`, `exchange`, `routing_key`, `body`, `header` (the
encoded properties), and, decoded when first read, `properties` and `headers`. It is the wire's own object:
one is made per message and no more."""


class GotMessage(DeliverEvent):
    """The answer of basic.get; `message_count` is what is left in the queue."""

    __slots__ = ("message_count",)

    message_count: int

    @classmethod
    def of(cls, event: ContentEvent) -> GotMessage:
        """From the wire's event."""
        method = event.method
        assert isinstance(method, BasicGetOk)
        got = cls.__new__(cls)
        got.channel, got.header, got.body = event.channel, event.header, event.body
        got.consumer_tag = ""
        got.delivery_tag, got.redelivered = method.delivery_tag, method.redelivered
        got.exchange, got.routing_key = method.exchange, method.routing_key
        got.message_count = method.message_count
        return got


@dataclass(frozen=True, slots=True)
class Returned:
    """A mandatory message that reached no queue. It comes before its confirm."""

    reply_code: int
    reply_text: str
    exchange: str
    routing_key: str
    header: bytes
    body: bytes

    @classmethod
    def of(cls, event: ContentEvent) -> Returned:
        """From the wire's event."""
        method = event.method
        assert isinstance(method, BasicReturn)
        names = (method.reply_code, method.reply_text, method.exchange, method.routing_key)
        return cls(*names, event.header, event.body)

    @property
    def properties(self) -> BasicProperties:
        return BasicProperties.decode(self.header)

    @property
    def headers(self) -> Table:
        return self.properties.headers or {}
