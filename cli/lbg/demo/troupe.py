"""The demo's members as processes: how each comes on and goes off."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from lbg.demo.cast import Life
from lbg.demo.children import Child, Children
from lbg.demo.scene import Scene
from lbg.demo.script import Do, Step
from lbg.demo.settings import DemoSettings
from lbg.failing import Failure
from lbg_broker.group import EXCLUSIVE, SESSIONS

LEAVE_TIMEOUT_S = 30.0
CLOSE_TIMEOUT_S = 60.0

Until = Callable[[Callable[[], bool], str], Coroutine[Any, Any, None]]


class Troupe:
    """`common` are arguments of every command, `login` the environment of members, `admin` that of who may close a
    session; `until` waits for a condition."""

    def __init__(
        self,
        settings: DemoSettings,
        scene: Scene,
        children: Children,
        *,
        common: list[str],
        login: Mapping[str, str],
        admin: Mapping[str, str],
        until: Until,
    ) -> None:
        self._settings = settings
        self._scene = scene
        self._children = children
        self._common = common
        self._login = login
        self._admin = admin
        self._until = until
        self._members: dict[str, Child] = {}

    async def perform(self, step: Step) -> None:
        name = step.member
        match step.do:
            case Do.START:
                await self.start(name)
            case Do.KILL:
                child = self._members[name]
                child.is_expected_to_end = True
                at_us = time.time_ns() // 1000
                child.signal(signal.SIGKILL)
                self._scene.lives(name, Life.KILLED, at_us=at_us)
            case Do.LEAVE:
                self._scene.lives(name, Life.LEAVING)
                self._members[name].signal(signal.SIGTERM)
                await self._gone(name, LEAVE_TIMEOUT_S)
            case Do.CLOSE:
                await self._close_session(name)
                await self._gone(name, CLOSE_TIMEOUT_S)

    async def start(self, name: str) -> None:
        """Returns when it is a member."""
        settings = self._settings
        self._scene.lives(name, Life.STARTING)
        options = ["--concurrency", str(settings.concurrency), "--work", f"{settings.work_s:g}"]
        if settings.mode == EXCLUSIVE:
            options += ["--rebalance-delay", f"{settings.rebalance_delay_s:g}"]
        if settings.mode == SESSIONS:
            options += [
                "--commits",
                str(settings.directory / "commits"),
                "--prefetch",
                str(settings.session_prefetch),
            ]
        if settings.journal is not None:
            options += ["--journal", str(settings.journal)]
        self._members[name] = await self._children.start(
            name,
            *("consume", *self._common, "--name", name, "--republish", "--quiet", *options),
            environment=self._login,
        )
        await self._until(lambda: self._scene.members[name].life is Life.LIVE, f"{name} to join")

    async def leave(self) -> None:
        """All that are still there."""
        for name, child in self._members.items():
            if child.is_running:
                await self.perform(Step(Do.LEAVE, name))

    async def _close_session(self, name: str) -> None:
        self._scene.lives(name, Life.LEAVING, why="is given nothing more")
        closing = await self._children.start(
            f"close-{name}",
            *("group", "close", *self._common[1:], "--session", name),
            environment=self._admin,
        )
        await closing.process.wait()

    async def _gone(self, name: str, within_s: float) -> None:
        child = self._members[name]
        try:
            async with asyncio.timeout(within_s):
                status = await child.process.wait()
        except TimeoutError:
            raise Failure(f"{name} did not leave within {within_s:g} s: {child.last_words()}") from None
        self._scene.lives(name, Life.LEFT if status == 0 else Life.FAILED)
