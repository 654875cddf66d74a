"""A member in a process of its own, which can be killed, stopped and asked to leave.

It tells what happens to it in lines of JSON on its standard output, and notes every call of its application in a
file as it begins, so that nothing is forgotten by a SIGKILL. Nothing here knows pytest; benchmarks use it too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbg_core.group.members_protocol import Takeover
from lbg_sidecar import Member, MemberSettings, Message
from lbg_sidecar.core.effects import Effect, HandoffAbandoned, LiveSet, Moved
from testing import ROOT
from testing.waiting import GUARD_S

SLOWER = 4
"""Factor of SIGHUP."""

_CALL = struct.Struct("<QIIQ?Q")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the application, as it began. Times are CLOCK_MONOTONIC, which processes of a machine share."""

    at_ns: int
    queue: int
    hash: int
    seq: int
    redelivered: bool
    published_ns: int

    @property
    def name(self) -> tuple[int, int]:
        return (self.hash, self.seq)


@dataclass(frozen=True, slots=True)
class Event:
    at_ns: int
    kind: str
    fields: dict[str, Any]


class MemberProcess:
    """`settings` are fields of `MemberSettings`; `work_s` is how long each call takes.

    SIGTERM: leave and end. SIGUSR1: leave. SIGUSR2: join again. SIGHUP: calls take `SLOWER` times as long from now on.
    """

    def __init__(self, name: str, directory: Path, *, work_s: float = 0.0, **settings: Any) -> None:
        self.name = name
        self.events: list[Event] = []
        self.settings = settings
        self._calls_file = directory / f"{name}-{time.monotonic_ns()}.calls"
        self._log_file = directory / f"{name}.log"
        self._told = {"name": name, "work_s": work_s, "calls_file": str(self._calls_file), **settings}
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    async def start(self) -> None:
        with self._log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "testing.member.process"),
                json.dumps(self._told),
                cwd=ROOT,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self._reader = asyncio.create_task(self._read())

    async def joined(self, *, timeout_s: float = GUARD_S) -> int:
        """Its index, once it has joined."""
        event = await self.told("joined", timeout_s=timeout_s)
        return int(event.fields["index"])

    def since(self, at_ns: int, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind and event.at_ns >= at_ns]

    async def told(self, kind: str, *, timeout_s: float = GUARD_S, **fields: Any) -> Event:
        """The first event of this kind with these fields."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    for event in self.events:
                        if event.kind == kind and event.fields.items() >= fields.items():
                            return event
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(f"{self.name} did not tell of {kind} {fields}: {self.log()[-2000:]}") from None

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    async def kill(self) -> int:
        """SIGKILL; returns when it was sent (CLOCK_MONOTONIC, ns)."""
        at_ns = time.monotonic_ns()
        self.signal(signal.SIGKILL)
        await self.ended()
        return at_ns

    async def ended(self, *, timeout_s: float = GUARD_S) -> int:
        assert self._process is not None
        async with asyncio.timeout(timeout_s):
            status = await self._process.wait()
            if self._reader is not None:
                await self._reader
        return status

    async def close(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self.ended()

    def calls(self, since_ns: int = 0) -> Iterator[Call]:
        """Those that began then or later (CLOCK_MONOTONIC)."""
        if self._calls_file.exists():
            data = memoryview(self._calls_file.read_bytes())
            count = len(data) // _CALL.size
            first = bisect_left(
                range(count), since_ns, key=lambda number: _CALL.unpack_from(data, number * _CALL.size)[0]
            )
            for fields in _CALL.iter_unpack(data[first * _CALL.size : count * _CALL.size]):
                yield Call(*fields)

    def log(self) -> str:
        return self._log_file.read_text()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            fields = json.loads(line)
            self.events.append(Event(fields.pop("at_ns"), fields.pop("event"), fields))
            self._changed.set()


def _tell(event: str, **fields: Any) -> None:
    line = json.dumps({"at_ns": time.monotonic_ns(), "event": event, **fields})
    os.write(1, line.encode() + b"\n")


def _observe(effect: Effect) -> None:
    match effect:
        case LiveSet(live):
            _tell("live", live=sorted(live))
        case Takeover():
            _tell("taken_over", queue=effect.queue, former=effect.former, planned=effect.planned)
        case Moved(queue, to, why, drain_s, close_s, forced):
            times = {"drain_s": drain_s, "close_s": close_s}
            _tell("moved", queue=queue, to=to, why=why, forced=forced, **times)
        case HandoffAbandoned():
            _tell("kept", queue=effect.queue)
        case _:
            pass


async def _run(told: dict[str, Any]) -> None:
    import logging

    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    work_s = told.pop("work_s")
    epoch_ns = time.time_ns() - time.monotonic_ns()
    file = os.open(told.pop("calls_file"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def handle(message: Message) -> None:
        at_ns, held = time.monotonic_ns(), message.in_flight
        _, hash_, seq = held.identity or ("", 0, 0)
        published_ns = max(0, held.published_at_us * 1000 - epoch_ns)
        os.write(file, _CALL.pack(at_ns, message.queue, hash_, seq, message.redelivered, published_ns))
        if work_s:
            await asyncio.sleep(work_s)

    def slow_down() -> None:
        nonlocal work_s
        work_s *= SLOWER

    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    again = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR2, again.set)
    loop.add_signal_handler(signal.SIGHUP, slow_down)
    while not ended.is_set():
        async with Member(MemberSettings(**told), handle, observer=_observe) as member:
            _tell("joined", index=member.index)

            def end(member: Member = member) -> None:
                ended.set()
                again.set()
                member.stop("SIGTERM")

            loop.add_signal_handler(signal.SIGTERM, end)
            loop.add_signal_handler(signal.SIGUSR1, member.stop, "SIGUSR1")
            await member.run()
        _tell("left")
        await again.wait()
        again.clear()


if __name__ == "__main__":
    asyncio.run(_run(json.loads(sys.argv[1])))
