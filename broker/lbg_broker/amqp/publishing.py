"""Reading as a server: basic.publish in place."""

from struct import Struct
from typing import Final

from lbg_broker.amqp.checking import is_valid_header
from lbg_broker.amqp.events import Event, PublishEvent
from lbg_broker.amqp.frames import FRAME_END, METHOD
from lbg_broker.amqp.reading import ACK_BYTES, CACHE_MAX, FrameReader, OnFrame, read_ack, read_names

__all__ = ["PublishReader"]

PUBLISH: Final = 60 << 16 | 40
ACK: Final = 60 << 16 | 80
CONTENT_BASIC: Final = 60 << 16  # class id and weight of a content header

_METHOD_HEAD = Struct(">BHII").unpack_from  # type, channel, size, class and method
_CONTENT_HEAD = Struct(">IIIQ").unpack_from  # end octet + type + channel, size, class and weight, body size
_BODY_HEAD = Struct(">II").unpack_from  # end octet + type + channel, size
_new = PublishEvent.__new__

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
                event = _new(PublishEvent)
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
        found = read_names(encoded, "strict")
        if found is None or found[2] != len(encoded) - 1:
            return None
        names = (found[0], found[1], encoded[-1] & 1 == 1, encoded[-1] & 2 == 2)
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
