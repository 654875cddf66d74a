"""One AMQP 0-9-1 connection without a socket: bytes in, events out; methods in, bytes out. The sending half."""

from lbg_broker.amqp.errors import LocalProtocolError
from lbg_broker.amqp.frames import HEARTBEAT_FRAME, PROTOCOL_HEADER
from lbg_broker.amqp.heartbeats import Heartbeats, Pulse
from lbg_broker.amqp.methods import (
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionTune,
    ConnectionTuneOk,
    Method,
)
from lbg_broker.amqp.methods.base import Role
from lbg_broker.amqp.receiving import ReceivingConversation
from lbg_broker.amqp.states import (
    CHANNEL_SENT,
    CONNECTION,
    CONNECTION_CLOSABLE,
    ChannelState,
    ConnectionState,
    input_of,
)
from lbg_broker.amqp.tuning import answer_to

__all__ = ["Connection"]


class Connection(ReceivingConversation):
    """The state machine of one end of a connection.

    A client calls `initiate`, then answers the events; a server waits for `HeaderEvent`. Nothing here reads a
    clock or a socket: feed `batches`, write what `take_output` returns, call `pulse` by timer.

    `frame_max_bytes`, `channel_max` and `heartbeat_s` are what this end wants until connection.tune-ok has
    passed, and what was agreed afterwards; a heartbeat of 0 is none. A message over `max_body_bytes` closes its
    channel (406).

    Of a list that holds several events, each may make the next one void: ask `accepts` before handling an event
    of a channel that an earlier event may have closed.
    """

    # What the shell asks

    def channel_state(self, channel: int) -> ChannelState:
        """The state of a channel; one never opened is closed."""
        found = self._channels.get(channel)
        return found.state if found else ChannelState.CLOSED

    def accepts(self, channel: int) -> bool:
        """Whether the connection is open and this channel neither closed nor closing by us."""
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
    def heard_at(self) -> float | None:
        """When the peer was last heard of, to an eighth of a heartbeat; None without heartbeats."""
        return self._heartbeats.heard_at if self._heartbeats is not None else None

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
        """As a client: the answer to connection.tune, the smaller of what each end wants."""
        return answer_to(
            tune,
            frame_max_bytes=self.frame_max_bytes,
            channel_max=self.channel_max,
            heartbeat_s=self.heartbeat_s,
        )

    def send(self, channel: int, method: Method) -> None:
        """A method without content.

        Raises `LocalProtocolError` when state or role forbid it and `EncodeError` when a value does not fit. What
        is sent after the peer's error closed the connection or the channel is dropped without a word: events of
        the same read may still be in somebody's hands.
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
        if self._muted or ((found := self._channels.get(channel)) and found.muted):
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
            found = CONNECTION.get((self.state, kind))
            if found is None:
                raise LocalProtocolError(f"{kind.NAME} cannot be sent while {self.state.name.lower()}")
            after = found
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
