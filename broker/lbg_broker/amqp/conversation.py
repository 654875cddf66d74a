"""What both directions of a connection share: where the conversation is, its channels, and how it fails."""

from abc import ABC, abstractmethod
from typing import Final

from lbg_broker.amqp.channels import Channel
from lbg_broker.amqp.delivering import DeliveryReader
from lbg_broker.amqp.errors import LocalProtocolError, PeerError
from lbg_broker.amqp.events import ChannelFault, ConnectionFault, Event
from lbg_broker.amqp.frames import FRAME_MIN_BYTES
from lbg_broker.amqp.heartbeats import Heartbeats
from lbg_broker.amqp.methods import ChannelClose, ConnectionClose, ConnectionTune, ConnectionTuneOk
from lbg_broker.amqp.methods.base import Role
from lbg_broker.amqp.publishing import PublishReader
from lbg_broker.amqp.reading import FrameReader
from lbg_broker.amqp.states import CONNECTION_CLOSABLE, ChannelState, ConnectionState
from lbg_broker.amqp.tuning import NO_LIMIT_BYTES
from lbg_broker.amqp.writing import FrameWriter

__all__ = ["Conversation"]

FRAME_BEFORE_TUNE_BYTES: Final = 8192
"""What a server takes before the peer is known: twice the specification's minimum, because a start-ok may carry
a token (RabbitMQ 4 does the same)."""

BODY_MAX_BYTES: Final = 512 * 1024 * 1024
"""The largest max_message_size that RabbitMQ can be given: a client takes whatever a broker may send."""


class Conversation(ABC):
    """State of a connection and its channels. `Connection` is the whole; nothing else uses this alone."""

    def __init__(
        self,
        role: Role,
        *,
        frame_max_bytes: int = 131072,
        channel_max: int = 2047,
        heartbeat_s: int = 60,
        max_body_bytes: int = BODY_MAX_BYTES,
    ) -> None:
        if frame_max_bytes < FRAME_MIN_BYTES:
            raise LocalProtocolError(
                f"a frame-max of {frame_max_bytes} is under the minimum, {FRAME_MIN_BYTES}"
            )
        self.role = role
        self.state = ConnectionState.HEADER
        self.frame_max_bytes = frame_max_bytes
        self.channel_max = channel_max
        self.heartbeat_s = heartbeat_s
        self.max_body_bytes = max_body_bytes
        self.bytes_received = 0
        self.bytes_sent = 0
        self._channels: dict[int, Channel] = {}
        self._ready: set[int] = set()  # channels on which a whole message may come
        self._sendable: set[int] = set()  # channels on which one may be sent
        self._muted = False  # our close for the peer's error is the last we say
        self._greeting = b""
        self._broken: PeerError | None = None  # what came after the last events is no frame
        self._proposed = ConnectionTune()
        self._heartbeats: Heartbeats | None = None
        self._writer = FrameWriter(frame_max_bytes=frame_max_bytes)
        reader: type[FrameReader] = PublishReader if role is Role.SERVER else DeliveryReader
        self._reader = reader(
            self._on_frame,
            self._ready,
            frame_max_bytes=FRAME_BEFORE_TUNE_BYTES if role is Role.SERVER else frame_max_bytes,
            body_max_bytes=max_body_bytes,
        )

    @abstractmethod
    def _on_frame(self, kind: int, channel: int, payload: bytes, events: list[Event]) -> bool:
        """A whole frame that the reader did not take in place; see `reading.OnFrame`."""

    def _adopt(self, answer: ConnectionTuneOk) -> None:
        self.frame_max_bytes = answer.frame_max or NO_LIMIT_BYTES
        self.channel_max = answer.channel_max or 65535
        self.heartbeat_s = answer.heartbeat
        self._reader.limit(self.frame_max_bytes)
        self._writer.limit(self.frame_max_bytes)

    def _enter(self, state: ConnectionState) -> None:
        self.state = state
        if state is not ConnectionState.OPEN:
            self._ready.clear()
        if state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
            self._sendable.clear()

    def _step(self, number: int, state: ChannelState) -> None:
        if state is ChannelState.CLOSED:
            self._channels.pop(number, None)
        else:
            channel = self._channels.get(number)
            if channel is None:
                checks = self.role is Role.SERVER
                limit = self.max_body_bytes
                channel = Channel(number, self._ready, checks_headers=checks, body_max_bytes=limit)
                self._channels[number] = channel
            channel.enter(state)
        receives = state is ChannelState.OPEN or (state is ChannelState.OPENING and self.role is Role.SERVER)
        (self._ready.add if receives else self._ready.discard)(number)
        sends = state in (ChannelState.OPEN, ChannelState.PEER_CLOSED)
        (self._sendable.add if sends else self._sendable.discard)(number)

    def _fail_channel(self, number: int, error: PeerError, events: list[Event]) -> None:
        publish_or_deliver = 40 if self.role is Role.SERVER else 60
        close = ChannelClose(error.reply_code, _reply_text(error), 60, publish_or_deliver)
        self._writer.method(number, close.encode())
        self._step(number, ChannelState.CLOSING)
        self._channels[number].muted = True
        events.append(ChannelFault(number, error.reply_code, error.reply_text))

    def _fail_connection(self, error: PeerError, events: list[Event], payload: bytes = b"") -> None:
        if self.state is ConnectionState.CLOSING and error.in_step:
            return  # what a peer says before its close-ok no longer matters
        # A client that awaits connection.start may talk to something that is no AMQP server at all.
        awaits_start = self.role is Role.CLIENT and self.state is ConnectionState.STARTING
        answerable = self.state in CONNECTION_CLOSABLE and not awaits_start
        if answerable:
            number = int.from_bytes(payload[:4], "big") if len(payload) >= 4 else 0
            close = ConnectionClose(error.reply_code, _reply_text(error), number >> 16, number & 0xFFFF)
            self._writer.method(0, close.encode())
        awaits = answerable and error.in_step
        self._enter(ConnectionState.CLOSING if awaits else ConnectionState.CLOSED)
        self._muted = True
        events.append(ConnectionFault(error.reply_code, error.reply_text, awaits))


def _reply_text(error: PeerError) -> str:
    """The text with the code's name in front, as RabbitMQ's, cut to what a short string holds."""
    text = f"{error.reply_code.name} - {error.reply_text}"
    return text.encode("utf-8", "replace")[:255].decode("utf-8", "ignore")
