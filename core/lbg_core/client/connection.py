"""One open connection: its transport, its write buffer, and its channels."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable
from typing import cast

from lbg_core.amqp import (
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
from lbg_core.amqp.methods import ConnectionBlocked, ConnectionClose, ConnectionCloseOk, ConnectionUnblocked
from lbg_core.client.channel import Channel
from lbg_core.client.errors import ClientError, ConnectError, ConnectionClosed, ConnectionLost, TlsError
from lbg_core.client.handshake import Handshake, client_properties
from lbg_core.client.settings import ConnectionSettings
from lbg_core.forks import own, own_loop
from lbg_core.peers import system_reason

FLUSH_BYTES = 256 * 1024
"""Output goes to the transport at the end of the loop turn, or when so much has gathered."""

HIGH_WATER_BYTES = 1024 * 1024
"""`drained` waits above this. With asyncio's own 64 KiB a publisher of small messages waits for every write."""

LINGER_S = 2.0
"""Seconds for a closing socket to write out its last bytes."""


class WriteBuffer:
    """Writes a machine's output to a transport, and stops publishers while it is full."""

    def __init__(self, machine: Connection, on_failed: Callable[[Exception], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._machine = machine
        self._on_failed = on_failed
        self._transport: asyncio.Transport | None = None
        self._turn_end: asyncio.Handle | None = None
        self._before_writing: list[Callable[[], None]] = []
        self._lingering: asyncio.TimerHandle | None = None
        self._gathered_bytes = 0
        self._written_in_turn_bytes = 0
        self._is_full = False
        self._is_blocked = False
        self._free = asyncio.Event()
        self._free.set()

    def attach(self, transport: asyncio.Transport) -> None:
        """There is a transport from now on."""
        self._transport = transport
        if (socket := transport.get_extra_info("socket")) is not None:
            own(socket.fileno())
            own_loop(self._loop)
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)

    def detach(self) -> None:
        """The transport is gone."""
        self._transport = None
        for handle in (self._turn_end, self._lingering):
            if handle is not None:
                handle.cancel()

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that have not reached the kernel, roughly."""
        buffered = self._transport.get_write_buffer_size() if self._transport else 0
        return self._gathered_bytes + buffered

    def wrote(self, size_bytes: int) -> None:
        """The machine has more output, of about this size: have it written at the end of this loop turn."""
        self._gathered_bytes += size_bytes
        if self._gathered_bytes >= FLUSH_BYTES:
            self.flush()
        elif self._turn_end is None:
            self._turn_end = self._loop.call_soon(self._end_turn)

    def before_writing(self, callback: Callable[[], None]) -> None:
        """Call once at the end of this loop turn, before its output is written."""
        self._before_writing.append(callback)
        if self._turn_end is None:
            self._turn_end = self._loop.call_soon(self._end_turn)

    def flush(self) -> None:
        """Write what has gathered, now."""
        output = self._machine.take_output()
        self._gathered_bytes = 0
        if output and self._transport is not None:
            self._written_in_turn_bytes += len(output)
            self._transport.write(output)

    async def drained(self) -> None:
        """Flush; return when neither the transport is full nor the broker blocks, or `release` was called."""
        self.flush()
        if self._written_in_turn_bytes > FLUSH_BYTES:
            # A publisher that never waits would starve the reading of its confirms.
            self._written_in_turn_bytes = 0
            await asyncio.sleep(0)
        if not self._free.is_set():
            await self._free.wait()

    def set_full(self, is_full: bool) -> None:
        """The transport's word."""
        self._is_full = is_full
        self._update()

    def set_blocked(self, is_blocked: bool) -> None:
        """The broker's word."""
        self._is_blocked = is_blocked
        self._update()

    def release(self) -> None:
        """Wakes waiting callers: the connection has ended."""
        self._is_full = self._is_blocked = False
        self._update()

    def close(self) -> None:
        """Write what is left and close the socket."""
        self.flush()
        if self._transport is not None:
            self._transport.close()
            # A peer that reads nothing would keep what is buffered, and so the socket, for ever.
            self._lingering = self._loop.call_later(LINGER_S, self._transport.abort)

    @property
    def local_port(self) -> int | None:
        """The TCP port at our end; None without a transport."""
        return None if self._transport is None else self._transport.get_extra_info("sockname")[1]

    def abort(self) -> bool:
        """Close the socket without writing; False when there is none."""
        if self._transport is None:
            return False
        self._transport.abort()
        return True

    def _end_turn(self) -> None:
        callbacks, self._before_writing = self._before_writing, []
        try:
            for callback in callbacks:
                callback()
            self._turn_end = None
            self.flush()
        except Exception as error:
            self._on_failed(error)
        self._written_in_turn_bytes = 0

    def _update(self) -> None:
        if self._is_full or self._is_blocked:
            self._free.clear()
        else:
            self._free.set()


class Channels:
    """`on_other` gets what is of the connection itself. What comes for a channel that is gone is dropped."""

    def __init__(self, on_other: Callable[[Event], None]) -> None:
        self._on_other = on_other
        self._channels: dict[int, Channel] = {}
        self._lowest = 1
        """All numbers below it are in use."""

    def __len__(self) -> int:
        return len(self._channels)

    def free_number(self, channel_max: int) -> int | None:
        """None: all are in use."""
        while self._lowest in self._channels:
            self._lowest += 1
        return self._lowest if self._lowest <= channel_max else None

    def add(self, channel: Channel) -> None:
        self._channels[channel.number] = channel

    def remove(self, number: int) -> None:
        self._lowest = min(self._lowest, number)
        self._channels.pop(number, None)

    def lose(self, reason: ClientError) -> None:
        """The connection is gone, and all of them with it."""
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.on_connection_lost(reason)

    def dispatch(self, events: list[Event]) -> None:
        """Deliveries of one consumer that came together are handed over together."""
        batch: list[DeliverEvent] = []
        number = 0
        tag = ""
        for event in events:
            if type(event) is DeliverEvent:
                if event.consumer_tag is tag and event.channel == number:
                    batch.append(event)
                    continue
                if batch:
                    self._hand_over(number, tag, batch)
                batch = [event]
                number, tag = event.channel, event.consumer_tag
            elif type(event) is AckEvent:
                channel = self._channels.get(event.channel)
                if channel is not None:
                    channel.on_ack_event(event)
            else:
                if batch:
                    self._hand_over(number, tag, batch)
                    batch, number = [], 0
                self.on_event(event)
        if batch:
            self._hand_over(number, tag, batch)

    def on_event(self, event: Event) -> None:
        """One alone."""
        match event:
            case DeliverEvent():
                self._hand_over(event.channel, event.consumer_tag, [event])
            case ContentEvent() if event.channel in self._channels:
                self._channels[event.channel].on_content(event)
            case MethodEvent() if event.channel in self._channels:
                self._channels[event.channel].on_method(event.method)
            case ChannelFault() if event.channel in self._channels:
                self._channels[event.channel].on_fault(event)
            case _:
                self._on_other(event)

    def _hand_over(self, number: int, consumer_tag: str, batch: list[DeliverEvent]) -> None:
        channel = self._channels.get(number)
        if channel is not None:
            channel.on_batch(consumer_tag, batch)


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
        self._outlet = WriteBuffer(self._machine, self._on_failed)
        self._channels = Channels(self._on_event)
        self._reason: ClientError | None = None
        self._closing_by_us = False
        self._is_lost = False
        self._pulse_timer: asyncio.TimerHandle | None = None
        self._process = os.getpid()

    def __repr__(self) -> str:
        return f"<ClientConnection {self.name!r} {self._settings.address} {self._machine.state.name.lower()}>"

    # For everybody

    @property
    def is_open(self) -> bool:
        return self._machine.state is ConnectionState.OPEN and not self._is_lost

    @property
    def server_properties(self) -> Table:
        return self._handshake.server_properties

    def has(self, capability: str) -> bool:
        """True if the broker announces a capability."""
        return self._handshake.has(capability)

    @property
    def frame_max_bytes(self) -> int:
        """As agreed with the broker."""
        return self._machine.frame_max_bytes

    @property
    def channel_max(self) -> int:
        """Channels that may be open at a time, as agreed with the broker."""
        return self._machine.channel_max

    @property
    def max_message_bytes(self) -> int | None:
        """The largest message that the broker takes; None where it does not announce it, as RabbitMQ."""
        announced = self.server_properties.get("max_message_size")
        return announced if isinstance(announced, int) and announced > 0 else None

    @property
    def settings(self) -> ConnectionSettings:
        return self._settings

    @property
    def heartbeat_s(self) -> int:
        """As agreed with the broker."""
        return self._machine.heartbeat_s

    @property
    def last_received_at(self) -> float | None:
        """Time of the last byte from the broker, on the loop's clock, to an eighth of a heartbeat; None without
        them."""
        return self._machine.last_received_at

    @property
    def channel_count(self) -> int:
        return len(self._channels)

    @property
    def unwritten_bytes(self) -> int:
        """Output that has not reached the kernel yet."""
        return self._outlet.unwritten_bytes

    @property
    def local_port(self) -> int | None:
        """The TCP port at our end, by which the broker's list of connections names this one; None when it is lost."""
        return self._outlet.local_port

    async def open_channel(self, *, spare: int = 0) -> Channel:
        """A new channel; `spare` of them, a quarter at most, are left for others. Raises `ConnectionLost`, and
        `ClientError` when there is no other."""
        self.check_open()
        spare = min(spare, self.channel_max // 4)
        number = self._channels.free_number(self.channel_max - spare)
        if number is None:
            spared = f" or spared ({spare})" if spare else ""
            raise ClientError(f"all {self.channel_max} channels of {self.name!r} are in use{spared}")
        channel = Channel(self, self._machine, number)
        self._channels.add(channel)
        await channel.open()
        return channel

    async def drain(self) -> None:
        """Write what is gathered; wait while the transport is full or the broker blocks publishers.

        Raises `ConnectionLost`.
        """
        self.check_open()
        await self._outlet.drained()
        self.check_open()

    async def close(self, *, timeout_s: float = 5.0) -> None:
        """Close in order: what is gathered is written, then connection.close is awaited. Never raises.

        Whatever still waits (a request, a confirm) fails with `ConnectionClosed`: await confirms first. After
        `timeout_s` without an answer, or when this is cancelled, the socket is dropped.
        """
        if self.is_open:
            self._closing_by_us = True
            self._machine.send(0, ConnectionClose(200, "goodbye"))
            self._outlet.flush()
            self._lose(ConnectionClosed(200, "goodbye", by_broker=False))
        elif not self._is_lost:
            self.abort()
        # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the result.
        try:
            await asyncio.wait([self.closed], timeout=timeout_s)
        except asyncio.CancelledError:
            self.abort()
            raise
        if not self.closed.done():
            self.abort()
            await asyncio.wait([self.closed])

    def abort(self, reason: ClientError | None = None) -> None:
        """Drop the socket at once, as a crash would. Everything that waits fails with `reason`."""
        self._lose(reason or ConnectionLost("the connection was aborted"))
        if not self._outlet.abort() and not self.closed.done():
            self.connection_lost(None)

    def check_open(self) -> None:
        """Raises `ConnectionLost` (or `ConnectionClosed`) unless the connection is open."""
        if os.getpid() != self._process:
            raise ConnectionLost(
                f"the connection is that of process {self._process}: a forked child opens one of its own"
            )
        if not self.is_open:
            raise self._error()

    # For its channels

    def wrote(self, size_bytes: int) -> None:
        """Something was put in the machine's output: have it written at the end of this loop turn."""
        self._outlet.wrote(size_bytes)

    def flush(self) -> None:
        """Writes what has gathered, now."""
        self._outlet.flush()

    def before_writing(self, callback: Callable[[], None]) -> None:
        """Call once at the end of this loop turn, before its output is written."""
        self._outlet.before_writing(callback)

    def release(self, number: int) -> None:
        """A channel is closed on both sides: its number is free."""
        self._channels.remove(number)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast: the transports of other event loops look like asyncio's and are not derived from them.
        self._outlet.attach(cast(asyncio.Transport, transport))
        self._machine.initiate()
        self._outlet.flush()

    def data_received(self, data: bytes) -> None:
        try:
            for events in self._machine.batches(data):
                if self.is_open and self._handshake.done:
                    self._channels.dispatch(events)
                else:
                    for event in events:
                        self._channels.on_event(event)
        except Exception as error:
            self._on_failed(error)
        if self._machine.has_output:
            self.wrote(0)

    def pause_writing(self) -> None:
        self._outlet.set_full(True)

    def resume_writing(self) -> None:
        self._outlet.set_full(False)

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(self._explain(error))
        self._outlet.detach()
        self._machine.discard()
        if not self.closed.done():
            self.closed.set_result(None if self._closing_by_us else self._reason)

    def _on_failed(self, error: Exception) -> None:
        lost = ConnectionLost(f"a callback failed: {error!r}")
        lost.__cause__ = error
        context = {"message": "a callback of an AMQP client failed", "exception": error, "protocol": self}
        self._loop.call_exception_handler(context)
        self.abort(lost)

    # What is not for a channel

    def _on_event(self, event: Event) -> None:
        """Handles an event of the connection itself."""
        match event:
            case MethodEvent(channel=0):
                self._on_connection_method(event.method)
            case ConnectionFault():
                self._on_fault(event)
            case _:
                pass

    def _on_fault(self, fault: ConnectionFault) -> None:
        if self._handshake.done:
            self._end(ConnectionClosed(fault.reply_code, fault.reply_text, by_broker=False))
        else:
            self._end(ConnectError(f"{self._settings.address}: {fault.reply_text}"))

    def _on_connection_method(self, method: Method) -> None:
        if not self._handshake.done:
            self._on_handshake(method)
            return
        match method:
            case ConnectionClose():
                self._machine.send(0, ConnectionCloseOk())
                self._end(ConnectionClosed(method.reply_code, method.reply_text, by_broker=True))
            case ConnectionCloseOk():
                self._end(ConnectionLost("closed"))
            case ConnectionBlocked():
                self.is_blocked = True
                self._outlet.set_blocked(True)
                if self.on_blocked is not None:
                    self.on_blocked(method.reason)
            case ConnectionUnblocked():
                self.is_blocked = False
                self._outlet.set_blocked(False)
                if self.on_unblocked is not None:
                    self.on_unblocked()
            case _:
                pass

    def _on_handshake(self, method: Method) -> None:
        try:
            self._handshake.on_method(method)
        except ConnectError as error:
            if isinstance(method, ConnectionClose):
                self._machine.send(0, ConnectionCloseOk())
            self._end(error)
            return
        if self._handshake.done:
            self._pulse()
            if not self.opened.done():
                self.opened.set_result(None)

    # Heartbeats and the end

    def _pulse(self) -> None:
        pulse = self._machine.pulse(self._loop.time())
        if pulse.expired:
            self.abort(ConnectionLost(f"not a byte from the broker for {2 * self._machine.heartbeat_s} s"))
            return
        if pulse.beat:
            self._outlet.flush()
        if pulse.next_at is not None:
            self._pulse_timer = self._loop.call_at(pulse.next_at, self._pulse)

    def _end(self, reason: ClientError) -> None:
        """Write what is left and close the socket."""
        self._lose(reason)
        self._outlet.close()

    def _lose(self, reason: ClientError) -> None:
        """Fail everything that waits, once; the socket may take a moment longer."""
        if self._is_lost:
            return
        self._is_lost = True
        self._reason = reason
        if self._pulse_timer is not None:
            self._pulse_timer.cancel()
        if not self.opened.done():
            self.opened.set_exception(reason)
        self._channels.lose(reason)
        self._outlet.release()

    def _explain(self, error: Exception | None) -> ClientError:
        reason = str(error) if error else "the broker closed the socket"
        if self.opened.done():
            return ConnectionLost(f"the connection was lost: {reason}")
        if isinstance(error, ssl.SSLError):  # in TLS 1.3 a refused client certificate shows only now
            return TlsError(f"{self._settings.address}: {system_reason(error)}")
        return self._handshake.explain_loss(reason)

    def _error(self) -> ClientError:
        return self._reason or ConnectionLost("the connection is not open yet")
