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

from testing import ROOT
from testing.waiting import whole_lines

RESTART_S = 0.3


class CrashLoop:
    """`record` is the application's own: a line for each begin and end of a call."""

    def __init__(self, record: Path) -> None:
        self.record = record
        self.deaths = 0
        record.touch()

    def lines(self, word: str) -> list[tuple[str, str, int]]:
        """Member, key and number of each line with this word."""
        found = (line.split() for line in whole_lines(self.record))
        return [(name, key, int(seq)) for kind, name, key, seq in found if kind == word]

    def ended(self) -> set[tuple[str, int]]:
        return {(key, seq) for _, key, seq in self.lines("end")}

    async def run(self, told: dict[str, Any], temporary: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
        command = (sys.executable, "-m", "testing.member.crashing_member", json.dumps(told))
        while True:
            process = await asyncio.create_subprocess_exec(
                *command, cwd=ROOT, env={**environment, "TMPDIR": str(temporary)}
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
