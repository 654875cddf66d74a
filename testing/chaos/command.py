"""The same application as a command: `lbg consume … -- python -m testing.chaos.command LEDGER MOOD`."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from testing.chaos.application import Application
from testing.chaos.stream import key_number, position_in, publisher_number


async def run(ledger: Path, mood: Path) -> None:
    application = Application(ledger, mood)
    loop = asyncio.get_running_loop()
    calls: set[asyncio.Task[None]] = set()
    reader = asyncio.StreamReader(limit=2**24)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        call = asyncio.create_task(answer(application, line))
        calls.add(call)
        call.add_done_callback(calls.discard)
    await asyncio.gather(*calls)


async def answer(application: Application, line: bytes) -> None:
    message = json.loads(line)
    name = (
        position_in(message["data"].encode()),
        key_number(message["key"]),
        message["seq"],
        publisher_number(message["publisher"]),
        message["queue"],
    )
    verdict = await application.call(name, redelivered=message["redelivered"], attempt=message["attempt"])
    told = {"id": message["id"], "verdict": "ack"}
    if verdict is not None:
        told = {**told, "verdict": str(verdict.kind), "reason": verdict.reason}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), Path(sys.argv[2])))
