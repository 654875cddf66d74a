"""Frames into bytes: the output of a connection, with the frequent frames made from remembered pieces."""

from struct import Struct
from typing import Final

from lbg_broker.amqp.errors import EncodeError
from lbg_broker.amqp.fields import write_shortstr
from lbg_broker.amqp.frames import BODY, HEADER, METHOD, OVERHEAD_BYTES, encode_frame

__all__ = ["FrameWriter"]

CACHE_MAX: Final = 4096
"""Encoded names remembered per connection. A cache that is full is emptied."""

_HEAD_AND_NUMBER = Struct(">BHIHH").pack
_CONTENT_HEAD = Struct(">IIQ").pack  # payload size, class and weight, body size
_MARK_AND_CHANNEL = Struct(">BBH").pack  # end octet, frame type, channel
_BODY_HEAD = Struct(">II").pack  # end octet + type + channel, size
_TAG = Struct(">QB").pack
_ACK = Struct(">BHIIQBB").pack
_ACK_NUMBER: Final = 60 << 16 | 80
_CONTENT_BASIC: Final = 60 << 16
_CONTENT_HEAD_BYTES: Final = 12


class FrameWriter:
    """Collects output. Knows nothing of states: the connection asks before it writes."""

    def __init__(self, *, frame_max_bytes: int) -> None:
        self._parts: list[bytes] = []
        self._published: dict[tuple[int, str, str, bool], bytes] = {}
        self._delivered: dict[tuple[int, str, str, str], tuple[bytes, bytes]] = {}
        self.limit(frame_max_bytes)

    def limit(self, frame_max_bytes: int) -> None:
        """Write no larger frames from now on."""
        self.payload_max = frame_max_bytes - OVERHEAD_BYTES

    def take(self) -> bytes:
        """All output since the last time, in one piece."""
        parts = self._parts
        if not parts:
            return b""
        output = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return output

    def __bool__(self) -> bool:
        return bool(self._parts)

    def raw(self, data: bytes) -> None:
        """Bytes that are no frame, or a frame made before."""
        self._parts.append(data)

    def method(self, channel: int, payload: bytes) -> None:
        """A method frame. Raises `EncodeError` when it exceeds frame-max: only bodies can be split."""
        if len(payload) > self.payload_max:
            text = f"a method frame of {len(payload) + OVERHEAD_BYTES} bytes exceeds the frame-max of "
            raise EncodeError(text + f"{self.payload_max + OVERHEAD_BYTES}")
        self._parts.append(encode_frame(METHOD, channel, payload))

    def content(self, channel: int, payload: bytes, header: bytes, body: bytes) -> None:
        """A method frame and its content."""
        self._check_header(header)
        self.method(channel, payload)
        head = _CONTENT_HEAD(0, _CONTENT_BASIC, len(body))[4:]
        self._parts.append(encode_frame(HEADER, channel, head + header))
        self._bodies(channel, body)

    def publish(
        self, channel: int, exchange: str, routing_key: str, header: bytes, body: bytes, *, mandatory: bool
    ) -> None:
        """basic.publish with its content."""
        key = (channel, exchange, routing_key, mandatory)
        start = self._published.get(key) or self._learn_publish(key)
        size = len(body)
        if 0 < size <= self.payload_max and len(header) < 2048:
            self._parts += (
                start,
                _CONTENT_HEAD(_CONTENT_HEAD_BYTES + len(header), _CONTENT_BASIC, size),
                header,
                _BODY_HEAD(0xCE030000 | channel, size),
                body,
                b"\xce",
            )
        else:
            self._content_after(start, channel, header, body)

    def deliver(
        self,
        channel: int,
        consumer_tag: str,
        delivery_tag: int,
        redelivered: bool,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
    ) -> None:
        """basic.deliver with its content."""
        key = (channel, consumer_tag, exchange, routing_key)
        start, middle = self._delivered.get(key) or self._learn_deliver(key)
        size = len(body)
        if 0 < size <= self.payload_max and len(header) < 2048:
            self._parts += (
                start,
                _TAG(delivery_tag, redelivered),
                middle,
                _CONTENT_HEAD(_CONTENT_HEAD_BYTES + len(header), _CONTENT_BASIC, size),
                header,
                _BODY_HEAD(0xCE030000 | channel, size),
                body,
                b"\xce",
            )
        else:
            self._content_after(start + _TAG(delivery_tag, redelivered) + middle, channel, header, body)

    def ack(self, channel: int, delivery_tag: int, multiple: bool) -> None:
        """basic.ack."""
        self._parts.append(_ACK(METHOD, channel, 13, _ACK_NUMBER, delivery_tag, multiple, 0xCE))

    def _content_after(self, start: bytes, channel: int, header: bytes, body: bytes) -> None:
        self._check_header(header)
        head = _CONTENT_HEAD(_CONTENT_HEAD_BYTES + len(header), _CONTENT_BASIC, len(body))
        self._parts += (start, head, header, b"\xce")
        self._bodies(channel, body)

    def _bodies(self, channel: int, body: bytes) -> None:
        for start in range(0, len(body), self.payload_max):
            self._parts.append(encode_frame(BODY, channel, body[start : start + self.payload_max]))

    def _check_header(self, header: bytes) -> None:
        if len(header) + _CONTENT_HEAD_BYTES > self.payload_max:
            text = f"{len(header)} bytes of properties exceed the frame-max of {self.payload_max + OVERHEAD_BYTES}"
            raise EncodeError(text)

    def _learn_publish(self, key: tuple[int, str, str, bool]) -> bytes:
        channel, exchange, routing_key, mandatory = key
        names = write_shortstr(exchange) + write_shortstr(routing_key)
        method = _HEAD_AND_NUMBER(METHOD, channel, 7 + len(names), 60, 40) + b"\x00\x00" + names
        start = method + bytes((mandatory,)) + _MARK_AND_CHANNEL(0xCE, HEADER, channel)
        if len(self._published) >= CACHE_MAX:
            self._published.clear()
        self._published[key] = start
        return start

    def _learn_deliver(self, key: tuple[int, str, str, str]) -> tuple[bytes, bytes]:
        channel, consumer_tag, exchange, routing_key = key
        tag = write_shortstr(consumer_tag)
        names = write_shortstr(exchange) + write_shortstr(routing_key)
        start = _HEAD_AND_NUMBER(METHOD, channel, 13 + len(tag) + len(names), 60, 60) + tag
        middle = names + _MARK_AND_CHANNEL(0xCE, HEADER, channel)
        if len(self._delivered) >= CACHE_MAX:
            self._delivered.clear()
        self._delivered[key] = (start, middle)
        return start, middle
