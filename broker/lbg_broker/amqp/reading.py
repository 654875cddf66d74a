"""Bytes into frames: reassembly across reads, and the checks every frame must pass (section 4.2.3).

`FrameReader` hands each whole frame to `on_frame`. Its two subclasses know the one message that comes by the
hundred thousand, and read it in place when method, header and body lie whole in the buffer.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from struct import Struct
from typing import Final

from lbg_broker.amqp.errors import DecodeError, PeerError
from lbg_broker.amqp.events import AckEvent, Event
from lbg_broker.amqp.fields import read_shortstr
from lbg_broker.amqp.frames import BODY, FRAME_END, HEADER, HEARTBEAT, METHOD, OVERHEAD_BYTES
from lbg_broker.amqp.replies import ReplyCode

__all__ = ["FrameReader", "OnFrame"]

OnFrame = Callable[[int, int, bytes, list[Event]], bool]
"""Frame type, channel, payload, and the events to add to; False when the frame is to be given again, after these events
were handled. Must not raise for what the peer sent."""

CACHE_MAX: Final = 4096
"""Names remembered per connection. A cache that is full is emptied: streams repeat few names, or none."""

ACK_BYTES: Final = 21
"""A basic.ack frame."""

_HEAD = Struct(">BHI").unpack_from
_HEAD_BYTES: Final = 7
_KINDS: Final = frozenset((METHOD, HEADER, BODY, HEARTBEAT))
_ACK_TAG = Struct(">QB").unpack_from
_new_ack = AckEvent.__new__


class FrameReader(ABC):
    """Takes reads of any size. `ready` is the set of channels that are open and between two messages."""

    def __init__(
        self, on_frame: OnFrame, ready: set[int], *, frame_max_bytes: int, body_max_bytes: int
    ) -> None:
        self._on_frame = on_frame
        self._ready = ready
        self._body_max_bytes = body_max_bytes
        self.limit(frame_max_bytes)
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._needed_bytes = 0
        self._halted = False

    def limit(self, frame_max_bytes: int) -> None:
        """Refuse larger frames from now on."""
        self._payload_max = frame_max_bytes - OVERHEAD_BYTES
        self._whole_body_max = min(self._payload_max, self._body_max_bytes)

    def feed(self, data: bytes, events: list[Event]) -> bool:
        """Add the events of a read, up to where `halt` was called; returns whether it was. Raises `PeerError` when the
        bytes are no frames."""
        self._halted = False
        if self._held:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self._needed_bytes:
                return False
            data = b"".join(self._held)
            self._held.clear()
        position = self._read(data, events)
        if position < len(data):
            self.hold(data[position:])
        return self._halted

    def hold(self, data: bytes) -> None:
        """Keep bytes for the next `feed`."""
        self._held.append(data)
        self._held_bytes = len(data)

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
        kind, channel, size = _HEAD(data, position)
        if kind not in _KINDS:
            raise PeerError(ReplyCode.FRAME_ERROR, f"frame type {kind} does not exist", in_step=False)
        if size > self._payload_max:
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
            raise PeerError(ReplyCode.FRAME_ERROR, "a frame does not end in the octet 0xCE", in_step=False)
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
