"""The application of every member: it writes its ledger, and is as slow or faulty as its mood file says."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from lbg_sidecar import Message, Verdict, drop, retry
from testing.chaos.ledger import Kind, Ledger
from testing.chaos.stream import key_number, position_in, publisher_number

LOOK_EVERY_S = 0.05
OFTEN_WAITS_S = 0.01
"""Every hundredth call waits so long for something, so that there are calls to interrupt."""


@dataclass(frozen=True, slots=True)
class Mood:
    """Behaviour of an application. Shares are percent of the messages, always the same ones.

    `slow_s`: seconds a call takes. `stalls`: no call ends until the mood changes. `fails`: their first two calls
    raise or ask for a retry. `drops`: refused for good. `hangs`: the first call never ends by itself.
    """

    slow_s: float = 0.0
    stalls: bool = False
    fails: int = 0
    drops: int = 0
    hangs: int = 0

    def write(self, path: Path) -> None:
        draft = path.with_suffix(".new")
        draft.write_text(json.dumps(asdict(self)))
        draft.replace(path)

    @property
    def is_calm(self) -> bool:
        return not (self.slow_s or self.stalls or self.fails or self.drops or self.hangs)


CALM = Mood()


class MoodFile:
    """Reads a mood again when its file has changed, looking at most every 50 ms. No file: calm."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mood = CALM
        self._look_at = 0.0
        self._changed_at = 0

    def now(self) -> Mood:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            try:
                changed_at = os.stat(self._path).st_mtime_ns
            except FileNotFoundError:
                return self._mood
            if changed_at != self._changed_at:
                self._changed_at = changed_at
                self._mood = Mood(**json.loads(self._path.read_text()))
        return self._mood


class Application:
    """`await application(message)`: the handler of a member in this process. `call` does the same for a command."""

    def __init__(self, ledger: Path, mood: Path) -> None:
        self._ledger = Ledger(ledger)
        self._mood = MoodFile(mood)

    async def __call__(self, message: Message) -> Verdict | None:
        assert message.key is not None
        assert message.publisher is not None
        assert message.seq is not None
        name = (
            position_in(message.data),
            key_number(message.key),
            message.seq,
            publisher_number(message.publisher),
            message.queue,
        )
        return await self.call(name, redelivered=message.redelivered, attempt=message.attempt)

    async def call(
        self, name: tuple[int, int, int, int, int], *, redelivered: bool, attempt: int
    ) -> Verdict | None:
        ledger = self._ledger
        ledger.write(Kind.ENTERED, name, redelivered, attempt)
        mood = self._mood.now()
        verdict, kind = None, Kind.ACKED
        if not mood.is_calm or not name[0] % 100:
            try:
                verdict = await self._moody(mood, name[0], attempt)
            except asyncio.CancelledError:
                ledger.write(Kind.ABORTED, name, redelivered, attempt)
                raise
            if verdict is not None:
                kind = Kind.DROPPED if verdict.kind == "drop" else Kind.RETRIED
        ledger.write(kind, name, redelivered, attempt)
        return verdict

    async def _moody(self, mood: Mood, position: int, attempt: int) -> Verdict | None:
        share = position * 7919 % 100
        if mood.slow_s or not position % 100:
            await asyncio.sleep(mood.slow_s or OFTEN_WAITS_S)
        while mood.stalls and self._mood.now().stalls:  # noqa: ASYNC110 (another process ends it)
            await asyncio.sleep(LOOK_EVERY_S)
        if share < mood.hangs and attempt == 1:
            await asyncio.Event().wait()
        if share < mood.fails and attempt <= 2:
            return retry("not now", after_s=0.05 if share % 2 else None)
        if share < mood.drops:
            return drop("not wanted")
        return None
