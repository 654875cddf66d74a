"""Applications that cost next to nothing, so that they do not limit what is measured: what one in a compiled language
would be to a sidecar.

Both are bare asyncio protocols. The HTTP server finds the end of a head and its Content-Length and answers 200 without
a body; the stream's side finds the first number of a frame, and acknowledges all of it with one frame. Neither decodes
JSON: they count marks in the bytes. Each is a worker: `go` on its standard input makes it ready, and it says `done`
when it has seen all messages.
"""

from __future__ import annotations

import asyncio
import signal
import struct
import sys
import time
from array import array
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.measurement import Measurement
from bench.workers import say

MARK = b"published-"
DIGITS = 19
BODY_BYTES = 256
GROUP_MARK = b'"partitionkey"'

_OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
_NOT_YET = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
_LENGTH = b"content-length:"
_FIRST = b'{"first":'


def body() -> bytes:
    """A message: JSON of 256 bytes that says when it was published (CLOCK_MONOTONIC, which processes share)."""
    start = b'{"at": "%s%019d", "fill": "' % (MARK, time.monotonic_ns())
    return start + b"x" * (BODY_BYTES - len(start) - 2) + b'"}'


class Tally:
    """Messages of the application, with their times; with `ages` also their ages in ns."""

    def __init__(self, messages: int, *, ages: bool = False) -> None:
        self.is_ready = asyncio.Event()
        self.messages = messages
        self.seen = 0
        self.requests = 0
        self.first_ns = 0
        self.ages_ns: array[int] | None = array("Q") if ages else None

    def more(self, data: bytes) -> int:
        """A request or a frame that has come whole; returns how many messages are in it."""
        count = data.count(MARK)
        if not self.seen:
            self.first_ns = time.monotonic_ns()
        self.seen += count
        self.requests += 1
        if self.ages_ns is not None:
            self._note(data, self.ages_ns)
        if self.seen >= self.messages > self.seen - count:
            self.tell()
        return count

    def tell(self) -> None:
        say(
            "done",
            first_ns=self.first_ns,
            last_ns=time.monotonic_ns(),
            seen=self.seen,
            requests=self.requests,
        )

    def _note(self, data: bytes, ages_ns: array[int]) -> None:
        now_ns = time.monotonic_ns()
        at = data.find(MARK)
        while at >= 0:
            at += len(MARK)
            ages_ns.append(now_ns - int(data[at : at + DIGITS]))
            at = data.find(MARK, at)


class HttpApplication(asyncio.Protocol):
    """HTTP/1.1 as far as a request with a Content-Length goes."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at = 0
        while (head_end := data.find(b"\r\n\r\n", at)) >= 0:
            end = head_end + 4 + self._length(data[at:head_end])
            if end > len(data):
                break
            if data.startswith(b"GET", at):
                self._transport.write(_OK if self._tally.is_ready.is_set() else _NOT_YET)
            else:
                self._tally.more(data[head_end:end])
                self._transport.write(_OK)
            at = end
        self._rest = data[at:]

    def _length(self, head: bytes) -> int:
        at = head.lower().find(_LENGTH)
        if at < 0:
            return 0
        at += len(_LENGTH)
        end = head.find(b"\r\n", at)
        return int(head[at : end if end >= 0 else len(head)])


class StreamApplication(asyncio.Protocol):
    """RFC 6455 as far as unfragmented frames go."""

    def __init__(self, tally: Tally, credit: int) -> None:
        self._tally = tally
        self._credit = credit
        self._rest = b""
        self._upgraded = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(
            b"GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Protocol: lbg.stream.v1\r\n\r\n"
        )

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        if not self._upgraded:
            head_end = data.find(b"\r\n\r\n")
            if head_end < 0:
                self._rest = data
                return
            assert data.startswith(b"HTTP/1.1 101"), data[:200]
            self._upgraded = True
            data = data[head_end + 4 :]
            self._send(0x1, b'{"hello":{"credit":%d}}' % self._credit)
        at = 0
        while (frame := _frame(data, at)) is not None:
            opcode, start, at = frame
            self._on_frame(opcode, data[start:at])
        self._rest = data[at:]

    def _on_frame(self, opcode: int, payload: bytes) -> None:
        if opcode == 0x9:
            self._send(0xA, payload)
        elif opcode == 0x1 and payload.startswith(_FIRST):
            first = int(payload[len(_FIRST) : payload.index(b",", len(_FIRST))])
            count = self._tally.more(payload)
            self._send(0x1, b'{"ack":%d}' % (first + count - 1))

    def _send(self, opcode: int, payload: bytes) -> None:
        """Masked with zeros, which changes nothing."""
        size = len(payload)
        length = bytes([0x80 | size]) if size < 126 else struct.pack(">BH", 0x80 | 126, size)
        self._transport.write(bytes([0x80 | opcode]) + length + b"\0\0\0\0" + payload)


def _frame(data: bytes, at: int) -> tuple[int, int, int] | None:
    """Opcode, start and end of the payload of the frame at `at`, when it has come whole."""
    if len(data) < at + 2:
        return None
    opcode, size = data[at] & 0xF, data[at + 1]
    start = at + 2
    if size >= 126:
        start += 2 if size == 126 else 8
        if len(data) < start:
            return None
        size = int.from_bytes(data[at + 2 : start], "big")
    return (opcode, start, start + size) if len(data) >= start + size else None


# Workers


async def http(messages: int, socket: str = "", ages: str = "", **_: Any) -> None:
    tally = Tally(messages, ages=bool(ages))
    loop = asyncio.get_running_loop()
    if socket:
        server = await loop.create_unix_server(lambda: HttpApplication(tally), socket)
    else:
        server = await loop.create_server(lambda: HttpApplication(tally), "127.0.0.1", 0)
    say("ready", port=0 if socket else server.sockets[0].getsockname()[1])
    await told_to_go()
    tally.is_ready.set()
    await _ended(tally, ages)


async def stream(messages: int, socket: str, credit: int, ages: str = "", **_: Any) -> None:
    tally = Tally(messages, ages=bool(ages))
    say("ready")
    await told_to_go()
    await asyncio.get_running_loop().create_unix_connection(lambda: StreamApplication(tally, credit), socket)
    await _ended(tally, ages)


async def _ended(tally: Tally, ages: str) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    if ages:
        keep(tally, ages)
        tally.tell()


def keep(tally: Tally, place: str) -> None:
    """The ages, for the measurement to read."""
    assert tally.ages_ns is not None
    Path(place).write_bytes(tally.ages_ns.tobytes())


async def told_to_go() -> None:
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


WORKERS: dict[str, Callable[..., Awaitable[None]]] = {"http": http, "stream": stream}


def main() -> None:
    parser = Measurement(__doc__, workers=WORKERS)
    parser.asked()
    parser.error("it only works for other measurements")


if __name__ == "__main__":
    main()
