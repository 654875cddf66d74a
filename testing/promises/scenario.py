"""One cell, played: a group under load, a planned move, and everything drained."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testing.promises.expectations import KEYS
from testing.promises.judge import Call, Findings, begun_between, by_key, by_process, calls_of, judge
from testing.promises.load import Generator, load_of
from testing.promises.matrix import COUNTED_MODES, HASHES, QUEUES, SLOW, Cell
from testing.promises.processes import Brokers, MemberProcess, PublisherProcess, is_closed_first, lbg
from testing.waiting import whole_lines

REPARTITIONED = "12"
AT_FIRST = {"join": 1, "leave": 2, "scale": 1, "rolling": 2, "repartition": 2}
"""Members before the move."""

WORKS_WITHIN_S = 60.0
"""For a member that joined to have its first call. The rebalance delay is 5 s; a handoff may be put off a few times."""

RESTARTED_WITHIN_S = 10.0
"""For a member that was restarted to work again, before the next is restarted: as a rollout waits for readiness, and
no longer."""

STILL_S = 15.0
"""Nothing of what is missing was worked on for so long, and a few handler times: it is lost."""

UNDER_LOAD_S = 1.0
AFTER_S = 2.0
POLL_S = 0.2


@dataclass
class Played:
    """Result of a cell. `problems`: moves that did not complete, and processes that failed. `moved_s`: from the
    beginning of the move to its end, as the applications saw it. `notes`: the product's log, for a reader."""

    findings: Findings
    problems: tuple[str, ...]
    moved_s: float
    notes: tuple[str, ...] = ()


@dataclass
class Scenario:
    cell: Cell
    brokers: Brokers
    directory: Path
    broker: str = ""
    management: str = ""
    group: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    lives: list[MemberProcess] = field(default_factory=list)
    present: list[MemberProcess] = field(default_factory=list)
    moved_s: float = 0.0

    async def play(self) -> Played:
        """Raises RuntimeError when the group cannot be made, and what the broker's start raises."""
        self.directory.mkdir(parents=True)
        self.group = self.brokers.group()
        async with self.brokers.of(self.cell, self.directory) as (self.broker, self.management):
            await self._create_group()
            load = load_of(self.cell)
            generator = Generator(load)
            publisher = PublisherProcess(self.broker, self.group, generator, self.directory)
            try:
                await publisher.start(load.rate)
                await asyncio.gather(
                    *(self._start(f"m{number}") for number in range(AT_FIRST[self.cell.move]))
                )
                await self._work(self.present, WORKS_WITHIN_S)
                await asyncio.sleep(UNDER_LOAD_S)
                await self._queues_leave()
                began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                await getattr(self, f"_{self.cell.move}")()
                self.moved_s = (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began_ns) / 1e9
                await asyncio.sleep(AFTER_S)
                if not begun_between(self._calls(), began_ns, time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
                    self.problems.append(
                        "no call began while it moved: there was no load, and nothing is proven"
                    )
                self._note_problem(await publisher.end(WORKS_WITHIN_S))
                await self._drained(generator)
                for problem in await asyncio.gather(*(member.leave() for member in self.present)):
                    self._note_problem(problem)
            finally:
                await publisher.kill()
                await asyncio.gather(*(member.kill() for member in self.lives))
            if self.cell.engine == "rabbitmq":
                await lbg(
                    self.directory,
                    "group",
                    "delete",
                    self.group,
                    "--force",
                    "--yes",
                    "--no-user",
                    *self._where,
                )
        for log in sorted(self.directory.glob("*.log")):
            if "Traceback" in log.read_text(errors="replace"):
                self.problems.append(f"{log.name} has a traceback")
        findings = judge(
            generator.sent, self._calls(), lane=by_process if is_closed_first(self.cell) else by_key
        )
        return Played(findings, tuple(self.problems), self.moved_s, tuple(self.notes))

    # The planned moves

    async def _join(self) -> None:
        await self._work([await self._start("joiner")], WORKS_WITHIN_S)
        await self._queues_leave()

    async def _leave(self) -> None:
        await self._go([self.present[-1]])

    async def _scale(self) -> None:
        joiners = await asyncio.gather(*(self._start(f"joiner-{number}") for number in range(3)))
        await self._work(joiners, WORKS_WITHIN_S)
        await self._queues_leave()
        await asyncio.sleep(UNDER_LOAD_S)
        await self._go(joiners)

    async def _rolling(self) -> None:
        for member in list(self.present):
            self._note_problem(await member.leave())
            self.present.remove(member)
            await self._work([await self._start(member.name)], RESTARTED_WITHIN_S, must=False)

    async def _repartition(self) -> None:
        words = ("group", "repartition", self.group, "--queues", REPARTITIONED, "--timeout", "90")
        status, output = await lbg(self.directory, *words, *self._where, within_s=200)
        if status != 0:
            self.problems.append(f"repartition ended with {status}: {' '.join(output.split())[-300:]}")
        await self._work(self.present, WORKS_WITHIN_S, since=self._called())

    # Inside

    @property
    def _where(self) -> tuple[str, ...]:
        return ("--broker", self.broker, "--management", self.management)

    async def _create_group(self) -> None:
        counts = ("--queue-count", str(QUEUES)) if self.cell.mode in COUNTED_MODES else ()
        words = (
            "group",
            "create",
            self.group,
            *(("--assignment",) if self.cell.is_by_load else ("--mode",)),
            self.cell.mode,
            "--hash-count",
            str(HASHES),
            *counts,
        )
        status, output = await lbg(self.directory, *words, "--no-user", *self._where)
        if status != 0:
            raise RuntimeError(f"{self.cell}: the group was not created: {output}")

    async def _start(self, name: str) -> MemberProcess:
        life = sum(member.name == name for member in self.lives)
        member = MemberProcess(self.cell, self.broker, self.group, name, life, self.directory)
        self.lives.append(member)
        self.present.append(member)
        await member.start()
        return member

    async def _go(self, members: Sequence[MemberProcess]) -> None:
        """For good, all at once. In mode Sessions theirs are closed first, and they end when these are over."""
        for member in members:
            self.present.remove(member)
            if is_closed_first(self.cell):
                words = ("group", "close", self.group, "--session", member.name)
                status, output = await lbg(self.directory, *words, *self._where)
                if status != 0:
                    self.problems.append(f"close ended with {status}: {' '.join(output.split())[-300:]}")
        for problem in await asyncio.gather(*(self._gone(member) for member in members)):
            self._note_problem(problem)

    async def _gone(self, member: MemberProcess) -> str | None:
        if is_closed_first(self.cell) and not await member.session_over(WORKS_WITHIN_S):
            self.problems.append(f"the session of {member.life} was not over {WORKS_WITHIN_S:g} s later")
        return await member.leave()

    async def _work(
        self,
        members: list[MemberProcess],
        within_s: float,
        *,
        must: bool = True,
        since: dict[str, int] | None = None,
    ) -> None:
        """Until the application of each of them has been called (since it had so many lines)."""
        until = time.monotonic() + within_s
        since = since or {}
        idle = members
        while idle and time.monotonic() < until:
            await asyncio.sleep(POLL_S)
            idle = [member for member in idle if _size(member.lines) <= since.get(member.life, 0)]
            ended = [member for member in idle if member.member.has_ended]
            if ended:
                break
        if idle and must:
            names = ", ".join(member.life for member in idle)
            self.problems.append(f"{names} had no call within {within_s:g} s")
            _, shown = await lbg(self.directory, "group", "show", self.group, *self._where)
            self.notes.append(shown)

    async def _queues_leave(self) -> None:
        """Until the slow member has been called for fewer keys than are its share, where queues move by load."""
        if not self.cell.is_by_load or len(self.present) == 1:
            return
        share = KEYS // len(self.present)
        window_s = 2.0 + KEYS / 2 * self.cell.time_of(SLOW) / 1000
        until = time.monotonic() + window_s + WORKS_WITHIN_S
        await asyncio.sleep(window_s)
        while True:
            since_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - int(window_s * 1e9)
            calls = [
                one
                for one in self._calls()
                if one.process.startswith(f"{SLOW}.") and one.start_ns >= since_ns
            ]
            if len({one.key for one in calls}) < share:
                return
            if time.monotonic() > until:
                self.problems.append(f"no queue left {SLOW} within {WORKS_WITHIN_S:g} s")
                return
            await asyncio.sleep(POLL_S)

    def _called(self) -> dict[str, int]:
        return {member.life: _size(member.lines) for member in self.present}

    async def _drained(self, generator: Generator) -> None:
        """Until every message has been worked on, or nothing is worked on any more; the judge says what is lost."""
        still_s = STILL_S + 4 * self.cell.time_ms / 1000
        changed_at = time.monotonic()
        before = -1
        while time.monotonic() - changed_at < still_s:
            finished = {call.number for call in self._calls() if call.finished}
            if len(finished) >= len(generator.sent):
                break
            if len(finished) != before:
                before, changed_at = len(finished), time.monotonic()
            await asyncio.sleep(max(POLL_S, len(finished) / 10_000))
        await asyncio.sleep(POLL_S)

    def _calls(self) -> list[Call]:
        return [call for one in self.lives for call in calls_of(one.life, whole_lines(one.lines))]

    def _note_problem(self, problem: str | None) -> None:
        if problem is not None:
            self.problems.append(problem)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
