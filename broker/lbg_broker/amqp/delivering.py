"""Reading as a client: basic.deliver in place."""

from struct import Struct
from typing import Final

from lbg_broker.amqp.events import DeliverEvent, Event
from lbg_broker.amqp.fields import read_shortstr
from lbg_broker.amqp.frames import FRAME_END, METHOD
from lbg_broker.amqp.reading import ACK_BYTES, CACHE_MAX, FrameReader, OnFrame, read_ack, read_names

__all__ = ["DeliveryReader"]

DELIVER: Final = 60 << 16 | 60
ACK: Final = 60 << 16 | 80
CONTENT_BASIC: Final = 60 << 16  # class id and weight of a content header

_METHOD_HEAD = Struct(">BHII").unpack_from  # type, channel, size, class and method
_CONTENT_HEAD = Struct(">IIIQ").unpack_from  # end octet + type + channel, size, class and weight, body size
_BODY_HEAD = Struct(">II").unpack_from  # end octet + type + channel, size
_TAG = Struct(">QB").unpack_from
_new = DeliverEvent.__new__


class DeliveryReader(FrameReader):
    """A client's reader. A delivery that is not whole, or not as expected, goes the long way frame by frame."""

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
                event = _new(DeliverEvent)
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
        found = read_names(encoded, "surrogateescape")
        if found is None or found[2] != len(encoded):
            return None
        if len(self._names) >= CACHE_MAX:
            self._names.clear()
        self._names[encoded] = found[:2]
        return found[:2]

    def _learn_tag(self, encoded: bytes) -> str:
        tag, _ = read_shortstr(encoded, 0, "surrogateescape")
        if len(self._consumer_tags) >= CACHE_MAX:
            self._consumer_tags.clear()
        self._consumer_tags[encoded] = tag
        return tag
