"""Messages as the broker delivers or returns them."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, TypeAlias

from lbg_core.amqp import BasicProperties, ContentEvent, DeliverEvent, Table
from lbg_core.amqp.methods import BasicGetOk, BasicReturn

Delivery: TypeAlias = DeliverEvent
"""A message for a consumer: `delivery_tag`, `redelivered`, `exchange`, `routing_key`, `body`, `header` (the
encoded properties), and, decoded when first read, `properties` and `headers`. It is the wire's own object:
one is made per message and no more."""


@dataclass(frozen=True, slots=True)
class BodyExcerpt:
    """The beginning of a message's body, for a view. `text`: None for a body that is not UTF-8. `size_bytes`: of the
    whole body."""

    data: bytes
    text: str | None
    size_bytes: int

    @classmethod
    def of(cls, body: bytes | bytearray | memoryview, max_bytes: int) -> BodyExcerpt:
        """At most `max_bytes` of it, and no part of a character."""
        data = bytes(body[:max_bytes])
        size_bytes = len(body)
        try:
            return cls(data, data.decode(), size_bytes)
        except UnicodeDecodeError as error:
            is_cut_character = error.reason == "unexpected end of data" and size_bytes > len(data)
            if not is_cut_character or not error.start:
                return cls(data, None, size_bytes)
            return cls(data[: error.start], data[: error.start].decode(), size_bytes)

    def to_json(self) -> dict[str, Any]:
        """`body`, or `body_base64` where it is not text, and `body_bytes`, the size of all of it."""
        if self.text is not None:
            content = {"body": self.text}
        else:
            content = {"body_base64": base64.b64encode(self.data).decode()}
        return {**content, "body_bytes": self.size_bytes}


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
