"""Runs the demo: plays its script with real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from lbg_broker.admin.snapshot import QueueStatus
from lbg_broker.client import BrokerAddress
from lbg_broker.group import Names, is_native
from lbgroup.commands import CliError
from lbgroup.demo.model import DemoModel
from lbgroup.demo.observer import BrokerObserver, keep_looking
from lbgroup.demo.processes import DemoBroker, MemberProcesses, ProcessGroup, start_broker
from lbgroup.demo.report import demo_report
from lbgroup.demo.script import FIRST_MEMBERS, MEMBERS, SCRIPT, Act, Pacing, script_of
from lbgroup.demo.settings import DemoSettings
from lbgroup.options import tls_arguments

START_TIMEOUT_S = 20.0
# The broker settles a group of four in well under this after a join or a leave.
SETTLE_TIMEOUT_S = 15.0
FRAMES_PER_S = 8


class View(Protocol):
    """View that shows the demo while it runs."""

    def show(self, scene: DemoModel) -> None: ...


class DemoRun:
    """One performance."""

    def __init__(self, settings: DemoSettings, view: View) -> None:
        self.settings = settings
        self.scene = DemoModel.of(
            settings.title("…"),
            rows=settings.rows,
            queues=settings.rows_shown,
            members=MEMBERS,
            acts=len(SCRIPT),
            mode=settings.mode,
        )
        self._script = SCRIPT
        self._view = view
        self._began_at_s = time.monotonic()
        self._names = Names(settings.group)
        self._environment: dict[str, str] = {}
        self._validated: Mapping[str, Any] | None = None
        self._listening = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> dict[str, Any]:
        """Play it and return the report; raises CliError when a process ends that should not."""
        settings = self.settings
        async with ProcessGroup(settings.directory) as brokers:
            address = settings.address or await start_broker(brokers, settings.directory / "broker")
            note = partial(self.scene.note, "life")
            async with (
                DemoBroker(address, settings.spec, settings.address is None, note) as self._stage,
                ProcessGroup(settings.directory) as self._children,
            ):
                self.scene.title = settings.title(self._stage.where)
                # In the environment and not on the command line, where every process list would show passwords.
                self._environment = {"LBG_BROKER": ",".join(self._stage.urls)}
                engine = self._stage.engine
                assert engine is not None
                self._is_native = is_native(settings.spec, engine)
                self._script = script_of(settings.mode, is_native=self._is_native)
                self._members = self._troupe_of(address)
                watching = BrokerObserver(
                    address.places(),
                    self._names,
                    on_message=self._hear,
                    on_ready=self._count,
                    queue_count=0 if self._is_native else settings.queue_count,
                )
                async with watching, self._surveyed(address), self._shown():
                    self._check_broker = brokers.check
                    await self._raise_curtain()
                    await self._play()
                    return await self._end()

    async def _raise_curtain(self) -> None:
        """The validator listens and the first members have settled before the first message."""
        self._validator = await self._children.start(
            "validator",
            *("validate", "--json", "--no-shards", *self._common, "--expect", str(self._published_file)),
            environment={"LBG_BROKER": ",".join(self._stage.address.urls)},
            on_line=self._validated_line,
        )
        await self._until(self._listening.is_set, "the validator to listen")
        self._begin_clock()
        self.scene.begins(self._script[0])
        for name in FIRST_MEMBERS:
            await self._members.start(name)
        await self._until(self._is_settled, "the first members to share the queues", SETTLE_TIMEOUT_S)
        rate = ("--rate", f"{self.settings.rate:g}") if self.settings.rate else ()
        journal = self.settings.journal
        self._publisher = await self._children.start(
            "publisher",
            *(
                "publish",
                *self._common,
                "--key",
                self.settings.key,
                "--report",
                str(self._published_file),
                *rate,
                *(("--journal", str(journal)) if journal else ()),
            ),
            str(self.settings.source),
            environment=self._environment,
        )
        self.scene.note("life", "the publisher starts")

    def _begin_clock(self) -> None:
        self._began_at_s = time.monotonic()
        self.scene.started_at_us = time.time_ns() // 1000
        self.scene.now_s = 0.0

    async def _play(self) -> None:
        """Act after act, until all were played and everything published was judged."""
        pacing = Pacing(self._script[1:], self.settings.act_gap_s)
        while not (pacing.is_over and not self._tasks and self._validated is not None):
            self._check()
            for task in [task for task in self._tasks if task.done()]:
                self._tasks.discard(task)
                task.result()
            share = 1.0 if self._validated is not None else self.scene.share
            if not self._tasks and (act := pacing.due(share, self.scene.now_s)) is not None:
                self._tasks.add(asyncio.ensure_future(self._perform(act)))
            await asyncio.sleep(1 / FRAMES_PER_S)

    async def _perform(self, act: Act) -> None:
        self.scene.begins(act)
        for step in act.steps:
            await self._members.perform(step)

    async def _end(self) -> dict[str, Any]:
        seconds = self.scene.now_s
        await self._publisher.process.wait()
        await self._members.leave()
        assert self._validated is not None
        return demo_report(
            validated=self._validated,
            published=json.loads(self._published_file.read_text()),
            kills=self.scene.kills,
            source={
                "engine": self._stage.where,
                "input": str(self.settings.source),
                "key": self.settings.key,
                "rate": self.settings.rate,
            },
            seconds=seconds,
        )

    @property
    def _common(self) -> list[str]:
        return ["--group", self.settings.group, *tls_arguments(self._stage.address)]

    @property
    def _published_file(self) -> Path:
        return self.settings.directory / "published.json"

    def _troupe_of(self, address: BrokerAddress) -> MemberProcesses:
        admin = {
            "LBG_BROKER": ",".join(address.urls),
            "LBG_MANAGEMENT": ",".join(address.management_urls or ()),
        }
        return MemberProcesses(
            self.settings,
            self.scene,
            self._children,
            common=self._common,
            login=self._environment,
            admin=admin,
            until=self._until,
        )

    @contextlib.asynccontextmanager
    async def _surveyed(self, address: BrokerAddress) -> Any:
        if not self._is_native:
            yield
            return
        looking = asyncio.ensure_future(keep_looking(address, self.settings.group, self._see))
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    def _see(self, seen: QueueStatus) -> None:
        self._tell_time()
        self.scene.shares(seen)

    def _hear(self, message: Mapping[str, Any]) -> None:
        self._tell_time()
        self.scene.hears(message)

    def _count(self, queue: int, ready: int | None) -> None:
        self._tell_time()
        self.scene.queues[queue].ready = ready
        if queue == self.settings.queue_count - 1:
            self.scene.counts_published()

    def _validated_line(self, line: str) -> None:
        event = json.loads(line)
        self._tell_time()
        if event["event"] == "listening":
            self._listening.set()
        elif event["event"] == "report":
            # A loss is told by the report; the validator's own exit status must not end the demo before it.
            self._validator.is_expected_to_end = True
            self._validated = event
        else:
            self.scene.validated(event)

    def _is_settled(self) -> bool:
        """True if the members agree on who they are: each queue is called its own by one of them.

        Who is active nobody can know yet: the broker does not tell a consumer before its first message.
        """
        if not self.scene.has_rows:
            return True
        first = [self.scene.members[name] for name in FIRST_MEMBERS]
        cells = [cell for member in first for cell in member.cells.values()]
        primaries = sum(cell.role == "primary" for cell in cells)
        return primaries == len(self.scene.queues) and all(member.rebalance == "Ready" for member in first)

    async def _until(self, condition: Any, what: str, timeout_s: float = START_TIMEOUT_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            self._check()
            if time.monotonic() > deadline_s:
                raise CliError(f"waited {timeout_s:g} s in vain for {what}")
            await asyncio.sleep(0.05)

    def _check(self) -> None:
        self._check_broker()
        self._children.check()

    def _tell_time(self) -> None:
        self.scene.now_s = time.monotonic() - self._began_at_s

    @contextlib.asynccontextmanager
    async def _shown(self) -> Any:
        async def keep_showing() -> None:
            while True:
                self._tell_time()
                self._view.show(self.scene)
                await asyncio.sleep(1 / FRAMES_PER_S)

        showing = asyncio.ensure_future(keep_showing())
        try:
            yield
        finally:
            showing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await showing
