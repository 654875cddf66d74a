"""The broker under test, RabbitMQ or the embedded one, as a black box that pika and HTTP talk to."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pika
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError, ChannelClosedByBroker, ConnectionClosedByBroker

from testing.amqp.open_pika import OpenConnection, raw
from testing.waiting import GUARD_S

GUEST = ("guest", "guest")


@dataclass(frozen=True)
class Engine:
    """Addresses of one broker, with its stop and start."""

    name: str
    amqp_port: int
    management_port: int
    crash_and_start: Callable[[], None]
    version: tuple[int, int, int] = (3, 10, 8)
    """Of RabbitMQ: the one that it is, or that it is like."""

    @property
    def is_4(self) -> bool:
        return self.version >= (4, 0, 0)

    @property
    def is_4_3(self) -> bool:
        return self.version >= (4, 3, 0)

    def parameters(
        self, login: tuple[str, str] = GUEST, vhost: str = "/", **settings: Any
    ) -> pika.ConnectionParameters:
        settings = {"heartbeat": 60, "blocked_connection_timeout": 30, **settings}
        credentials = pika.PlainCredentials(*login)
        return pika.ConnectionParameters("127.0.0.1", self.amqp_port, vhost, credentials, **settings)

    @contextmanager
    def connected(self, login: tuple[str, str] = GUEST, **settings: Any) -> Iterator[OpenConnection]:
        connection = OpenConnection(self.parameters(login, **settings))
        try:
            yield connection
        finally:
            with suppress(AMQPError, AssertionError):  # pika asserts when a test went below its surface
                connection.close()

    def amqp_url(self, login: tuple[str, str] = GUEST) -> str:
        return f"amqp://{login[0]}:{login[1]}@127.0.0.1:{self.amqp_port}/"

    def ask(
        self, verb: str, path: str, body: Any = None, *, login: tuple[str, str] | None = GUEST
    ) -> tuple[int, Any]:
        """One request to the management API: its status, and its JSON (or None where the body is no JSON)."""
        headers = {"Content-Type": "application/json"}
        if login is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(login).encode()).decode()
        connection = http.client.HTTPConnection("127.0.0.1", self.management_port, timeout=GUARD_S)
        try:
            connection.request(verb, "/api" + path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, None

    def add_user(self, name: str, *, tags: str = "", **patterns: str) -> tuple[str, str]:
        """Create a user with the permission patterns given (the others are empty); returns the login."""
        status, _ = self.ask("PUT", f"/users/{quote(name, safe='')}", {"password": "secret", "tags": tags})
        assert status in (201, 204)
        permission = {"configure": "", "write": "", "read": "", **patterns}
        status, _ = self.ask("PUT", f"/permissions/%2F/{quote(name, safe='')}", permission)
        assert status in (201, 204)
        return name, "secret"


def refusal(action: Callable[[], Any]) -> tuple[str, int, str] | None:
    """Object that the broker closed, with the reply code and first word; None if it accepted."""
    try:
        action()
    except ChannelClosedByBroker as closed:
        return "channel", closed.reply_code, closed.reply_text.partition(" - ")[0]
    except ConnectionClosedByBroker as closed:
        return "connection", closed.reply_code, closed.reply_text.partition(" - ")[0]
    return None


def cut(connection: OpenConnection) -> None:
    """End the connection's socket without a word of AMQP, as a killed process does."""
    connection.raw.abort()
    with suppress(AMQPError):
        connection.close()


def read_all(peer: socket.socket) -> bytes:
    """Everything the peer sends until it ends the connection, by a reset or otherwise."""
    chunks = []
    with suppress(ConnectionResetError):
        while chunk := peer.recv(4096):
            chunks.append(chunk)
    return b"".join(chunks)


def close_at_once(channel: BlockingChannel) -> None:
    """Channel.close and nothing else: pika's own close cancels the consumers first."""
    raw(channel).close_at_once()
    assert pump(channel, lambda: channel.is_closed)


def drain(channel: BlockingChannel, queue: str) -> list[bytes]:
    """Everything that is ready in the queue, in order, acknowledged."""
    bodies = []
    while True:
        method, _, body = channel.basic_get(queue, auto_ack=True)
        if method is None:
            return bodies
        bodies.append(body)


class Inbox:
    """A pika consumer's deliveries, in the order they came."""

    def __init__(self, channel: BlockingChannel, queue: str, **settings: Any) -> None:
        self.channel = channel
        self.deliveries: list[tuple[Any, Any, bytes]] = []
        self.cancelled = False
        channel.add_on_cancel_callback(lambda _frame: setattr(self, "cancelled", True))
        self.tag = channel.basic_consume(queue, self._take, **settings)

    @property
    def bodies(self) -> list[bytes]:
        return [body for _, _, body in self.deliveries]

    @property
    def tags(self) -> list[int]:
        return [method.delivery_tag for method, _, _ in self.deliveries]

    @property
    def redelivered(self) -> list[bool]:
        return [method.redelivered for method, _, _ in self.deliveries]

    def wait(self, count: int, *, timeout_s: float = GUARD_S) -> list[bytes]:
        """Run the connection until `count` deliveries have come; returns the bodies so far."""
        pump(self.channel, lambda: len(self.deliveries) >= count, timeout_s=timeout_s)
        return self.bodies

    def stays_at(self, count: int, *, for_s: float = 0.15) -> bool:
        """True if no delivery beyond `count` comes in a while."""
        pump(self.channel, lambda: len(self.deliveries) > count, timeout_s=for_s)
        return len(self.deliveries) == count

    def _take(self, _channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        self.deliveries.append((method, properties, body))


def pump(channel: BlockingChannel, condition: Callable[[], bool], *, timeout_s: float = GUARD_S) -> bool:
    """Run the channel's connection until the condition holds; whether it did within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        channel.connection.process_data_events(0.01)
    return True


def eventually(condition: Callable[[], bool], *, timeout_s: float = GUARD_S) -> bool:
    """Ask until the condition holds; whether it did within the time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
