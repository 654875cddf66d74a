"""Runs the demo: plays its script with real processes, and watches the broker meanwhile."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbg_core.admin.groups import close_group
from lbg_core.client import BrokerAddress
from lbg_core.counted_nouns import counted
from lbg_core.group import (
    EXCLUSIVE,
    PARTITIONED,
    SESSIONS,
    UNCOUNTED_MODES,
    GroupSpec,
    is_native,
)
from lbgroup.child_processes import ChildProcess, ProcessGroup
from lbgroup.commands import CliError
from lbgroup.demo.group import DemoGroup, demo_group, start_broker
from lbgroup.demo.model import DemoModel
from lbgroup.demo.report import demo_report
from lbgroup.demo.script import FIRST_MEMBERS, Act, Do, Pacing, Step, script_of
from lbgroup.live_group import observed
from lbgroup.live_map import MemberState
from lbgroup.options import tls_arguments

CONCURRENCY = 16
SESSION_PREFETCH = 64
"""Messages that a session is assigned at a time."""
START_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 15.0
"""The broker settles a group of four in well under this after a join or a leave."""
LEAVE_TIMEOUT_S = 60.0
"""For a member that leaves, or works off its session."""
FRAMES_PER_S = 8

View = Callable[[DemoModel], None]


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """One run. `rate` is messages per second, 0 for as fast as it goes; `act_gap_s`: between two acts at least;
    `work_s` is the processing time of a message; `address` None: an embedded broker of the demo's own; `journal`: a
    directory for the journals of all processes.
    """

    source: Path
    key: str
    rows: int
    rate: float
    directory: Path
    spec: GroupSpec
    rebalance_delay_s: float
    act_gap_s: float
    work_s: float
    address: BrokerAddress | None
    journal: Path | None

    def title(self, where: str) -> str:
        spec, title = (
            self.spec,
            f"{where} · {self.source.name}, {counted(self.rows, 'message')} keyed by {self.key}",
        )
        if spec.mode in UNCOUNTED_MODES:
            return f"{title} · {spec.mode}"
        word = "partitions" if spec.mode == PARTITIONED else "queues"
        counts = f"{spec.queue_count} {word}, {counted(spec.hash_count, 'hash', 'hashes')}"
        return f"{title} · {counts} · rebalance delay {self.rebalance_delay_s:g} s"


async def play(settings: DemoSettings, view: View) -> tuple[DemoModel, dict[str, Any]]:
    """Play it and return the last scene and the report; raises CliError when a process ends that should not."""
    is_own_broker = settings.address is None
    async with ProcessGroup(settings.directory) as brokers:
        address = settings.address or await start_broker(brokers, settings.directory / "broker")
        async with (
            demo_group(address, settings.spec, settings.directory, is_own_broker=is_own_broker) as group,
            ProcessGroup(settings.directory) as children,
        ):
            run = DemoRun(settings, view, address, group, brokers, children)
            scene, spec = run.scene, settings.spec
            follow = observed(
                group.admin, spec, on_message=scene.on_message, on_snapshot=scene.group.on_snapshot
            )
            async with follow:
                return scene, await run.play()


class DemoRun:
    """One performance."""

    def __init__(
        self,
        settings: DemoSettings,
        view: View,
        address: BrokerAddress,
        group: DemoGroup,
        brokers: ProcessGroup,
        children: ProcessGroup,
    ) -> None:
        spec = settings.spec
        title = settings.title(group.where)
        self.scene = DemoModel(title, rows=settings.rows, spec=spec, engine=group.engine)
        if group.warning:
            self.scene.note("life", group.warning)
        self._settings = settings
        self._view = view
        self._group = group
        self._brokers = brokers
        self._children = children
        self._script = script_of(spec.mode, is_native=is_native(spec, group.engine))
        self._common = ["--group", spec.name, *tls_arguments(address)]
        self._journal = ["--journal", str(settings.journal)] if settings.journal is not None else []
        # In the environment and not on the command line, where every process list would show passwords.
        self._admin = {"LBG_BROKER": ",".join(address.urls)}
        self._login = {**self._admin, **group.login}
        self._published_file = settings.directory / "published.json"
        self._members: dict[str, ChildProcess] = {}
        self._listening = asyncio.Event()
        self._validated: Mapping[str, Any] | None = None
        self._began_at_s = time.monotonic()

    async def play(self) -> dict[str, Any]:
        """Act after act, until all were played and all deliveries were checked; returns the report."""
        publisher = await self._raise_curtain()
        scene, pacing = self.scene, Pacing(self._script[1:], self._settings.act_gap_s)
        acting: asyncio.Task[None] | None = None
        while not (pacing.is_over and acting is None and self._validated is not None):
            if acting is not None and acting.done():
                acting.result()
                acting = None
            share = 1.0 if self._validated is not None else scene.share
            if acting is None and (act := pacing.due(share, scene.now_s)) is not None:
                acting = asyncio.ensure_future(self._perform(act))
            await self._frame()
        seconds = scene.now_s
        await self._until(lambda: not publisher.is_running, "the publisher to end")
        for name, child in self._members.items():
            if child.is_running:
                await self._step(Step(Do.LEAVE, name))
        settings = self._settings
        return demo_report(
            validated=self._validated,
            published=json.loads(self._published_file.read_text()),
            kills=scene.kills,
            source={"engine": self._group.where, "input": str(settings.source)}
            | {"key": settings.key, "rate": settings.rate},
            seconds=seconds,
        )

    async def _raise_curtain(self) -> ChildProcess:
        """The validator listens and the first members have settled before the publisher starts."""
        expected = ("--expect", str(self._published_file))
        self._validator = await self._children.start(
            "validator",
            *("validate", "--json", "--no-shards", *self._common, *expected),
            environment=self._admin,
            on_line=self._on_validated,
        )
        await self._until(self._listening.is_set, "the validator to listen")
        self._began_at_s = time.monotonic()
        self.scene.started_at_us = time.time_ns() // 1000
        self._tick()
        self.scene.begins(self._script[0])
        for name in FIRST_MEMBERS:
            await self._start(name)
        await self._until(
            lambda: self.scene.description.is_settled,
            "the first members to share the queues",
            SETTLE_TIMEOUT_S,
        )
        settings = self._settings
        rate = ("--rate", f"{settings.rate:g}") if settings.rate else ()
        options = ("--key", settings.key, "--report", str(self._published_file), *rate, *self._journal)
        publisher = await self._children.start(
            "publisher",
            *("publish", *self._common, *options, str(settings.source)),
            environment=self._login,
        )
        self.scene.note("life", "the publisher starts")
        return publisher

    # Members

    async def _perform(self, act: Act) -> None:
        self.scene.begins(act)
        for step in act.steps:
            await self._step(step)

    async def _step(self, step: Step) -> None:
        name = step.member
        match step.do:
            case Do.START:
                await self._start(name)
            case Do.KILL:
                at_us = time.time_ns() // 1000
                self._members[name].signal(signal.SIGKILL)
                self.scene.on_process_state(name, MemberState.KILLED, at_us=at_us)
            case Do.LEAVE:
                self.scene.on_process_state(name, MemberState.LEAVING)
                self._members[name].signal(signal.SIGTERM)
                await self._exited(name)
            case Do.CLOSE:
                self.scene.on_process_state(name, MemberState.LEAVING, text="is assigned nothing more")
                await close_group(self._group.admin, self._settings.spec.name, session=name)
                await self._exited(name)

    async def _start(self, name: str) -> None:
        """Returns when it is a member."""
        settings = self._settings
        self.scene.on_process_state(name, MemberState.STARTING)
        options = ["--concurrency", str(CONCURRENCY), "--work", f"{settings.work_s:g}", *self._journal]
        if settings.spec.mode == EXCLUSIVE:
            options += ["--rebalance-delay", f"{settings.rebalance_delay_s:g}"]
        if settings.spec.mode == SESSIONS:
            options += ["--commits", str(settings.directory / "commits"), "--prefetch", str(SESSION_PREFETCH)]
        self._members[name] = await self._children.start(
            name,
            *("consume", *self._common, "--name", name, "--republish", "--quiet", *options),
            environment=self._login,
        )
        await self._until(lambda: self.scene.states[name] is MemberState.LIVE, f"{name} to join")

    async def _exited(self, name: str) -> None:
        process = self._members[name].process
        await self._until(lambda: process.returncode is not None, f"{name} to leave", LEAVE_TIMEOUT_S)
        self.scene.on_process_state(name, MemberState.FAILED if process.returncode else MemberState.LEFT)

    def _on_validated(self, line: str) -> None:
        event = json.loads(line)
        self._tick()
        if event["event"] == "listening":
            self._listening.set()
        elif event["event"] == "report":
            # The report tells of a loss; the validator's own exit status must not end the demo before it.
            self._validator.is_expected_to_end = True
            self._validated = event
        else:
            self.scene.validated(event)

    async def _until(
        self, condition: Callable[[], bool], goal: str, timeout_s: float = START_TIMEOUT_S
    ) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline_s:
                raise CliError(f"waited {timeout_s:g} s in vain for {goal}")
            await self._frame()

    async def _frame(self) -> None:
        """The time of one frame; raises what the view raises, and CliError for a process that failed."""
        self._brokers.check()
        self._children.check()
        self._tick()
        self._view(self.scene)
        await asyncio.sleep(1 / FRAMES_PER_S)

    def _tick(self) -> None:
        self.scene.now_s = time.monotonic() - self._began_at_s
