"""A blocking AMQP client that does what it is told and nothing by itself: no heartbeats, no reconnecting.

with PlainClient(broker.port) as client:
    client.ask(QueueDeclare("q", durable=True), QueueDeclareOk)
"""

from __future__ import annotations

import socket
import ssl
import time
from typing import Any, Self, TypeVar

from lbg_core.amqp import (
    NO_PROPERTIES,
    Connection,
    ConnectionState,
    ContentEvent,
    DeliverEvent,
    Event,
    MethodEvent,
    Role,
)
from lbg_core.amqp.methods import (
    ChannelOpen,
    ChannelOpenOk,
    ConnectionOpen,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    Method,
)
from testing.waiting import GUARD_S

M = TypeVar("M", bound=Method)
CAPABILITIES = (
    "publisher_confirms",
    "consumer_cancel_notify",
    "basic.nack",
    "connection.blocked",
    "authentication_failure_close",
)


class ClosedError(ConnectionError):
    """The broker closed the socket."""


class PlainClient:
    """One connection; with `log_in` also authenticated, and with channel 1 open."""

    def __init__(
        self,
        port: int,
        *,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        heartbeat_s: int = 0,
        log_in: bool = True,
        capabilities: tuple[str, ...] = CAPABILITIES,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = GUARD_S,
        receive_buffer_bytes: int | None = None,
        frame_max_bytes: int = 131072,
    ) -> None:
        raw = socket.socket()
        if receive_buffer_bytes is not None:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        raw.settimeout(timeout_s)
        self.socket = raw
        try:
            raw.connect(("127.0.0.1", port))
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self.socket = tls.wrap_socket(raw, server_hostname="localhost")
        except BaseException:
            raw.close()
            raise
        self.wire = Connection(Role.CLIENT, heartbeat_s=heartbeat_s, frame_max_bytes=frame_max_bytes)
        self.events: list[Event] = []
        self.server_properties: Any = {}
        self._login = f"\0{user}\0{password}".encode()
        self._vhost = vhost
        self._capabilities = dict.fromkeys(capabilities, True)
        if log_in:
            try:
                self.log_in()
            except BaseException:
                self.socket.close()
                raise

    def log_in(self) -> None:
        self.wire.initiate()
        start = self.wait(ConnectionStart)
        self.server_properties = start.server_properties
        self.wire.send(
            0, ConnectionStartOk({"capabilities": self._capabilities}, "PLAIN", self._login, "en_US")
        )
        tune = self.wait(ConnectionTune)
        self.wire.send(0, self.wire.tune_ok(tune))
        self.wire.send(0, ConnectionOpen(self._vhost))
        while self.wire.state is not ConnectionState.OPEN:
            self.receive()
        self.events.clear()
        self.ask(ChannelOpen(), ChannelOpenOk)

    def send(self, method: Method, channel: int = 1) -> None:
        self.wire.send(channel, method)
        self.flush()

    def publish(self, body: bytes, key: str, *, exchange: str = "", header: bytes = NO_PROPERTIES) -> None:
        """Put a publish in the output; `flush` sends it."""
        self.wire.publish(1, exchange, key, header, body)

    def flush(self) -> None:
        output = self.wire.take_output()
        if output:
            self.socket.sendall(output)

    def ask(self, method: Method, answer: type[M], channel: int = 1) -> M:
        self.send(method, channel)
        return self.wait(answer, channel)

    def wait(self, kind: type[M], channel: int | None = None) -> M:
        """The next method of a kind, which is taken out of `events`. Raises `ClosedError`, TimeoutError."""
        while True:
            for event in self.events:
                if (
                    isinstance(event, MethodEvent | ContentEvent)
                    and isinstance(event.method, kind)
                    and channel in (None, event.channel)
                ):
                    self.events.remove(event)
                    return event.method
            self.receive()

    def deliveries(self, count: int) -> list[DeliverEvent]:
        """The next `count` deliveries."""
        found: list[DeliverEvent] = []
        others: list[Event] = []
        while True:
            for event in self.events:
                if type(event) is DeliverEvent and len(found) < count:
                    found.append(event)
                else:
                    others.append(event)
            self.events = []
            if len(found) == count:
                self.events = others
                return found
            self.receive()

    def receive(self) -> list[Event]:
        """Send what is to be sent, read once, and keep the events."""
        self.flush()
        data = self.socket.recv(1 << 18)
        if not data:
            raise ClosedError("the broker closed the socket")
        events = self.wire.receive_data(data)
        self.events += events
        self.flush()
        return events

    def take_events(self) -> list[Event]:
        """Send what is to be sent, and take the events since the last answer: wait for one if there is none.

        Deliveries may come with the answer to basic.consume: who reads first waits for more than the prefetch."""
        self.flush()
        while not self.events:
            self.receive()
        events, self.events = self.events, []
        return events

    def is_closed_within(self, seconds: float) -> bool:
        """True if the broker ends the connection within this time, with no frame but a close."""
        deadline = time.monotonic() + seconds
        self.socket.settimeout(seconds)
        try:
            while time.monotonic() < deadline:
                if not self.socket.recv(1 << 16):
                    return True
        except ConnectionError:
            return True
        except TimeoutError:
            pass
        return False

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
