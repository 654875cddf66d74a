"""Consumers of one single-active quorum queue that do nothing but acknowledge: the floor of a handoff on RabbitMQ.

Processes with bare sockets, and nothing of LBG in them. The active one closes its channel, or is killed, while messages
come: the time is that until another one has its first delivery. Times are CLOCK_MONOTONIC.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pika
from pika import frame, spec

QUEUE = "floor"
PREFETCH = 256
REST_S = 0.1
"""Until one that closed its channel consumes again, behind the others, as a member does."""

SETTLED_S = 0.3
Times = tuple[list[float], list[float]]
NOTE = struct.Struct(">Qc")
CLOSES, DELIVERED = b"c", b"d"


class BareConsumer:
    """Notes when it has its first delivery after another consumer had one, and when it closes its channel."""

    def __init__(self, directory: Path, number: int, url: str) -> None:
        self._notes = directory / f"bare-{number}"
        self._process = _started(url, str(self._notes))

    def close_channel(self) -> None:
        self._process.send_signal(signal.SIGUSR1)

    def kill(self) -> int:
        """The time of it, in nanoseconds."""
        at_ns = time.monotonic_ns()
        self._process.kill()
        self._process.wait()
        return at_ns

    def notes(self, what: bytes) -> Iterator[int]:
        """Nanoseconds."""
        data = self._notes.read_bytes() if self._notes.exists() else b""
        whole = data[: len(data) - len(data) % NOTE.size]
        return (at_ns for at_ns, kind in NOTE.iter_unpack(whole) if kind == what)


async def floor(url: str, directory: Path, *, members: int, rate_hz: int, moves: int, kills: int) -> Times:
    """Milliseconds of each move, and of each kill."""
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        arguments = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        connection.channel().queue_declare(QUEUE, durable=True, arguments=arguments)
    publisher = _started(url, str(rate_hz))
    consumers = [BareConsumer(directory, number, url) for number in range(members)]
    moved: list[float] = []
    killed: list[float] = []
    try:
        for number in range(moves + kills):
            await asyncio.sleep(SETTLED_S)
            active = max(consumers, key=lambda one: max(one.notes(DELIVERED), default=0))
            others = [one for one in consumers if one is not active]
            since_ns = time.monotonic_ns()
            if number < moves:
                active.close_channel()
                at_ns = await _first([active], CLOSES, since_ns)
                moved.append((await _first(others, DELIVERED, at_ns) - at_ns) / 1e6)
            else:
                at_ns = active.kill()
                killed.append((await _first(others, DELIVERED, at_ns) - at_ns) / 1e6)
                consumers = [*others, BareConsumer(directory, members + number, url)]
    finally:
        publisher.kill()
        for one in consumers:
            one.kill()
        publisher.wait()
    return moved, killed


def _started(url: str, what: str) -> subprocess.Popen[bytes]:
    """A process that consumes and notes there, or publishes at this rate. It is connected."""
    kept = ("setpriv", "--pdeathsig", "KILL")
    command = [*kept, sys.executable, "-m", "bench.bare_consumers", url, what]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


async def _first(consumers: list[BareConsumer], what: bytes, since_ns: int) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        seen = [at_ns for one in consumers for at_ns in one.notes(what) if at_ns > since_ns]
        if seen:
            return min(seen)
        await asyncio.sleep(0.02)
    raise TimeoutError(f"no consumer notes {what!r}")


class BareConnection:
    """Frames over a socket, as pika encodes and decodes them."""

    def __init__(self, url: str) -> None:
        told = pika.URLParameters(url)
        self._socket = socket.create_connection((told.host, told.port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = b""
        self._socket.sendall(frame.ProtocolHeader().marshal())
        self.answer(spec.Connection.Start)
        login = "\0guest\0guest"
        self.send(0, spec.Connection.StartOk({}, "PLAIN", login, "en_US"))
        tuned = self.answer(spec.Connection.Tune)
        self.send(0, spec.Connection.TuneOk(tuned.channel_max, tuned.frame_max, 0))
        self.send(0, spec.Connection.Open(told.virtual_host))
        self.answer(spec.Connection.OpenOk)
        self._socket.settimeout(0.01)

    def send(self, channel: int, *methods: Any) -> None:
        self._socket.sendall(b"".join(frame.Method(channel, one).marshal() for one in methods))

    def answer(self, kind: type[Any]) -> Any:
        """The first method of this kind; others that come before it are dropped."""
        while True:
            for one in self.methods():
                if isinstance(one, kind):
                    return one

    def methods(self) -> list[Any]:
        """Those that came within a hundredth of a second."""
        with suppress(TimeoutError):
            data = self._socket.recv(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._buffer += data
        found: list[Any] = []
        while True:
            length, decoded = frame.decode_frame(self._buffer)
            if not length:
                return found
            self._buffer = self._buffer[length:]
            if isinstance(decoded, frame.Method):
                found.append(decoded.method)


def consume(url: str, notes: str) -> None:
    out = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    asked = False
    last_ns = 0

    def ask(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked
        asked = True

    def subscribe() -> None:
        connection.send(1, spec.Channel.Open())
        connection.answer(spec.Channel.OpenOk)
        connection.send(1, spec.Basic.Qos(0, PREFETCH, False))
        connection.answer(spec.Basic.QosOk)
        connection.send(1, spec.Basic.Consume(0, QUEUE))

    signal.signal(signal.SIGUSR1, ask)
    connection = BareConnection(url)
    subscribe()
    print("connected", flush=True)
    while True:
        tags = [one.delivery_tag or 0 for one in connection.methods() if isinstance(one, spec.Basic.Deliver)]
        if tags:
            now_ns = time.monotonic_ns()
            if now_ns - last_ns > REST_S / 2 * 1e9:
                os.write(out, NOTE.pack(now_ns, DELIVERED))
            last_ns = now_ns
            connection.send(1, spec.Basic.Ack(tags[-1], multiple=True))
        if asked:
            asked = False
            os.write(out, NOTE.pack(time.monotonic_ns(), CLOSES))
            connection.send(1, spec.Channel.Close(200, "", 0, 0))
            connection.answer(spec.Channel.CloseOk)
            time.sleep(REST_S)
            subscribe()


def publish(url: str, rate_hz: int) -> None:
    """Evenly spaced, and not faster to make up for a moment lost."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    print("connected", flush=True)
    at = time.monotonic()
    while True:
        channel.basic_publish("", QUEUE, bytes(256), spec.BasicProperties(delivery_mode=2))
        at = max(at + 1 / rate_hz, time.monotonic() - 0.002)
        time.sleep(max(0.0, at - time.monotonic()))


if __name__ == "__main__":
    url, what = sys.argv[1:]
    if what.isdecimal():
        publish(url, int(what))
    consume(url, what)
