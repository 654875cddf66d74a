"""Frames (AMQP 0-9-1 section 4.2.3): reassembly and checks of input, encoding of output.

`FrameReader` hands each whole frame to `on_frame`. Each of its two subclasses reads the one frequent
message of its role in place when method, header and body lie whole in the buffer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from struct import Struct
from typing import Final

from lbg_core.amqp.errors import DecodeError, EncodeError, PeerError, ReplyCode
from lbg_core.amqp.events import AckEvent, Event
from lbg_core.amqp.field_table import read_shortstr, write_shortstr

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
HEARTBEAT: Final = 8

FRAME_END: Final = 0xCE
OVERHEAD_BYTES: Final = 8
"""Overhead of a frame beside its payload: type, channel and size in front, the end octet behind."""

FRAME_MIN_BYTES: Final = 4096
"""The frame size both ends accept before, and whatever, they negotiate."""

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
HEARTBEAT_FRAME: Final = b"\x08\x00\x00\x00\x00\x00\x00\xce"

_HEAD = Struct(">BHI")


def encode_frame(kind: int, channel: int, payload: bytes) -> bytes:
    """One frame."""
    return b"%b%b\xce" % (_HEAD.pack(kind, channel, len(payload)), payload)


OnFrame = Callable[[int, int, bytes, list[Event]], bool]
"""Frame type, channel, payload, and the events to add to; False when the frame is to be given again, after these events
were handled. Must not raise for what the peer sent."""

CACHE_MAX: Final = 4096
"""Names remembered per connection. A cache that is full is emptied: streams repeat few names, or none."""

ACK_BYTES: Final = 21
"""A basic.ack frame."""

_READ_HEAD = Struct(">BHI").unpack_from
_HEAD_BYTES: Final = 7
_KINDS: Final = frozenset((METHOD, HEADER, BODY, HEARTBEAT))
_ACK_TAG = Struct(">QB").unpack_from
_new_ack = AckEvent.__new__


PIECES_MAX: Final = 64
"""Reads that are buffered for one frame; more are joined, as each is an object that may have a few bytes."""


def _drop_frame(_kind: int, _channel: int, _payload: bytes, _events: list[Event]) -> bool:
    return True


class FrameReader(ABC):
    """Takes reads of any size. `ready` is the set of channels that are open and between two messages."""

    LARGER_HEADER_BYTES = 0
    """A content header of so many bytes is taken though it exceeds frame-max."""

    def __init__(
        self, on_frame: OnFrame, ready: set[int], *, frame_max_bytes: int, body_max_bytes: int
    ) -> None:
        self._on_frame = on_frame
        self._ready = ready
        self._body_max_bytes = body_max_bytes
        self.limit(frame_max_bytes)
        self._buffered: list[bytes] = []
        self.buffered_bytes = 0
        """Of a frame that is not whole."""
        self._needed_bytes = 0
        self._halted = False

    def discard(self) -> None:
        """Forget these, and who takes frames, so that the two do not keep each other alive."""
        self._buffered, self.buffered_bytes = [], 0
        self._on_frame = _drop_frame

    def limit(self, frame_max_bytes: int) -> None:
        """Refuse larger frames from now on."""
        self._payload_max = frame_max_bytes - OVERHEAD_BYTES
        self._header_max = max(self._payload_max, self.LARGER_HEADER_BYTES)
        self._whole_body_max = min(self._payload_max, self._body_max_bytes)

    def feed(self, data: bytes, events: list[Event]) -> bool:
        """Add the events of a read, up to where `halt` was called; returns whether it was. Raises `PeerError` when the
        bytes are no frames."""
        self._halted = False
        if self._buffered:
            self._buffered.append(data)
            self.buffered_bytes += len(data)
            if self.buffered_bytes < self._needed_bytes:
                if len(self._buffered) >= PIECES_MAX:
                    self._buffered = [b"".join(self._buffered)]
                return False
            data = b"".join(self._buffered)
            self._buffered.clear()
            self.buffered_bytes = 0
        position = self._read(data, events)
        if position < len(data):
            self.buffer(data[position:])
        return self._halted

    def buffer(self, data: bytes) -> None:
        """Buffers bytes for the next `feed`."""
        self._buffered.append(data)
        self.buffered_bytes = len(data)

    def halt(self) -> None:
        """Leave what follows to the next `feed`."""
        self._halted = True

    @abstractmethod
    def _read(self, data: bytes, events: list[Event]) -> int:
        """Read what is whole; return where the rest begins, having set `_needed_bytes` for it."""

    def _read_frame(self, data: bytes, position: int, events: list[Event]) -> int:
        """Read the frame at `position`; return where the next begins, or -1 when this one is not whole."""
        if self._halted:
            self._needed_bytes = 0
            return -1
        end = len(data)
        if end - position < _HEAD_BYTES:
            self._needed_bytes = _HEAD_BYTES
            return -1
        kind, channel, size = _READ_HEAD(data, position)
        if kind not in _KINDS:
            raise PeerError(ReplyCode.FRAME_ERROR, f"frame type {kind} does not exist", in_step=False)
        if size > (self._header_max if kind == HEADER else self._payload_max):
            text = (
                f"a frame of {size + OVERHEAD_BYTES} bytes exceeds the frame-max of {self._payload_max + 8}"
            )
            raise PeerError(ReplyCode.FRAME_ERROR, text, in_step=False)
        start = position + _HEAD_BYTES
        stop: int = start + size
        if stop >= end:
            self._needed_bytes = size + OVERHEAD_BYTES
            return -1
        if data[stop] != FRAME_END:
            raise PeerError(ReplyCode.FRAME_ERROR, "a frame does not end with the octet 0xCE", in_step=False)
        if not self._on_frame(kind, channel, data[start:stop], events):
            self._halted = True
            self._needed_bytes = 0
            return -1
        return stop + 1


def read_ack(data: bytes, position: int, channel: int, events: list[Event]) -> bool:
    """Read the basic.ack frame at `position`, all of which is there; False when it is malformed."""
    if data[position + ACK_BYTES - 1] != FRAME_END:
        return False
    event = _new_ack(AckEvent)
    event.channel = channel
    event.delivery_tag, bits = _ACK_TAG(data, position + 11)
    event.multiple = bits & 1 == 1
    events.append(event)
    return True


def read_names(data: bytes, errors: str) -> tuple[str, str, int] | None:
    """Two short strings and where they end; None when they are malformed."""
    try:
        exchange, position = read_shortstr(data, 0, errors)
        routing_key, position = read_shortstr(data, position, errors)
    except (DecodeError, IndexError, UnicodeDecodeError):
        return None
    return exchange, routing_key, position


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
    """Collects output. It has no states: the connection checks before it writes.

    `any_header`: a content header over frame-max is written all the same, as RabbitMQ does. A broker adds headers
    to those of publishers, and to consumers with smaller frames than these have: refused, the message would end the
    connection of each of its consumers in turn.
    """

    def __init__(self, *, frame_max_bytes: int, any_header: bool = False) -> None:
        self._any_header = any_header
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
        if len(header) + _CONTENT_HEAD_BYTES > self.payload_max and not self._any_header:
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
