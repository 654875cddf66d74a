"""Members in processes that are started again whenever they die, as by systemd or Kubernetes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

RESTART_S = 0.3

MEMBER = """
import asyncio, json, os, signal, sys, time
from lbgroup import Member, MemberSettings, run

told = json.loads(sys.argv[1])
record = os.open(told.pop("record"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
blocking, name = told.pop("blocking"), told["name"]

def begin(message):
    os.write(record, f"begin {name} {message.key} {message.seq}\\n".encode())
    if message.data.startswith(b"killer"):
        os.kill(os.getpid(), signal.SIGKILL) if message.data == b"killer 9" else os.abort()

def end(message):
    os.write(record, f"end {name} {message.key} {message.seq}\\n".encode())

async def handle(message):
    await asyncio.sleep(0.002)
    begin(message)
    await asyncio.sleep(0.002)
    end(message)

def handle_blocking(message):
    time.sleep(0.002)
    begin(message)
    end(message)

async def main():
    async with Member(MemberSettings(**told), handle_blocking if blocking else handle) as member:
        await member.run()

run(main())
"""


class CrashLoop:
    """`record` is the application's own: a line for each begin and end of a call."""

    def __init__(self, record: Path) -> None:
        self.record = record
        self.deaths = 0
        record.touch()

    def lines(self, word: str) -> list[tuple[str, str, int]]:
        """Member, key and number of each line with this word."""
        found = (line.split() for line in self.record.read_text().splitlines())
        return [(name, key, int(seq)) for kind, name, key, seq in found if kind == word]

    def ended(self) -> set[tuple[str, int]]:
        return {(key, seq) for _, key, seq in self.lines("end")}

    async def run(self, told: dict[str, Any], temporary: Path) -> None:
        environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONFAULTHANDLER": ""}
        while True:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", MEMBER, json.dumps(told), env=environment
            )
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
            self.deaths += 1
            await asyncio.sleep(RESTART_S)


@asynccontextmanager
async def crash_loop(
    told: dict[str, Any], directory: Path, *, members: int, blocking: bool = False
) -> AsyncIterator[CrashLoop]:
    loop = CrashLoop(directory / "record")
    temporary = directory / "tmp"
    temporary.mkdir()
    tasks = [
        asyncio.create_task(
            loop.run(
                {**told, "name": f"m{number}", "record": str(loop.record), "blocking": blocking}, temporary
            )
        )
        for number in range(members)
    ]
    try:
        yield loop
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
