"""An application for tests of the whole sidecar: writes down what it gets, whichever channel brings it.

    python noting_app.py NOTES WORK_S command
    python noting_app.py NOTES WORK_S http SOCKET        (single messages at /, batches at /batch)
    python noting_app.py NOTES WORK_S stream SOCKET      (the sidecar's local listener)

Bodies are JSON objects with `n` and `k`. NOTES gets a line for each begin and each end, written at once, so that a
kill -9 loses none; while a file NOTES.hang exists, work that begins never ends. One that starts while a file
NOTES.stubborn exists ends neither at the end of its input nor at SIGTERM.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

NOTES, WORK_S, CHANNEL = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
HANG = NOTES.with_name(NOTES.name + ".hang")
STUBBORN = NOTES.with_name(NOTES.name + ".stubborn")
FILE = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(word: str, body: str | bytes) -> None:
    fields = json.loads(body)
    os.write(FILE, f"{word} {time.monotonic_ns()} {fields['n']} {fields['k']}\n".encode())


async def work(body: str | bytes) -> None:
    note("begin", body)
    if HANG.exists():
        await asyncio.Event().wait()
    await asyncio.sleep(WORK_S)
    note("end", body)


async def command() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=16 * 1024 * 1024)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    running = set()

    async def answer(message: dict[str, Any]) -> None:
        await work(message["data"])
        print(json.dumps({"id": message["id"], "verdict": "ack"}), flush=True)

    while line := await reader.readline():
        task = asyncio.create_task(answer(json.loads(line)))
        running.add(task)
        task.add_done_callback(running.discard)
    if STUBBORN.exists():
        await asyncio.Event().wait()


def http(socket: str) -> None:
    from aiohttp import web

    async def single(request: web.Request) -> web.Response:
        await work(await request.read())
        return web.Response(status=204)

    async def batch(request: web.Request) -> web.Response:
        await asyncio.gather(*(work(event["data"]) for event in await request.json()))
        return web.Response(status=204)

    with suppress(FileNotFoundError):
        os.unlink(socket)  # of one that was killed
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app.add_routes([web.post("/", single), web.post("/batch", batch)])
    web.run_app(app, path=socket, print=None, handler_cancellation=True, shutdown_timeout=0.1)


async def stream(socket: str) -> None:
    from aiohttp import ClientError

    from lbg_sidecar.stream_client import consume

    async def handle(message: dict[str, Any]) -> None:
        await work(message["data"])

    while True:
        with suppress(ClientError, OSError):
            await consume("http://sidecar/v1/stream", handle, unix_socket=socket)
        await asyncio.sleep(
            0.5
        )  # each try costs milliseconds of processor, and the sidecar has to come up beside it


if __name__ == "__main__":
    if STUBBORN.exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if CHANNEL == "command":
        asyncio.run(command())
    elif CHANNEL == "http":
        http(sys.argv[4])
    else:
        asyncio.run(stream(sys.argv[4]))
