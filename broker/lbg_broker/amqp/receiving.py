"""The receiving half of a connection: frames in, events out, every broken rule answered with its code."""

from collections.abc import Iterator

from lbg_broker.amqp.channels import Channel
from lbg_broker.amqp.conversation import Conversation
from lbg_broker.amqp.errors import PeerError
from lbg_broker.amqp.events import AckEvent, Event, HeaderEvent, MethodEvent
from lbg_broker.amqp.frames import BODY, HEADER, METHOD, PROTOCOL_HEADER
from lbg_broker.amqp.methods import (
    BasicAck,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionTuneOk,
    Method,
    decode_method,
)
from lbg_broker.amqp.methods.base import Role
from lbg_broker.amqp.replies import ReplyCode
from lbg_broker.amqp.states import (
    CHANNEL_RECEIVED,
    CONNECTION,
    CONNECTION_CLOSABLE,
    ChannelState,
    ConnectionState,
    input_of,
)
from lbg_broker.amqp.tuning import check_answer

__all__ = ["ReceivingConversation"]


class ReceivingConversation(Conversation):
    """Takes bytes of the peer; never raises for what they hold."""

    def batches(self, data: bytes) -> Iterator[list[Event]]:
        """The events in what was read, in order, in lists that are to be handled one before the next is asked for.

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
                    self._reader.hold(data)
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
                raise PeerError(ReplyCode.FRAME_ERROR, "a heartbeat frame is empty and on channel 0")
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
            found = CONNECTION.get((self.state, kind))
            if found is None:
                text = f"{kind.NAME} is not expected while {self.state.name.lower()}"
                raise PeerError(ReplyCode.COMMAND_INVALID, text)
            after = found
        if isinstance(method, ConnectionTuneOk):
            check_answer(method, self._proposed)
            self._adopt(method)
        self._enter(after)
        events.append(MethodEvent(0, method))

    def _receive_on_channel(self, number: int, method: Method, events: list[Event]) -> None:
        if self.state is not ConnectionState.OPEN:
            text = f"{method.NAME} is not expected while {self.state.name.lower()}"
            raise PeerError(ReplyCode.COMMAND_INVALID, text)
        if not number:
            raise PeerError(ReplyCode.COMMAND_INVALID, f"{method.NAME} does not belong on channel 0")
        channel = self._channels.get(number)
        if channel is not None and channel.awaits_content and channel.state is not ChannelState.CLOSING:
            text = f"{method.NAME} came where content was expected"
            raise PeerError(ReplyCode.UNEXPECTED_FRAME, text)
        before = channel.state if channel else ChannelState.CLOSED
        if before is ChannelState.CLOSING and type(method) is ChannelClose:
            self._writer.method(number, ChannelCloseOk().encode())
            return
        after = CHANNEL_RECEIVED[self.role].get((before, input_of(type(method))))
        if number > self.channel_max:
            text = f"channel {number} is beyond the negotiated channel_max ({self.channel_max})"
            raise PeerError(ReplyCode.NOT_ALLOWED, text)
        if after is None:
            text = f"{method.NAME} on channel {number}, which is {before.name.lower()}"
            raise PeerError(ReplyCode.CHANNEL_ERROR, text)
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

    def _content_of(self, number: int) -> Channel:
        channel = self._channels.get(number)
        if channel is None or number == 0:
            raise PeerError(ReplyCode.CHANNEL_ERROR, f"content on channel {number}, which is not open")
        return channel


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
