"""Victims: a sidecar, the application beside it, both, a publisher, the broker."""

from __future__ import annotations

import asyncio
import enum
import json
import signal
from pathlib import Path
from typing import Any

from lbg_core.publisher.resume import MARK_AT, MARK_BYTES, unpacked_mark
from testing.chaos.processes import Process

CONCURRENCY = {"http": 16, "http-batch": 400, "stream": 400}
LEAVE_WITHIN_S = 60.0
DELIVERED_AGAIN = 1
"""The status of a sidecar that left before its calls ended."""


class Victim(enum.StrEnum):
    APPLICATION = "applications"
    SIDECAR = "sidecars"
    BOTH = "both together"
    BROKER = "the broker"
    PUBLISHER = "publishers"


class Watched:
    """A process that may end when it is told to, and never by itself."""

    def __init__(self, what: str, argv: list[str], log: Path) -> None:
        self.failure = ""
        self._what = what
        self._process = Process(argv, log)
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self._process.start()
        self._watch = asyncio.create_task(self._stay())

    async def kill(self) -> None:
        self._unwatch()
        await self._process.kill()

    async def leave(self) -> None:
        """SIGTERM, and wait for the end. Raises TimeoutError."""
        self._unwatch()
        self._process.signal(signal.SIGTERM)
        status = await self._process.ended(LEAVE_WITHIN_S)
        if status not in (0, DELIVERED_AGAIN, -signal.SIGTERM):
            self._fail(status)

    async def _stay(self) -> None:
        self._fail(await self._process.ended())

    def _fail(self, status: int) -> None:
        self.failure = f"{self._what} ended with {status}: {self._process.last_words()}"

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


class Pair:
    """A member: `lbg sidecar`, and an application that it reaches, or that reaches it, over a unix socket."""

    def __init__(
        self, number: int, directory: Path, *, broker: str, group: str, channel: str, told: dict[str, Any]
    ) -> None:
        name = f"m{number}"
        local, socket = directory / f"{name}.local", directory / f"{name}.app"
        settings: dict[str, Any] = {
            "broker": broker,
            "group": group,
            "name": name,
            "rebalance_delay_s": 0.5,
            "app": channel,
            "local": f"unix:{local}",
            "observed": "127.0.0.1:0",
            "concurrency": CONCURRENCY[channel],
        }
        if channel != "stream":
            path = "/batch" if channel == "http-batch" else "/"
            settings |= {"target": f"unix:{socket}:{path}", "positions_path": "/processed"}
        file = directory / f"{name}.toml"
        # A JSON text is a TOML text, and so are JSON numbers.
        file.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()))
        told = {**told, "channel": channel, "socket": str(local if channel == "stream" else socket)}
        application = ["-m", "testing.exactly_once.application", json.dumps(told)]
        self.sidecar = Watched(
            f"sidecar {name}", ["-m", "lbgroup", "sidecar", "--config", str(file)], directory / f"{name}.log"
        )
        self.application = Watched(f"application {name}", application, directory / f"{name}-app.log")

    @property
    def failure(self) -> str:
        return self.sidecar.failure or self.application.failure

    async def start(self) -> None:
        await asyncio.gather(self.application.start(), self.sidecar.start())

    async def kill(self) -> None:
        await asyncio.gather(self.application.kill(), self.sidecar.kill())

    async def leave(self) -> None:
        """As in a pod: the sidecar drains, then the application ends."""
        await self.sidecar.leave()
        await self.application.leave()


class PublisherSlot:
    """`lbg publish` with a state file: started again after a kill, it goes on where it was."""

    def __init__(self, argv: list[str], state: Path, log: Path) -> None:
        self._process = Process(argv, log)
        self._state = state
        self._life = asyncio.Event()

    @property
    def sent(self) -> int:
        """Messages that were sent once at least, as its state file says."""
        try:
            with self._state.open("rb") as file:
                file.seek(MARK_AT)
                mark = unpacked_mark(file.read(MARK_BYTES))
        except FileNotFoundError:
            return 0
        return mark.position if mark is not None else 0

    @property
    def is_done(self) -> bool:
        return self._life.is_set() and self._process.has_ended

    async def start(self) -> None:
        self._process.ends_on_purpose = False
        await self._process.start()
        self._life.set()

    async def kill(self) -> None:
        self._life.clear()
        await self._process.kill()

    async def ended(self) -> None:
        """Raises RuntimeError when it did not publish everything."""
        status = await self._process.ended()
        if status:
            raise RuntimeError(f"a publisher ended with {status}: {self._process.last_words()}")
