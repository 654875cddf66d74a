"""The channels under the conformance test, each with an application that understands the same bodies.

A body says what the application does: `retry N` fails until attempt N, `later S` fails once and asks for S seconds,
`drop WHY`, `sum …` drops with length and checksum of all of it, `sleep S` is slow the first time, anything else is
acknowledged. It logs "begin SEQ" and "end SEQ".
"""

from __future__ import annotations

import asyncio
import sys
import time
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from lbg_sidecar import ACK, AppChannel, CommandChannel, Message, Verdict, drop, retry
from lbg_sidecar.app.callable import handler_channel
from lbg_sidecar.app.channel import Calls
from lbg_sidecar.app.health import HealthRules
from lbg_sidecar.app.http_push import BatchChannel, BatchSettings, PushChannel
from lbg_sidecar.app.websocket import PATH, StreamChannel, StreamSettings
from testing import ROOT
from testing.ports import free_port
from testing.waiting import GUARD_S

QUICK = HealthRules(interval_s=0.05, timeout_s=GUARD_S, down_after=2)

COMMAND = """
import json, sys, threading, time, zlib
log = open(sys.argv[1], "a", buffering=1)
lock = threading.Lock()
def work(message):
    body, seq, attempt = message.get("data", ""), message["seq"], message["attempt"]
    log.write(f"begin {seq}\\n")
    word, _, rest = body.partition(" ")
    answer = {"id": message["id"], "verdict": "ack"}
    if word == "retry" and attempt < int(rest):
        answer |= {"verdict": "retry", "reason": "busy", "after_s": 0}
    elif word == "later" and attempt == 1:
        answer |= {"verdict": "retry", "reason": "busy", "after_s": float(rest)}
    elif word == "drop":
        answer |= {"verdict": "drop", "reason": rest}
    elif word == "sum":
        answer |= {"verdict": "drop", "reason": f"{len(body)} {zlib.crc32(body.encode())}"}
    elif word == "sleep" and attempt == 1:
        time.sleep(float(rest))
    log.write(f"end {seq}\\n")
    with lock:
        print(json.dumps(answer), flush=True)
for line in sys.stdin:
    threading.Thread(target=work, args=(json.loads(line),), daemon=True).start()
"""


@dataclass
class Subject:
    """`log`: what the application began and ended, in order. `aborts`: whether a call can be stopped."""

    channel: AppChannel
    log: Callable[[], list[str]]
    aborts: bool = True


def answered(message: Message) -> Verdict | float:
    """The verdict, or how long to sleep before an ack."""
    word, _, rest = message.data.decode("utf-8", "replace").partition(" ")
    if word == "retry" and message.attempt < int(rest):
        return retry("busy", after_s=0)
    if word == "later" and message.attempt == 1:
        return retry("busy", after_s=float(rest))
    if word == "drop":
        return drop(rest)
    if word == "sum":
        return drop(f"{len(message.data)} {zlib.crc32(message.data)}")
    if word == "sleep" and message.attempt == 1:
        return float(rest)
    return ACK


@asynccontextmanager
async def coroutine(place: Path, concurrency: int) -> AsyncIterator[Subject]:
    log: list[str] = []

    async def handle(message: Message) -> Verdict:
        log.append(f"begin {message.seq}")
        try:
            answer = answered(message)
            if isinstance(answer, Verdict):
                return answer
            await asyncio.sleep(answer)
            return ACK
        finally:
            log.append(f"end {message.seq}")

    yield Subject(handler_channel(handle, concurrency=concurrency), lambda: list(log))


@asynccontextmanager
async def threads(place: Path, concurrency: int) -> AsyncIterator[Subject]:
    log: list[str] = []

    def handle(message: Message) -> Verdict:
        log.append(f"begin {message.seq}")
        answer = answered(message)
        if not isinstance(answer, Verdict):
            time.sleep(min(answer, 0.3))
            answer = ACK
        log.append(f"end {message.seq}")
        return answer

    yield Subject(handler_channel(handle, concurrency=concurrency), lambda: list(log), aborts=False)


@asynccontextmanager
async def command(place: Path, concurrency: int) -> AsyncIterator[Subject]:
    log = place / "log"
    line = [sys.executable, "-u", "-c", COMMAND, str(log)]
    yield Subject(CommandChannel(line, concurrency=concurrency), lambda: lines_of(log))


class HttpApp:
    """A server in a process of its own, to be killed and started again at the same address."""

    def __init__(self, place: Path, address: str) -> None:
        self.log = place / "log"
        self.address = address
        self._process: asyncio.subprocess.Process | None = None

    @property
    def target(self) -> str:
        return (
            f"{self.address}:/" if self.address.startswith("unix:") else f"http://127.0.0.1:{self.address}/"
        )

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "testing.app.http_app", str(self.log), self.address), cwd=ROOT
        )

    async def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def http_over(
    address: str, place: Path, concurrency: int, *, batched: bool = False
) -> AsyncIterator[Subject]:
    app = HttpApp(place, address)
    await app.start()
    try:
        channel: AppChannel
        if batched:
            # One request a message at the least, so that as many run as the member lets.
            settings = BatchSettings(requests=concurrency)
            channel = BatchChannel(app.target + "batch", settings=settings, health=QUICK)
        else:
            channel = PushChannel(app.target, concurrency=concurrency, health=QUICK)
        yield Subject(channel, lambda: lines_of(app.log))
    finally:
        await app.kill()


def http_tcp(place: Path, concurrency: int) -> AbstractAsyncContextManager[Subject]:
    return http_over(str(free_port()), place, concurrency)


def http_unix(place: Path, concurrency: int) -> AbstractAsyncContextManager[Subject]:
    return http_over(f"unix:{place}/app.sock", place, concurrency)


def batch_tcp(place: Path, concurrency: int) -> AbstractAsyncContextManager[Subject]:
    return http_over(str(free_port()), place, concurrency, batched=True)


def batch_unix(place: Path, concurrency: int) -> AbstractAsyncContextManager[Subject]:
    return http_over(f"unix:{place}/app.sock", place, concurrency, batched=True)


@asynccontextmanager
async def stream_over(unix_socket: Path | None, place: Path, concurrency: int) -> AsyncIterator[Subject]:
    log = place / "log"
    # An application that is slow because the machine is busy is not taken for dead.
    settings = StreamSettings(concurrency=concurrency, hello_limit_s=GUARD_S, heartbeat_s=2 * GUARD_S)
    channel = _Connected(settings, log, unix_socket)
    runner = web.AppRunner(web.Application(), shutdown_timeout=0.1)
    runner.app.add_routes(channel.routes)
    await runner.setup()
    try:
        if unix_socket is not None:
            await web.UnixSite(runner, str(unix_socket)).start()
            channel.url = f"http://localhost{PATH}"
        else:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            channel.url = f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}"
        yield Subject(channel, lambda: lines_of(log))
    finally:
        await channel.kill()
        await runner.cleanup()


class _Connected(StreamChannel):
    """Starts its application, in a process of its own, when it is started itself."""

    def __init__(self, settings: StreamSettings, log: Path, unix_socket: Path | None) -> None:
        super().__init__(settings)
        self.url = ""
        self._arguments = (str(log), str(unix_socket or ""))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, calls: Calls) -> None:
        await super().start(calls)
        log, unix_socket = self._arguments
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "testing.app.stream_app", log, self.url, unix_socket), cwd=ROOT
        )

    async def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()


def stream_tcp(place: Path, concurrency: int) -> AbstractAsyncContextManager[Subject]:
    return stream_over(None, place, concurrency)


def stream_unix(place: Path, concurrency: int) -> AbstractAsyncContextManager[Subject]:
    return stream_over(place / "stream.sock", place, concurrency)


SUBJECTS: dict[str, Callable[[Path, int], AbstractAsyncContextManager[Subject]]] = {
    "coroutine": coroutine,
    "threads": threads,
    "command": command,
    "http-tcp": http_tcp,
    "http-unix": http_unix,
    "batch-tcp": batch_tcp,
    "batch-unix": batch_unix,
    "stream-tcp": stream_tcp,
    "stream-unix": stream_unix,
}


def lines_of(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
