"""One channel of a connection: its state, and the message that arrives on it frame by frame."""

from __future__ import annotations

from struct import Struct
from typing import Final

from lbg_core.amqp.content_fast_path import check_header
from lbg_core.amqp.errors import DecodeError, PeerError, ReplyCode
from lbg_core.amqp.events import ContentEvent, DeliverEvent, Event, PublishEvent
from lbg_core.amqp.methods.base import Method
from lbg_core.amqp.methods.basic import BasicDeliver, BasicPublish
from lbg_core.amqp.states import ChannelState

_HEAD = Struct(">HHQ")

PIECE_BYTES: Final = 16_384
"""Smaller pieces of a body are joined as they come: an object for each would need many times their bytes."""


class PartialContent:
    """Bytes that have come of incomplete messages, on all channels of a connection."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0


class Channel:
    """State and content of one channel (section 4.2.6: method, then header, then bodies, nothing between)."""

    __slots__ = (
        "_body_max_bytes",
        "_checks_headers",
        "_chunks",
        "_header",
        "_left_bytes",
        "_method",
        "_partial",
        "_ready",
        "_received_bytes",
        "muted",
        "number",
        "state",
    )

    def __init__(
        self,
        number: int,
        ready: set[int],
        partial: PartialContent,
        *,
        checks_headers: bool,
        body_max_bytes: int,
    ) -> None:
        self.number = number
        self.state = ChannelState.CLOSED
        self.muted = False
        self._ready = ready
        self._partial = partial
        self._checks_headers = checks_headers
        self._body_max_bytes = body_max_bytes
        self._method: Method | None = None
        self._header: bytes | None = None
        self._chunks: list[bytes | bytearray] = []
        self._left_bytes = 0
        self._received_bytes = 0

    @property
    def awaits_content(self) -> bool:
        return self._method is not None

    @property
    def expected_content(self) -> str:
        """Reply text for any other frame than the next one, as RabbitMQ words it."""
        if self._method is None:
            return "expected method frame, got non method frame instead"
        if self._header is None:
            class_id = self._method.class_id
            return f"expected content header for class {class_id}, got non content header frame instead"
        return "expected content body, got non content body frame instead"

    def enter(self, state: ChannelState) -> None:
        """Take a new state. A message half received is forgotten with the channel's close."""
        self.state = state
        if state in (ChannelState.CLOSING, ChannelState.PEER_CLOSED):
            self.forget()

    def expect(self, method: Method) -> None:
        """The content of this method comes next."""
        self._method = method

    def on_header(self, payload: bytes, events: list[Event]) -> None:
        """A content header frame. Raises `PeerError`."""
        if self.state is ChannelState.CLOSING:
            return
        if self._method is None or self._header is not None:
            raise PeerError(ReplyCode.UNEXPECTED_FRAME, self.expected_content)
        if len(payload) < _HEAD.size + 2:
            raise DecodeError("a content header is too short")
        class_id, weight, size = _HEAD.unpack_from(payload)
        if class_id != self._method.class_id or weight:
            expected = self._method.class_id
            text = (
                f"expected content header for class {expected}, got one for class {class_id}, weight {weight}"
            )
            raise PeerError(ReplyCode.FRAME_ERROR, text)
        header = payload[_HEAD.size :]
        if self._checks_headers:
            check_header(header)
        if size > self._body_max_bytes:
            text = f"message size {size} is larger than configured max size {self._body_max_bytes}"
            raise PeerError(ReplyCode.PRECONDITION_FAILED, text, channel=self.number)
        self._header = header
        self._left_bytes = size
        self._count(len(header))
        if not size:
            self._complete(events)

    def on_body(self, payload: bytes, events: list[Event]) -> None:
        """A body frame. Raises `PeerError`."""
        if self.state is ChannelState.CLOSING:
            return
        if self._header is None:
            raise PeerError(ReplyCode.UNEXPECTED_FRAME, self.expected_content)
        self._left_bytes -= len(payload)
        if self._left_bytes < 0:
            raise PeerError(ReplyCode.FRAME_ERROR, "a content body is larger than its header announced")
        if payload:
            self._add(payload)
            self._count(len(payload))
        if not self._left_bytes:
            self._complete(events)

    def _add(self, payload: bytes) -> None:
        chunks = self._chunks
        if len(payload) >= PIECE_BYTES or not self._left_bytes:
            chunks.append(payload)
        elif chunks and isinstance(last := chunks[-1], bytearray) and len(last) < PIECE_BYTES:
            last += payload
        else:
            chunks.append(bytearray(payload))

    def _count(self, size: int) -> None:
        self._received_bytes += size
        self._partial.size += size

    def _complete(self, events: list[Event]) -> None:
        assert self._method is not None
        assert self._header is not None
        events.append(_event_of(self.number, self._method, self._header, b"".join(self._chunks)))
        self.forget()
        self._ready.add(self.number)

    def forget(self) -> None:
        """Drop what has come of a message."""
        self._method = None
        self._header = None
        self._chunks = []
        self._left_bytes = 0
        self._partial.size -= self._received_bytes
        self._received_bytes = 0


def _event_of(channel: int, method: Method, header: bytes, body: bytes) -> ContentEvent:
    match method:
        case BasicDeliver():
            deliver = DeliverEvent.__new__(DeliverEvent)
            deliver.consumer_tag = method.consumer_tag
            deliver.delivery_tag = method.delivery_tag
            deliver.redelivered = method.redelivered
            deliver.exchange = method.exchange
            deliver.routing_key = method.routing_key
            event: ContentEvent = deliver
        case BasicPublish():
            publish = PublishEvent.__new__(PublishEvent)
            publish.exchange = method.exchange
            publish.routing_key = method.routing_key
            publish.mandatory = method.mandatory
            publish.immediate = method.immediate
            event = publish
        case _:
            return ContentEvent(channel, method, header, body)
    event.channel = channel
    event.header = header
    event.body = body
    return event
