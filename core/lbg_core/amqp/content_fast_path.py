"""Decoding of basic.publish and basic.deliver in place, without an object for each frame.

A header that passes here decodes; the server then stores and forwards it as it came.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from struct import error as StructError
from typing import Final

from lbg_core.amqp.errors import DecodeError
from lbg_core.amqp.events import DeliverEvent, Event, PublishEvent
from lbg_core.amqp.field_table import DEPTH_MAX, read_shortstr
from lbg_core.amqp.frames import (
    ACK_BYTES,
    CACHE_MAX,
    FRAME_END,
    METHOD,
    FrameReader,
    OnFrame,
    read_ack,
    read_names,
)

_U32 = Struct(">I").unpack_from

# What follows each type letter of a table's value: so many bytes, or (negative) something with its own length.
_TEXT, _TABLE, _ARRAY = -1, -2, -3
_SIZES: Final[dict[int, int]] = {
    **{ord(letter): 1 for letter in "tbB"},
    **{ord(letter): 2 for letter in "sUu"},
    **{ord(letter): 4 for letter in "Iif"},
    **{ord(letter): 8 for letter in "lLdT"},
    ord("D"): 5,
    ord("V"): 0,
    ord("S"): _TEXT,
    ord("x"): _TEXT,
    ord("F"): _TABLE,
    ord("A"): _ARRAY,
}

# The 14 properties in the order of their flags: short string, table, octet, or 64-bit number.
_KINDS: Final = "sstoosssslssss"
_UNUSED_FLAGS: Final = 0x0003


def check_header(header: bytes) -> None:
    """Raises `DecodeError` unless `BasicProperties.decode` would take the header."""
    if not is_valid_header(header):
        raise DecodeError("the content header's properties are malformed")


def is_valid_header(header: bytes) -> bool:
    """True if the flags and values are well formed."""
    end = len(header)
    try:
        flags = header[0] << 8 | header[1]
        if flags & _UNUSED_FLAGS:
            return False
        position = 2
        for kind in _kinds_of(flags):
            if kind == "o":
                position += 1
            elif kind == "s":
                position += 1 + header[position]
            elif kind == "t":
                position = _end_of_table(header, position, 1)
            else:
                position += 8
        return position == end
    except (IndexError, StructError, KeyError, ValueError):
        return False


@lru_cache(maxsize=256)
def _kinds_of(flags: int) -> str:
    return "".join(kind for index, kind in enumerate(_KINDS) if flags & 0x8000 >> index)


def _end_of_table(data: bytes, position: int, depth: int, *, named: bool = True) -> int:
    end: int = position + 4 + _U32(data, position)[0]
    if end > len(data) or depth > DEPTH_MAX:
        raise ValueError
    position += 4
    sizes = _SIZES
    while position < end:
        if named:
            position += 1 + data[position]
        size = sizes[data[position]]
        position += 1
        if size >= 0:
            position += size
        elif size == _TEXT:
            position += 4 + _U32(data, position)[0]
        else:
            position = _end_of_table(data, position, depth + 1, named=size == _TABLE)
    if position != end:
        raise ValueError
    return end


DELIVER: Final = 60 << 16 | 60
ACK: Final = 60 << 16 | 80
CONTENT_BASIC: Final = 60 << 16  # class id and weight of a content header

_METHOD_HEAD = Struct(">BHII").unpack_from  # type, channel, size, class and method
_CONTENT_HEAD = Struct(">IIIQ").unpack_from  # end octet + type + channel, size, class and weight, body size
_BODY_HEAD = Struct(">II").unpack_from  # end octet + type + channel, size
_TAG = Struct(">QB").unpack_from
_new_delivery = DeliverEvent.__new__


class DeliveryReader(FrameReader):
    """A client's reader. A delivery that is not whole, or not as expected, goes the long way frame by frame."""

    LARGER_HEADER_BYTES = 1024 * 1024
    """RabbitMQ adds headers to those of publishers, which may fill a frame, and delivers them in one."""

    def __init__(
        self, on_frame: OnFrame, ready: set[int], *, frame_max_bytes: int, body_max_bytes: int
    ) -> None:
        super().__init__(on_frame, ready, frame_max_bytes=frame_max_bytes, body_max_bytes=body_max_bytes)
        self._names: dict[bytes, tuple[str, str]] = {}
        self._consumer_tags: dict[bytes, str] = {}

    def _read(self, data: bytes, events: list[Event]) -> int:
        position = 0
        end = len(data)
        ready = self._ready
        names_of = self._names
        tag_of = self._consumer_tags
        payload_max = self._payload_max
        body_max = self._whole_body_max
        while True:
            while end - position >= ACK_BYTES:
                kind, channel, size, number = _METHOD_HEAD(data, position)
                if kind != METHOD or channel not in ready:
                    break
                if number == ACK and size == 13 and read_ack(data, position, channel, events):
                    position += ACK_BYTES
                    continue
                stop = position + 7 + size
                if number != DELIVER or stop + 20 > end:
                    break
                mark, header_bytes, content, body_bytes = _CONTENT_HEAD(data, stop)
                header_stop = stop + 8 + header_bytes
                body_start = header_stop + 8
                body_stop = body_start + body_bytes
                if (
                    not 0 < body_bytes <= body_max
                    or body_stop >= end
                    or content != CONTENT_BASIC
                    or not 14 <= header_bytes <= payload_max
                    or size > payload_max
                    or mark != 0xCE020000 | channel
                    or _BODY_HEAD(data, header_stop) != (0xCE030000 | channel, body_bytes)
                    or data[body_stop] != FRAME_END
                ):
                    break
                tag_stop = position + 12 + data[position + 11]
                names = names_of.get(data[tag_stop + 9 : stop]) or self._learn_names(
                    data[tag_stop + 9 : stop]
                )
                if names is None:
                    break
                consumer_tag = tag_of.get(data[position + 11 : tag_stop])
                if consumer_tag is None:
                    consumer_tag = self._learn_tag(data[position + 11 : tag_stop])
                event = _new_delivery(DeliverEvent)
                event.channel = channel
                event.consumer_tag = consumer_tag
                event.delivery_tag, redelivered = _TAG(data, tag_stop)
                event.redelivered = redelivered & 1 == 1
                event.exchange, event.routing_key = names
                event.header = data[stop + 20 : header_stop]
                event.body = data[body_start:body_stop]
                events.append(event)
                position = body_stop + 1
            following = self._read_frame(data, position, events)
            if following < 0:
                return position
            position = following

    def _learn_names(self, encoded: bytes) -> tuple[str, str] | None:
        names_read = read_names(encoded, "surrogateescape")
        if names_read is None or names_read[2] != len(encoded):
            return None
        if len(self._names) >= CACHE_MAX:
            self._names.clear()
        self._names[encoded] = names_read[:2]
        return names_read[:2]

    def _learn_tag(self, encoded: bytes) -> str:
        tag, _ = read_shortstr(encoded, 0, "surrogateescape")
        if len(self._consumer_tags) >= CACHE_MAX:
            self._consumer_tags.clear()
        self._consumer_tags[encoded] = tag
        return tag


PUBLISH: Final = 60 << 16 | 40

# class id and weight of a content header

# type, channel, size, class and method
# end octet + type + channel, size, class and weight, body size
# end octet + type + channel, size
_new_publish = PublishEvent.__new__

_Names = tuple[str, str, bool, bool]


class PublishReader(FrameReader):
    """A server's reader. A message that is not whole, or not as expected, goes the long way frame by frame."""

    def __init__(
        self, on_frame: OnFrame, ready: set[int], *, frame_max_bytes: int, body_max_bytes: int
    ) -> None:
        super().__init__(on_frame, ready, frame_max_bytes=frame_max_bytes, body_max_bytes=body_max_bytes)
        self._names: dict[bytes, _Names] = {}
        self._valid_headers: set[bytes] = set()

    def _read(self, data: bytes, events: list[Event]) -> int:
        position = 0
        end = len(data)
        ready = self._ready
        names_of = self._names
        valid_headers = self._valid_headers
        payload_max = self._payload_max
        body_max = self._whole_body_max
        while True:
            while end - position >= ACK_BYTES:
                kind, channel, size, number = _METHOD_HEAD(data, position)
                if kind != METHOD or channel not in ready:
                    break
                if number == ACK and size == 13 and read_ack(data, position, channel, events):
                    position += ACK_BYTES
                    continue
                stop = position + 7 + size
                if number != PUBLISH or stop + 20 > end:
                    break
                mark, header_bytes, content, body_bytes = _CONTENT_HEAD(data, stop)
                header_stop = stop + 8 + header_bytes
                body_start = header_stop + 8
                body_stop = body_start + body_bytes
                if (
                    not 0 < body_bytes <= body_max
                    or body_stop >= end
                    or content != CONTENT_BASIC
                    or not 14 <= header_bytes <= payload_max
                    or size > payload_max
                    or mark != 0xCE020000 | channel
                    or _BODY_HEAD(data, header_stop) != (0xCE030000 | channel, body_bytes)
                    or data[body_stop] != FRAME_END
                ):
                    break
                header = data[stop + 20 : header_stop]
                if header not in valid_headers and not self._learn_header(header):
                    break
                # The names lie behind a reserved short; the flags behind the names.
                names = names_of.get(data[position + 13 : stop]) or self._learn_names(
                    data[position + 13 : stop]
                )
                if names is None:
                    break
                event = _new_publish(PublishEvent)
                event.channel = channel
                event.exchange, event.routing_key, event.mandatory, event.immediate = names
                event.header = header
                event.body = data[body_start:body_stop]
                events.append(event)
                position = body_stop + 1
            following = self._read_frame(data, position, events)
            if following < 0:
                return position
            position = following

    def _learn_names(self, encoded: bytes) -> _Names | None:
        names_read = read_names(encoded, "strict")
        if names_read is None or names_read[2] != len(encoded) - 1:
            return None
        names = (names_read[0], names_read[1], encoded[-1] & 1 == 1, encoded[-1] & 2 == 2)
        if len(self._names) >= CACHE_MAX:
            self._names.clear()
        self._names[encoded] = names
        return names

    def _learn_header(self, header: bytes) -> bool:
        if not is_valid_header(header):
            return False
        # Short headers repeat; one with a headers table (flag 0x2000) carries a sequence number or the like.
        if len(header) <= 64 and not header[0] & 0x20:
            if len(self._valid_headers) >= CACHE_MAX:
                self._valid_headers.clear()
            self._valid_headers.add(header)
        return True
