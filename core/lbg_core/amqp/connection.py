"""One AMQP 0-9-1 connection without a socket: bytes in, events out; methods in, bytes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lbg_core.amqp.channel import Channel, PartialContent
from lbg_core.amqp.content_fast_path import DeliveryReader, PublishReader
from lbg_core.amqp.errors import LocalProtocolError, PeerError, ReplyCode
from lbg_core.amqp.events import AckEvent, ChannelFault, ConnectionFault, Event, HeaderEvent, MethodEvent
from lbg_core.amqp.frames import (
    BODY,
    FRAME_MIN_BYTES,
    HEADER,
    HEARTBEAT_FRAME,
    METHOD,
    PROTOCOL_HEADER,
    FrameReader,
    FrameWriter,
)
from lbg_core.amqp.methods import (
    BasicAck,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    Method,
    decode_method,
)
from lbg_core.amqp.methods.base import Role
from lbg_core.amqp.methods.connection import ConnectionTune, ConnectionTuneOk
from lbg_core.amqp.states import (
    CHANNEL_RECEIVED,
    CHANNEL_SENT,
    CONNECTION,
    CONNECTION_CLOSABLE,
    ChannelState,
    ConnectionState,
    input_of,
)

NO_LIMIT_BYTES: Final = 0x7FFFFFFF


def negotiate_limits(
    tune: ConnectionTune, *, frame_max_bytes: int, channel_max: int, heartbeat_s: int
) -> ConnectionTuneOk:
    """A client's answer: the smaller limits of both ends. A client without a heartbeat gets none."""
    return ConnectionTuneOk(
        _smaller(tune.channel_max, channel_max),
        _smaller(tune.frame_max, frame_max_bytes),
        _smaller(tune.heartbeat, heartbeat_s) if heartbeat_s else 0,
    )


def check_limits(answer: ConnectionTuneOk, tune: ConnectionTune) -> None:
    """Raises `PeerError` (530, as RabbitMQ does) when a client answered with more than was offered."""
    for name, value, offered, least in (
        ("frame_max", answer.frame_max, tune.frame_max, FRAME_MIN_BYTES),
        ("channel_max", answer.channel_max, tune.channel_max, 0),
    ):
        if offered and not 0 < value <= offered:
            raise PeerError(
                ReplyCode.NOT_ALLOWED,
                f"negotiated {name} = {value} is higher than the maximum allowed value ({offered})",
            )
        if value and value < least:
            raise PeerError(
                ReplyCode.NOT_ALLOWED,
                f"negotiated {name} = {value} is lower than the minimum allowed value ({least})",
            )


def _smaller(one: int, other: int) -> int:
    return min(one, other) if one and other else one or other


CHECKS_PER_INTERVAL: Final = 8
"""Checks per heartbeat interval. The peer's silence is noticed at most this fraction of an interval late."""

SILENCE_INTERVALS: Final = 2
"""The connection ends after this many intervals without a byte, as in the specification."""


@dataclass(frozen=True, slots=True)
class Pulse:
    """Heartbeat action that is due now. `next_at` is on the clock that `now` came from; None: never."""

    beat: bool
    expired: bool
    next_at: float | None


class Heartbeats:
    """Detects silence in both directions from byte counts, so that reads and writes need no clock."""

    def __init__(self, interval_s: float, now: float, *, bytes_in: int, bytes_out: int) -> None:
        self._interval_s = interval_s
        self._bytes_in, self._in_at = bytes_in, now
        self._bytes_out, self._out_at = bytes_out, now
        self._checked_at = now

    @property
    def last_received_at(self) -> float | None:
        """Time of the last byte, as of the last check; None without heartbeats."""
        return self._in_at if self._interval_s > 0 else None

    def check(self, now: float, *, bytes_in: int, bytes_out: int) -> Pulse:
        """Judge the time since the last check. Any byte counts as a heartbeat."""
        if self._interval_s <= 0:
            return Pulse(beat=False, expired=False, next_at=None)
        if bytes_in != self._bytes_in:
            self._bytes_in, self._in_at = bytes_in, now
        beat = bytes_out == self._bytes_out and now - self._out_at >= self._interval_s / 2
        if beat or bytes_out != self._bytes_out:
            self._out_at = now
        self._bytes_out = bytes_out
        # When our own process was stopped, what the peer sent meanwhile may not have been read yet: check again.
        was_stopped = now - self._checked_at > self._interval_s / 2
        self._checked_at = now
        expired = now - self._in_at >= SILENCE_INTERVALS * self._interval_s and not was_stopped
        return Pulse(beat=beat, expired=expired, next_at=now + self._interval_s / CHECKS_PER_INTERVAL)


FRAME_BEFORE_TUNE_BYTES: Final = 8192
"""Frame size that a server accepts before the peer is known: twice the specification's minimum, because a start-ok
may carry a token (RabbitMQ 4 does the same)."""

BODY_MAX_BYTES: Final = 512 * 1024 * 1024
"""The largest max_message_size that RabbitMQ can be given: a client takes whatever a broker may send."""


def _reply_text(error: PeerError) -> str:
    """The text with the code's name in front, as RabbitMQ's, cut to what a short string holds."""
    text = f"{error.reply_code.name} - {error.reply_text}"
    return text.encode("utf-8", "replace")[:255].decode("utf-8", "ignore")


_DEAF = frozenset((ConnectionState.PEER_CLOSED, ConnectionState.CLOSED))
_CLOSES = frozenset(
    kind._PREFIX for kind in (ConnectionClose, ConnectionCloseOk, ChannelClose, ChannelCloseOk)
)
_STEPS = (
    _CLOSES
    | {kind._PREFIX for kind in (ChannelOpen, ChannelOpenOk)}
    | {kind._PREFIX for (before, kind), after in CONNECTION.items() if after is not before}
)
"""Methods that change the state of the connection or of a channel."""


def _ack_event(channel: int, method: BasicAck) -> AckEvent:
    event = AckEvent.__new__(AckEvent)
    event.channel = channel
    event.delivery_tag = method.delivery_tag
    event.multiple = method.multiple
    return event


class Connection:
    """The state machine of one end of a connection.

    A client calls `initiate`, then answers the events; a server waits for `HeaderEvent`. Nothing here reads a
    clock or a socket: feed `batches`, write what `take_output` returns, call `pulse` by timer.

    `frame_max_bytes`, `channel_max` and `heartbeat_s` are this end's limits until connection.tune-ok has
    passed, and the negotiated ones afterwards; a heartbeat of 0 is none. A message over `max_body_bytes` closes its
    channel (406).

    Of a list that holds several events, each may make the next one void: check `accepts` before handling an event
    of a channel that an earlier event may have closed.
    """

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
        self._partial = PartialContent()
        self._ready: set[int] = set()  # channels on which a whole message may come
        self._sendable: set[int] = set()  # channels on which one may be sent
        self._muted = False  # our close for the peer's error is the last frame that we send
        self._greeting = b""
        self._broken: PeerError | None = None  # what came after the last events is no frame
        self._proposed = ConnectionTune()
        self._heartbeats: Heartbeats | None = None
        self._writer = FrameWriter(frame_max_bytes=frame_max_bytes, any_header=role is Role.SERVER)
        reader: type[FrameReader] = PublishReader if role is Role.SERVER else DeliveryReader
        self._reader = reader(
            self._on_frame,
            self._ready,
            frame_max_bytes=FRAME_BEFORE_TUNE_BYTES if role is Role.SERVER else frame_max_bytes,
            body_max_bytes=max_body_bytes,
        )

    @property
    def partial_bytes(self) -> int:
        """Bytes that have come of incomplete messages, on all channels, and of an incomplete frame."""
        return self._partial.size + self._reader.buffered_bytes

    def discard(self) -> None:
        """Forget these: the socket is gone, and nothing more is received. Without it they stay until the collector of
        cycles finds this connection, seldom in a process with many objects."""
        for channel in self._channels.values():
            channel.forget()
        self._reader.discard()

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
            for channel in self._channels.values():
                channel.forget()

    def _step(self, number: int, state: ChannelState) -> None:
        if state is ChannelState.CLOSED:
            self._channels.pop(number, None)
        else:
            channel = self._channels.get(number)
            if channel is None:
                checks = self.role is Role.SERVER
                limit = self.max_body_bytes
                channel = Channel(
                    number, self._ready, self._partial, checks_headers=checks, body_max_bytes=limit
                )
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
            return  # frames before the peer's close-ok no longer matter
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

    def batches(self, data: bytes) -> Iterator[list[Event]]:
        """The events in what was read, in order, in lists that are to be handled one before the next is requested.

        A method that changes a state, and a broken rule, each has a list of its own: whoever answers the events of one
        finds the states as they are for these events, though the peer did not wait for the answers (a whole handshake
        in one read, a request with a close behind it). Never raises for what a peer sends.
        """
        self.bytes_received += len(data)
        is_more = True
        while is_more:
            events: list[Event] = []
            is_more = self._receive(data, events)
            data = b""
            if events:
                yield events

    def receive_data(self, data: bytes) -> list[Event]:
        """All events in what was read, for who answers none of them before it has seen the last; see `batches`."""
        return [event for events in self.batches(data) for event in events]

    def _receive(self, data: bytes, events: list[Event]) -> bool:
        """Add events up to the next step; whether there may be more."""
        if self._broken is not None:
            error, self._broken = self._broken, None
            if self.state is not ConnectionState.CLOSED:
                self._fail_connection(error, events)
            return False
        try:
            if self.state is ConnectionState.HEADER and self.role is Role.SERVER:
                data = self._receive_header(data, events)
                if data:
                    self._reader.buffer(data)
                return bool(events)
            if self.state is ConnectionState.STARTING and self.role is Role.CLIENT:
                self._refuse_header(data)
            if self.state is ConnectionState.CLOSED:
                return False
            return self._reader.feed(data, events)
        except PeerError as error:
            if events:
                self._broken = error
                return True
            self._fail_connection(error, events)
            return False

    def _receive_header(self, data: bytes, events: list[Event]) -> bytes:
        missing = len(PROTOCOL_HEADER) - len(self._greeting)
        self._greeting += data[:missing]
        if not PROTOCOL_HEADER.startswith(self._greeting):
            # Section 4.2.2: answer with the header that would have been right, and close.
            self._writer.raw(PROTOCOL_HEADER)
            text = f"{self._greeting!r} is not the header of AMQP 0-9-1"
            raise PeerError(ReplyCode.FRAME_ERROR, text, in_step=False)
        if len(self._greeting) == len(PROTOCOL_HEADER):
            self._enter(ConnectionState.STARTING)
            events.append(HeaderEvent())
        return data[missing:]

    def _refuse_header(self, data: bytes) -> None:
        # A server that speaks something else answers with its own header.
        if self.bytes_received == len(data) and data.startswith(b"AMQP"):
            text = f"the server speaks {data[:8]!r}, not AMQP 0-9-1"
            raise PeerError(ReplyCode.FRAME_ERROR, text, in_step=False)

    def _on_frame(self, kind: int, channel: int, payload: bytes, events: list[Event]) -> bool:
        if self.state in _DEAF or (self.state is ConnectionState.CLOSING and (channel or kind != METHOD)):
            return True
        is_step = kind == METHOD and payload[:4] in _STEPS
        if is_step and events:
            return False
        try:
            if kind == METHOD:
                self._on_method(channel, payload, events)
            elif kind == HEADER:
                self._content_of(channel).on_header(payload, events)
            elif kind == BODY:
                self._content_of(channel).on_body(payload, events)
            elif channel or payload:
                raise PeerError(ReplyCode.FRAME_ERROR, "a heartbeat frame must be empty and on channel 0")
        except PeerError as error:
            if events:
                return False  # nothing has changed yet, and the next time it is the same
            is_step = True
            if error.channel is None:
                self._fail_connection(error, events, payload if kind == METHOD else b"")
            else:
                self._fail_channel(error.channel, error, events)
        if is_step and events:
            self._reader.halt()
        return True

    def _on_method(self, number: int, payload: bytes, events: list[Event]) -> None:
        channel = self._channels.get(number)
        closing = channel is not None and channel.state is ChannelState.CLOSING
        if (closing or self.state is ConnectionState.CLOSING) and payload[:4] not in _CLOSES:
            return
        # A server keeps names and answers with them, so it takes none that are not UTF-8. A client must not fall
        # over a stranger's routing key.
        method = decode_method(payload, "strict" if self.role is Role.SERVER else "surrogateescape")
        kind = type(method)
        if kind.SENDER is self.role:
            raise PeerError(ReplyCode.COMMAND_INVALID, f"only a {self.role.value} sends {kind.NAME}")
        if kind.class_id == 10:
            self._receive_on_connection(number, method, events)
        else:
            self._receive_on_channel(number, method, events)

    def _receive_on_connection(self, number: int, method: Method, events: list[Event]) -> None:
        kind = type(method)
        if number:
            raise PeerError(ReplyCode.COMMAND_INVALID, f"{kind.NAME} belongs on channel 0, not {number}")
        if self.state is ConnectionState.CLOSING:
            if kind is ConnectionClose:  # both closed at once: answer, and go on waiting for our own answer
                self._writer.method(0, ConnectionCloseOk().encode())
                return
            after = ConnectionState.CLOSED
        elif kind is ConnectionClose and self.state in CONNECTION_CLOSABLE:
            after = ConnectionState.PEER_CLOSED
        else:
            transition = CONNECTION.get((self.state, kind))
            if transition is None:
                text = f"{kind.NAME} is not expected in connection state {self.state.name.lower()}"
                raise PeerError(ReplyCode.COMMAND_INVALID, text)
            after = transition
        if isinstance(method, ConnectionTuneOk):
            check_limits(method, self._proposed)
            self._adopt(method)
        self._enter(after)
        events.append(MethodEvent(0, method))

    def _receive_on_channel(self, number: int, method: Method, events: list[Event]) -> None:
        if self.state is not ConnectionState.OPEN:
            text = f"{method.NAME} is not expected in connection state {self.state.name.lower()}"
            raise PeerError(ReplyCode.COMMAND_INVALID, text)
        if not number:
            raise PeerError(ReplyCode.COMMAND_INVALID, f"{method.NAME} does not belong on channel 0")
        channel = self._channels.get(number)
        if channel is not None and channel.awaits_content and channel.state is not ChannelState.CLOSING:
            text = channel.expected_content
            raise PeerError(ReplyCode.UNEXPECTED_FRAME, text)
        before = channel.state if channel else ChannelState.CLOSED
        if before is ChannelState.CLOSING and type(method) is ChannelClose:
            self._writer.method(number, ChannelCloseOk().encode())
            return
        after = CHANNEL_RECEIVED[self.role].get((before, input_of(type(method))))
        if number > self.channel_max:
            text = f"channel number {number} is higher than the negotiated channel_max ({self.channel_max})"
            raise PeerError(ReplyCode.NOT_ALLOWED, text)
        if after is None:
            raise PeerError(ReplyCode.CHANNEL_ERROR, self._out_of_place(number, method, before))
        if after is not before:
            self._step(number, after)
        if method.CARRIES_CONTENT:
            assert channel is not None  # only an open channel takes content
            channel.expect(method)
            self._ready.discard(number)
        elif isinstance(method, BasicAck):
            events.append(_ack_event(number, method))
        else:
            events.append(MethodEvent(number, method))

    def _out_of_place(self, number: int, method: Method, state: ChannelState) -> str:
        """Reply text for a method that the channel cannot receive in this state; a server words it as RabbitMQ."""
        if self.role is Role.SERVER and state is ChannelState.CLOSED:
            return "expected 'channel.open'"
        if isinstance(method, ChannelOpen) and state is ChannelState.OPEN:
            return "second 'channel.open' seen"
        return f"{method.NAME} on channel {number}, which is {state.name.lower()}"

    def _content_of(self, number: int) -> Channel:
        channel = self._channels.get(number)
        if channel is None or number == 0:
            raise PeerError(ReplyCode.CHANNEL_ERROR, f"content on channel {number}, which is not open")
        return channel

    # Queries of the shell

    def channel_state(self, channel: int) -> ChannelState:
        """The state of a channel; one never opened is closed."""
        machine = self._channels.get(channel)
        return machine.state if machine else ChannelState.CLOSED

    def accepts(self, channel: int) -> bool:
        """True if the connection is open and this channel neither closed nor closing by us."""
        return channel in self._sendable

    def pulse(self, now: float) -> Pulse:
        """Judge heartbeats at `now` (seconds, any clock that never goes back); a due one is put in the output.

        Call it once when the connection is tuned and again at each `next_at`. When `expired`, the peer has been
        silent for two intervals: drop the socket.
        """
        if self._heartbeats is None:
            self._heartbeats = Heartbeats(
                self.heartbeat_s, now, bytes_in=self.bytes_received, bytes_out=self.bytes_sent
            )
        pulse = self._heartbeats.check(now, bytes_in=self.bytes_received, bytes_out=self.bytes_sent)
        if pulse.beat and self.state is not ConnectionState.CLOSED:
            self._writer.raw(HEARTBEAT_FRAME)
        return pulse

    @property
    def last_received_at(self) -> float | None:
        """Time of the last byte from the peer, to an eighth of a heartbeat; None without heartbeats."""
        return self._heartbeats.last_received_at if self._heartbeats is not None else None

    def take_output(self) -> bytes:
        """Everything to write, once."""
        output = self._writer.take()
        self.bytes_sent += len(output)
        return output

    @property
    def has_output(self) -> bool:
        return bool(self._writer)

    # Sending

    def initiate(self) -> None:
        """As a client: speak the protocol header. Raises `LocalProtocolError` the second time."""
        if self.role is not Role.CLIENT or self.state is not ConnectionState.HEADER:
            raise LocalProtocolError("only a client initiates, and only once")
        self._writer.raw(PROTOCOL_HEADER)
        self.state = ConnectionState.STARTING

    def tune_ok(self, tune: ConnectionTune) -> ConnectionTuneOk:
        """As a client: the answer to connection.tune, the smaller limits of both ends."""
        return negotiate_limits(
            tune,
            frame_max_bytes=self.frame_max_bytes,
            channel_max=self.channel_max,
            heartbeat_s=self.heartbeat_s,
        )

    def send(self, channel: int, method: Method) -> None:
        """A method without content.

        Raises `LocalProtocolError` when state or role forbid it and `EncodeError` when a value does not fit. What
        is sent after the peer's error closed the connection or the channel is dropped silently: the caller may
        still handle events of the same read.
        """
        kind = type(method)
        if kind.CARRIES_CONTENT:
            raise LocalProtocolError(f"{kind.NAME} carries content: use send_content")
        if kind.SENDER not in (None, self.role):
            raise LocalProtocolError(f"a {self.role.value} does not send {kind.NAME}")
        if kind.class_id == 10:
            if channel:
                raise LocalProtocolError(f"{kind.NAME} belongs on channel 0, not {channel}")
            self._send_on_connection(method)
        else:
            self._send_on_channel(channel, method)

    def send_content(self, channel: int, method: Method, header: bytes, body: bytes) -> None:
        """A method with content. `header` is `BasicProperties.encode()`. Raises as `send` does."""
        kind = type(method)
        if not kind.CARRIES_CONTENT or kind.SENDER is not self.role:
            raise LocalProtocolError(f"a {self.role.value} does not send {kind.NAME} with content")
        if self._may_send(channel):
            self._writer.content(channel, method.encode(), header, body)

    def publish(
        self,
        channel: int,
        exchange: str,
        routing_key: str,
        header: bytes,
        body: bytes,
        *,
        mandatory: bool = False,
    ) -> None:
        """basic.publish, the fast way. Raises as `send` does."""
        if channel in self._sendable or self._may_send(channel):
            self._writer.publish(channel, exchange, routing_key, header, body, mandatory=mandatory)

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
        """basic.deliver, the fast way. Raises as `send` does."""
        if channel in self._sendable or self._may_send(channel):
            self._writer.deliver(
                channel, consumer_tag, delivery_tag, redelivered, exchange, routing_key, header, body
            )

    def ack(self, channel: int, delivery_tag: int, *, multiple: bool = False) -> None:
        """basic.ack, the fast way. Raises as `send` does."""
        if channel in self._sendable or self._may_send(channel):
            self._writer.ack(channel, delivery_tag, multiple)

    def _may_send(self, channel: int) -> bool:
        if channel in self._sendable:
            return True
        if self._muted or ((machine := self._channels.get(channel)) and machine.muted):
            return False
        raise LocalProtocolError(f"channel {channel} is {self.channel_state(channel).name.lower()}")

    def _send_on_connection(self, method: Method) -> None:
        if self._muted:
            return
        kind = type(method)
        if kind is ConnectionClose and self.state in CONNECTION_CLOSABLE:
            after = ConnectionState.CLOSING
        elif kind is ConnectionCloseOk and self.state is ConnectionState.PEER_CLOSED:
            after = ConnectionState.CLOSED
        else:
            transition = CONNECTION.get((self.state, kind))
            if transition is None:
                raise LocalProtocolError(f"{kind.NAME} cannot be sent while {self.state.name.lower()}")
            after = transition
        self._writer.method(0, method.encode())
        if isinstance(method, ConnectionTune):
            self._proposed = method
        elif isinstance(method, ConnectionTuneOk):
            self._adopt(method)
        self._enter(after)

    def _send_on_channel(self, number: int, method: Method) -> None:
        channel = self._channels.get(number)
        if self._muted or (channel is not None and channel.muted):
            return
        before = channel.state if channel else ChannelState.CLOSED
        after = CHANNEL_SENT[self.role].get((before, input_of(type(method))))
        if after is None or self.state not in (ConnectionState.OPEN, ConnectionState.PEER_CLOSED):
            where = f"channel {number} is {before.name.lower()}, the connection {self.state.name.lower()}"
            raise LocalProtocolError(f"{method.NAME} cannot be sent: {where}")
        if not 0 < number <= self.channel_max:
            raise LocalProtocolError(f"channel {number} is not within 1 to {self.channel_max}")
        self._writer.method(number, method.encode())
        if after is not before:
            self._step(number, after)
