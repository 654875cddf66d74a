"""The application of every cell: takes so long for a message, and writes a line when a call begins and when it ends.

`python -m testing.promises.application CHANNEL LINES TIME_MS [WHERE]`: a `callable` in a member of its own (WHERE:
the member's settings as JSON), a `command` on standard input and output, an `http` server on the unix socket WHERE, or
a `stream` client of the sidecar on the unix socket WHERE. SIGTERM ends it. A `serial-command`, a `serial-stream` and a
`serial-batch`, an HTTP server that gets batches, take all that they are given and work on one message at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from testing.promises.judge import ABORTED, FINISHED, STARTED

if TYPE_CHECKING:
    from aiohttp import web


class Lines:
    """The file of one application, to which each of its processes appends; a line is one write and so never torn."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._names = itertools.count()
        self._pid = os.getpid()

    @contextmanager
    def call(self, body: bytes | str) -> Iterator[None]:
        row = json.loads(body)
        what = f"{self._pid}-{next(self._names)} {row['n']} {row['key']}"
        self._write(STARTED, what)
        try:
            yield
        except BaseException:
            self._write(ABORTED, what)
            raise
        self._write(FINISHED, what)

    def _write(self, kind: str, what: str) -> None:
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(self._file, f"{kind} {now_ns} {what}\n".encode())


class Application:
    def __init__(self, lines: str, time_ms: int) -> None:
        self._lines = Lines(lines)
        self._time_s = time_ms / 1000

    async def work(self, body: bytes | str) -> None:
        with self._lines.call(body):
            if self._time_s:
                await asyncio.sleep(self._time_s)

    def block(self, body: bytes | str) -> None:
        """The same work in blocking code."""
        with self._lines.call(body):
            time.sleep(self._time_s)


async def run_callable(application: Application, settings: dict[str, Any]) -> None:
    """A member with default settings, but for who and where it is."""
    import logging

    from lbg_sidecar import Member, MemberSettings, Message

    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")

    async def handle(message: Message) -> None:
        await application.work(message.data)

    member = Member(MemberSettings(**settings), handle)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, member.stop, "SIGTERM")
    async with member:
        await member.run()


async def run_command(application: Application) -> None:
    reader = asyncio.StreamReader(limit=2**24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    calls: set[asyncio.Task[None]] = set()

    async def answer(line: bytes) -> None:
        message = json.loads(line)
        await application.work(message["data"])
        sys.stdout.write(json.dumps({"id": message["id"], "verdict": "ack"}) + "\n")
        sys.stdout.flush()

    while line := await reader.readline():
        call = asyncio.create_task(answer(line))
        calls.add(call)
        call.add_done_callback(calls.discard)
    await asyncio.gather(*calls)


def run_serial_command(application: Application) -> None:
    for line in sys.stdin:
        message = json.loads(line)
        application.block(message["data"])
        print(json.dumps({"id": message["id"], "verdict": "ack"}), flush=True)


async def run_http(application: Application, socket: str) -> None:
    """An ordinary server: a request whose client is gone is worked on to its end."""
    from aiohttp import web

    async def post(request: web.Request) -> web.Response:
        await application.work(await request.read())
        return web.Response(status=204)

    await _serve(post, socket)


async def _serve(post: Callable[[web.Request], Awaitable[web.Response]], socket: str) -> None:
    from aiohttp import web

    app = web.Application()
    app.router.add_post("/", post)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, socket).start()
    await _terminated()
    await runner.cleanup()


async def run_serial_batch(application: Application, socket: str) -> None:
    """A server of batches that works on one message of all its requests at a time."""
    from aiohttp import web

    working = asyncio.Lock()

    async def post(request: web.Request) -> web.Response:
        for event in await request.json():
            async with working:
                await application.work(json.dumps(event["data"]))
        return web.Response(status=204)

    await _serve(post, socket)


async def run_stream(application: Application, socket: str, *, is_serial: bool) -> None:
    import aiohttp

    from lbg_sidecar.stream_client import consume

    async def handle(message: dict[str, Any]) -> None:
        if is_serial:
            application.block(message["data"])
        else:
            await application.work(message["data"])

    async def connect() -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                await consume("http://localhost/v1/stream", handle, unix_socket=socket)
            await asyncio.sleep(0.1)

    connecting = asyncio.create_task(connect())
    await _terminated()
    connecting.cancel()
    await asyncio.wait((connecting,))


async def _terminated() -> None:
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    await over.wait()


async def run(channel: str, lines: str, time_ms: int, where: str) -> None:
    application = Application(lines, time_ms)
    match channel:
        case "callable":
            await run_callable(application, json.loads(where))
        case "command":
            await run_command(application)
        case "http":
            await run_http(application, where)
        case "serial-command":
            run_serial_command(application)
        case "serial-batch":
            await run_serial_batch(application, where)
        case "stream" | "serial-stream":
            await run_stream(application, where, is_serial=channel == "serial-stream")
        case _:
            raise SystemExit(f"no channel {channel!r}")


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3]), "".join(sys.argv[4:])))
