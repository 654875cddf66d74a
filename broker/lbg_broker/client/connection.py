"""One open connection: bytes between a transport and the machine, and events to their channels."""

import asyncio
from collections.abc import Callable

from lbg_broker.amqp import (
    AckEvent,
    ChannelFault,
    Connection,
    ConnectionFault,
    ConnectionState,
    ContentEvent,
    DeliverEvent,
    Event,
    Method,
    MethodEvent,
    Role,
    Table,
)
from lbg_broker.amqp.methods import ConnectionBlocked, ConnectionClose, ConnectionCloseOk, ConnectionUnblocked
from lbg_broker.client.channel import Channel
from lbg_broker.client.errors import ClientError, ConnectError, ConnectionClosed, ConnectionLost
from lbg_broker.client.handshaking import Handshake, client_properties
from lbg_broker.client.settings import ConnectionSettings

__all__ = ["ClientConnection"]

FLUSH_BYTES = 256 * 1024
"""Output is handed to the transport at the end of the loop turn, or when so much has gathered."""

HIGH_WATER_BYTES = 1024 * 1024
"""`drain` waits above this. With asyncio's own 64 KiB a publisher of small messages waits for every write."""


LINGER_S = 2.0
"""How long a closing socket may take to write out its last bytes."""


class ClientConnection(asyncio.Protocol):
    """A connection to a broker; made by `connect`.

    `closed` gets the reason when the connection is gone: None after `close`, else the error. Everything that
    waits on the connection or its channels fails with that error, once. An exception that leaves a callback
    (`on_deliveries`, `on_confirm`, …) aborts the connection: a message must not vanish in a bug.
    """

    def __init__(self, settings: ConnectionSettings, *, name: str, properties: Table | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._machine = Connection(
            Role.CLIENT,
            frame_max_bytes=settings.frame_max_bytes,
            channel_max=settings.channel_max,
            heartbeat_s=settings.heartbeat_s,
        )
        self._handshake = Handshake(self._machine, settings, client_properties(name, properties))
        self.name = name
        self.opened: asyncio.Future[None] = self._loop.create_future()
        self.closed: asyncio.Future[ClientError | None] = self._loop.create_future()
        self.on_blocked: Callable[[str], None] | None = None
        self.on_unblocked: Callable[[], None] | None = None
        self.is_blocked = False
        self._transport: asyncio.Transport | None = None
        self._channels: dict[int, Channel] = {}
        self._reason: ClientError | None = None
        self._closing_by_us = False
        self._pulse_timer: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._flush_handle: asyncio.Handle | None = None
        self._gathered_bytes = 0
        self._written_in_turn_bytes = 0
        self._paused = False
        self._drained: asyncio.Event = asyncio.Event()
        self._drained.set()

    def __repr__(self) -> str:
        return f"<ClientConnection {self.name!r} {self._settings.address} {self._machine.state.name.lower()}>"

    # For everybody

    @property
    def is_open(self) -> bool:
        return self._machine.state is ConnectionState.OPEN

    @property
    def server_properties(self) -> Table:
        return self._handshake.server_properties

    @property
    def settings(self) -> ConnectionSettings:
        return self._settings

    @property
    def heartbeat_s(self) -> int:
        """As agreed with the broker."""
        return self._machine.heartbeat_s

    @property
    def channel_count(self) -> int:
        return len(self._channels)

    @property
    def unwritten_bytes(self) -> int:
        """Output that has not reached the kernel yet."""
        buffered = self._transport.get_write_buffer_size() if self._transport else 0
        return self._gathered_bytes + buffered

    async def open_channel(self) -> Channel:
        """A new channel. Raises `ConnectionLost`."""
        self.check_open()
        number = next((n for n in range(1, self._machine.channel_max + 1) if n not in self._channels), None)
        if number is None:
            raise ClientError(f"all {self._machine.channel_max} channels of {self.name!r} are in use")
        channel = self._channels[number] = Channel(self, self._machine, number)
        await channel.open()
        return channel

    async def drain(self) -> None:
        """Write what is gathered; wait while the transport is full or the broker blocks publishers.

        Raises `ConnectionLost`.
        """
        self._flush()
        if self._written_in_turn_bytes > FLUSH_BYTES:
            await asyncio.sleep(0)  # a publisher that never waits would starve the reading of its confirms
        while not self._drained.is_set():
            self.check_open()
            await self._drained.wait()
        self.check_open()

    async def close(self, *, timeout_s: float = 5.0) -> None:
        """Close in order: everything gathered is written, then connection.close is awaited. Never raises.

        After `timeout_s` without an answer the socket is dropped.
        """
        if not self.closed.done():
            if self.is_open:
                self._closing_by_us = True
                self._machine.send(0, ConnectionClose(200, "goodbye"))
                self._flush()
            elif not self._closing_by_us:
                self.abort()
            try:
                await asyncio.wait_for(asyncio.shield(self.closed), timeout_s)
            except TimeoutError:
                self.abort()
        if not self.closed.done():
            await asyncio.shield(self.closed)

    def abort(self, reason: ClientError | None = None) -> None:
        """Drop the socket at once, as a crash would. Everything that waits fails with `reason`."""
        self._reason = self._reason or reason or ConnectionLost("the connection was aborted")
        if self._transport is not None:
            self._transport.abort()
        elif not self.closed.done():
            self.connection_lost(None)

    def check_open(self) -> None:
        """Raises `ConnectionLost` (or `ConnectionClosed`) unless the connection is open."""
        if not self.is_open:
            raise self._error()

    # For its channels

    def wrote(self, size_bytes: int) -> None:
        """Something was put in the machine's output: have it written at the end of this loop turn."""
        self._gathered_bytes += size_bytes
        if self._gathered_bytes >= FLUSH_BYTES:
            self._flush()
        elif self._flush_handle is None:
            self._flush_handle = self._loop.call_soon(self._flush_at_turn_end)

    def _flush_at_turn_end(self) -> None:
        self._flush_handle = None
        self._flush()
        self._written_in_turn_bytes = 0

    def _flush(self) -> None:
        output = self._machine.take_output()
        self._gathered_bytes = 0
        if output and self._transport is not None:
            self._written_in_turn_bytes += len(output)
            self._transport.write(output)

    def release(self, number: int) -> None:
        """A channel is closed on both sides: its number is free."""
        self._channels.pop(number, None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._machine.initiate()
        self._flush()

    def data_received(self, data: bytes) -> None:
        events = self._machine.receive_data(data)
        if self.is_open and self._handshake.done:
            self._dispatch(events)
        else:
            for event in events:
                self._on_event(event)
        if self._machine.has_output:
            self.wrote(0)

    def pause_writing(self) -> None:
        self._paused = True
        self._drained.clear()

    def resume_writing(self) -> None:
        self._paused = False
        self._update_drained()

    def eof_received(self) -> bool:
        self._reason = self._reason or ConnectionLost("the broker closed the socket")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self.closed.done():
            return
        if self._closing_by_us and self._reason is None:
            reason: ClientError | None = None
        else:
            text = f"the connection was lost: {error}" if error else "the broker closed the socket"
            reason = self._reason or ConnectionLost(text)
        self._reason = reason
        self._finish(reason)

    # Events

    def _dispatch(self, events: list[Event]) -> None:
        batch: list[DeliverEvent] = []
        number = 0
        tag = ""
        for event in events:
            kind = type(event)
            if kind is DeliverEvent:
                assert isinstance(event, DeliverEvent)
                if event.consumer_tag is tag and event.channel == number:
                    batch.append(event)
                    continue
                if batch:
                    self._hand_over(number, tag, batch)
                batch = [event]
                number, tag = event.channel, event.consumer_tag
            elif kind is AckEvent:
                assert isinstance(event, AckEvent)
                channel = self._channels.get(event.channel)
                if channel is not None:
                    channel.on_ack_event(event)
            else:
                if batch:
                    self._hand_over(number, tag, batch)
                    batch, number = [], 0
                self._on_event(event)
        if batch:
            self._hand_over(number, tag, batch)

    def _hand_over(self, number: int, consumer_tag: str, batch: list[DeliverEvent]) -> None:
        channel = self._channels.get(number)
        if channel is not None:
            channel.on_batch(consumer_tag, batch)

    def _on_event(self, event: Event) -> None:
        match event:
            case DeliverEvent():
                self._hand_over(event.channel, event.consumer_tag, [event])
            case ContentEvent() if event.channel in self._channels:
                self._channels[event.channel].on_content(event)
            case MethodEvent(channel=0):
                self._on_connection_method(event.method)
            case MethodEvent() if event.channel in self._channels:
                self._channels[event.channel].on_method(event.method)
            case ChannelFault() if event.channel in self._channels:
                self._channels[event.channel].on_fault(event)
            case ConnectionFault():
                self._reason = ConnectionClosed(event.reply_code, event.reply_text, by_broker=False)
                self._flush()
                self._end_transport()
            case _:
                pass

    def _on_connection_method(self, method: Method) -> None:
        if not self._handshake.done:
            self._on_handshake(method)
            return
        match method:
            case ConnectionClose():
                self._reason = ConnectionClosed(method.reply_code, method.reply_text, by_broker=True)
                self._machine.send(0, ConnectionCloseOk())
                self._flush()
                self._end_transport()
            case ConnectionCloseOk():
                self._end_transport()
            case ConnectionBlocked():
                self.is_blocked = True
                self._drained.clear()
                if self.on_blocked is not None:
                    self.on_blocked(method.reason)
            case ConnectionUnblocked():
                self.is_blocked = False
                self._update_drained()
                if self.on_unblocked is not None:
                    self.on_unblocked()
            case _:
                pass

    def _on_handshake(self, method: Method) -> None:
        try:
            self._handshake.on_method(method)
        except ConnectError as error:
            self._reason = error
            if isinstance(method, ConnectionClose):
                self._machine.send(0, ConnectionCloseOk())
            self._flush()
            self._end_transport()
            return
        if self._handshake.done:
            self._pulse()
            if not self.opened.done():
                self.opened.set_result(None)

    # Heartbeats and the end

    def _pulse(self) -> None:
        pulse = self._machine.pulse(self._loop.time())
        if pulse.expired:
            silence_s = 2 * self._machine.heartbeat_s
            self.abort(ConnectionLost(f"not a byte from the broker for {silence_s} s"))
            return
        if pulse.beat:
            self._flush()
        if pulse.next_at is not None:
            self._pulse_timer = self._loop.call_at(pulse.next_at, self._pulse)

    def _update_drained(self) -> None:
        if not self._paused and not self.is_blocked:
            self._drained.set()

    def _end_transport(self) -> None:
        if self._transport is not None:
            self._transport.close()
            # A peer that reads nothing would keep what is buffered, and so the socket, for ever.
            self._lingering = self._loop.call_later(LINGER_S, self._transport.abort)

    def _error(self) -> ClientError:
        if self._reason is not None:
            return self._reason
        return ConnectionClosed(200, "goodbye", by_broker=False)

    def _finish(self, reason: ClientError | None) -> None:
        for handle in (self._pulse_timer, self._flush_handle, self._lingering):
            if handle is not None:
                handle.cancel()
        if not self.opened.done():
            lost = reason if isinstance(reason, ConnectError) else self._handshake.explain_loss(str(reason))
            self.opened.set_exception(lost)
        error = self._error()
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.on_connection_lost(error)
        self.closed.set_result(reason)
        self._drained.set()
