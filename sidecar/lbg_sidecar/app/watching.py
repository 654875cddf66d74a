"""Probes the application, and tells the member when it becomes ready and when it no longer is."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from urllib.parse import quote

from .channel import Calls
from .knowledge import parse_told
from .probing import Health, HealthRules
from .requesting import Requester, Unreachable
from .targets import Target

PROBE_REPLY_MAX_BYTES = 64 * 1024
POSITIONS_MAX_BYTES = 64 * 1024 * 1024
"""65,536 streams with a few dozen runs each."""
POSITIONS_TIMEOUT_S = 30.0


class HealthWatch:
    """The loop around `Health`. Before it says ready, the positions are asked for: else repeats would slip through."""

    def __init__(self, rules: HealthRules, target: Target, requester: Requester, calls: Calls) -> None:
        self._rules = rules
        self._target = target
        self._requester = requester
        self._calls = calls
        self._health = Health(rules)
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def start(self) -> None:
        self._calls.ready(False, self._health.why)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def ask_again(self) -> None:
        """For the positions, as when it starts."""
        self._health = Health(self._rules)
        self._calls.ready(False, self._health.why)
        self._hurry.set()

    def answered(self) -> None:
        self._health.answered()

    def unreachable(self, why: str) -> None:
        self._hurry.set()
        if self._health.failed(why, asyncio.get_running_loop().time()):
            self._calls.ready(False, why)

    def describe(self) -> dict[str, object]:
        return {"healthy": self._health.is_up, "unhealthy_why": self._health.why}

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._hurry.clear()
            began_at = loop.time()
            await self._look()
            wait_s = began_at + self._rules.interval_s - loop.time()
            with suppress(TimeoutError):
                if self._health.is_up:  # a refused call asks for a probe at once; a sick one keeps its rhythm
                    async with asyncio.timeout(max(wait_s, 0.0)):
                        await self._hurry.wait()
                else:
                    await asyncio.sleep(max(wait_s, 0.0))

    async def _look(self) -> None:
        now = asyncio.get_running_loop().time
        why = await self._probe()
        if why is None and not self._health.is_up:
            why = await self._learn_positions()
        if why is not None:
            if self._health.failed(why, now()):
                self._calls.ready(False, why)
        elif self._health.succeeded(now()):
            self._calls.ready(True)

    async def _probe(self) -> str | None:
        """None, or why it is not healthy."""
        try:
            async with asyncio.timeout(self._rules.timeout_s):
                if self._rules.path is None:
                    await self._connect()
                    return None
                reply = await self._requester.get(self._rules.path, reply_max_bytes=PROBE_REPLY_MAX_BYTES)
        except TimeoutError:
            return f"no answer within {self._rules.timeout_s:g} s"
        except (Unreachable, OSError) as error:
            return str(error)
        return None if 200 <= reply.status < 300 else f"{self._rules.path} answered {reply.status}"

    async def _connect(self) -> None:
        if self._target.socket is not None:
            _, writer = await asyncio.open_unix_connection(self._target.socket)
        else:
            _, writer = await asyncio.open_connection(*self._target.address)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _learn_positions(self) -> str | None:
        path = self._rules.positions_path
        if path is None:
            return None
        calls = self._calls
        if calls.session is not None:
            path += f"{'&' if '?' in path else '?'}session={quote(calls.session, safe='')}"
        try:
            async with asyncio.timeout(POSITIONS_TIMEOUT_S):
                reply = await self._requester.get(path, reply_max_bytes=POSITIONS_MAX_BYTES)
            if reply.status != 200:
                return f"{path} answered {reply.status}"
            processed, committed = parse_told(json.loads(reply.body))
            calls.processed(processed)
            if committed is not None:
                calls.committed(*committed)
        except TimeoutError:
            return f"{path} did not answer within {POSITIONS_TIMEOUT_S:g} s"
        except (Unreachable, ValueError, RecursionError) as error:
            return f"{path}: {error}"
        return None
