"""Health of the application: probes, and one decision from all that is seen of it."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

from lbg_sidecar.app.channel import Calls, parse_reported
from lbg_sidecar.app.http_client import HttpClient, Target, Unreachable


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """Rules of probing an application.

    - `path`: what to GET, 2xx being healthy; None: that the port can be connected to is enough.
    - `interval_s`, `timeout_s`: 1 s each notices a dead application before a handoff would end.
    - `down_after`: failures in a row that make it unhealthy; refused calls count as well, so that under load a crash is
      noticed at once. 3 outlasts a single lost probe.
    - `up_after`: successful probes in a row that make it healthy again.
    - `positions_path`: what to GET before it counts as ready, for the positions it has committed itself; None: nothing.
    """

    path: str | None = None
    interval_s: float = 1.0
    timeout_s: float = 1.0
    down_after: int = 3
    up_after: int = 1
    positions_path: str | None = None


class HealthTracker:
    """Health by probes: down until the first success. `succeeded` returns True if it went up, `failed` if it is down,
    for the reason `why`."""

    def __init__(self, rules: HealthRules) -> None:
        self._rules = rules
        self.is_up = False
        self.why = "not probed yet"
        self._was_up = False
        self._successes = 0
        self._failures = 0

    def succeeded(self) -> bool:
        """A probe was answered."""
        self._failures = 0
        self._successes += 1
        if self.is_up or (self._successes < self._rules.up_after and self._was_up):
            return False
        self.is_up, self.why, self._was_up = True, "", True
        return True

    def failed(self, why: str) -> bool:
        """A probe failed, or a call could not connect."""
        self._successes = 0
        self._failures += 1
        if not self.is_up:
            self.why = why
            return True
        if self._failures < self._rules.down_after:
            return False
        self.is_up, self.why = False, why
        return True

    def answered(self) -> None:
        """A call reached the application. That ends a row of failures; it does not make a sick one healthy."""
        if self.is_up:
            self._failures = 0


PROBE_REPLY_MAX_BYTES = 64 * 1024
POSITIONS_MAX_BYTES = 64 * 1024 * 1024
"""65,536 streams with a few dozen runs each."""
POSITIONS_TIMEOUT_S = 30.0


class HealthProbe:
    """The loop around `HealthTracker`. Before it reports ready, it requests the positions: else repeats would
    reach the application."""

    def __init__(self, rules: HealthRules, target: Target, client: HttpClient) -> None:
        self._rules = rules
        self._target = target
        self._client = client
        self._calls: Calls
        self._health = HealthTracker(rules)
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()

    def start(self, calls: Calls) -> None:
        self._calls = calls
        calls.ready(False, self._health.why)
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def request_position(self) -> None:
        """For the positions, as when it starts."""
        if self._task is not None:
            self._health = HealthTracker(self._rules)
            self._calls.ready(False, self._health.why)
            self._hurry.set()

    def answered(self) -> None:
        self._health.answered()

    def unreachable(self, why: str) -> None:
        """A call has no reply. In a session it may be committed all the same, so the position is requested."""
        if self._rules.positions_path is not None and self._calls.session is not None:
            self.request_position()
        self._hurry.set()
        if self._health.failed(f"{self._target} cannot be reached: {why}"):
            self._calls.ready(False, self._health.why)

    def describe(self) -> dict[str, object]:
        return {"healthy": self._health.is_up, "unhealthy_why": self._health.why}

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._hurry.clear()
            began_at = loop.time()
            await self._check()
            wait_s = began_at + self._rules.interval_s - loop.time()
            with suppress(TimeoutError):
                if self._health.is_up:  # a refused call triggers a probe at once; else one in each interval
                    async with asyncio.timeout(max(wait_s, 0.0)):
                        await self._hurry.wait()
                else:
                    await asyncio.sleep(max(wait_s, 0.0))

    async def _check(self) -> None:
        health = self._health
        why = await self._probe()
        if why is None and not health.is_up:
            why = await self._learn_positions()
        if health is not self._health:
            return  # the position was requested meanwhile: this one may be older
        if why is not None:
            if health.failed(why):
                self._calls.ready(False, why)
        elif health.succeeded():
            self._calls.ready(True)

    async def _probe(self) -> str | None:
        """None, or why it is not healthy."""
        try:
            async with asyncio.timeout(self._rules.timeout_s):
                if self._rules.path is None:
                    await self._client.connect()
                    return None
                reply = await self._client.get(self._rules.path, reply_max_bytes=PROBE_REPLY_MAX_BYTES)
        except TimeoutError:
            return f"{self._target} has no answer within {self._rules.timeout_s:g} s"
        except Unreachable as error:
            return f"{self._target} cannot be reached: {error}"
        return None if reply.is_success else f"{self._rules.path} answered {reply.status}"

    async def _learn_positions(self) -> str | None:
        path = self._rules.positions_path
        if path is None:
            return None
        calls = self._calls
        if calls.session is not None:
            path += f"{'&' if '?' in path else '?'}session={quote(calls.session, safe='')}"
        try:
            async with asyncio.timeout(POSITIONS_TIMEOUT_S):
                reply = await self._client.get(path, reply_max_bytes=POSITIONS_MAX_BYTES)
            if reply.status != 200:
                return f"{path} answered {reply.status}"
            processed, committed = parse_reported(json.loads(reply.body))
            calls.processed(processed)
            if committed is not None:
                calls.committed(*committed)
        except TimeoutError:
            return f"{path} did not answer within {POSITIONS_TIMEOUT_S:g} s"
        except (Unreachable, ValueError, RecursionError) as error:
            return f"{path}: {error}"
        return None
