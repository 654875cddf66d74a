"""A handler may fork: neither its children nor those of a process pool are members, or hold what a member needs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lbg_core.publisher import GroupPublisher
from testing import ROOT
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.member.group_load import group_spec
from testing.member.place import Place
from testing.sidecar.forking_member import EXIT_STATUS, FORKS_EVERY, WORKERS
from testing.waiting import until, whole_lines

pytestmark = [pytest.mark.process, pytest.mark.timeout(200)]

MESSAGES, KEYS = 100, 10


@pytest.fixture
async def place(tmp_path: Path, unique: str) -> AsyncIterator[Place]:
    """A broker of its own: its connections are those of the member."""
    with EmbeddedBroker(tmp_path / "data") as broker:
        spec = group_spec(unique)
        await declare_group(broker.url, spec)
        yield Place("embedded", broker.url, spec)


async def publish(place: Place, begin: int) -> None:
    async with GroupPublisher(place.url, group=place.spec.name) as publisher:
        for number in range(begin, begin + MESSAGES):
            await publisher.publish(key=f"k{number % KEYS}", body=b"%d" % number)


@asynccontextmanager
async def running(told: dict[str, Any]) -> AsyncIterator[asyncio.subprocess.Process]:
    """With its log in a file: its children have standard error too, and may outlive it."""
    command = (sys.executable, "-m", "testing.sidecar.forking_member")
    log = os.open(told["calls"] + ".log", os.O_WRONLY | os.O_CREAT, 0o600)
    process = await asyncio.create_subprocess_exec(
        *command, json.dumps(told), cwd=ROOT, stderr=log, start_new_session=True
    )
    os.close(log)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its children: it leads a session of its own
        await process.wait()


class Calls:
    """Those that the application noted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()

    def lines(self, first: str) -> list[list[str]]:
        return [words for line in whole_lines(self.path) if (words := line.split())[0] == first]

    def ended(self) -> Counter[int]:
        lines = (line.split() for line in whole_lines(self.path))
        return Counter(int(words[3]) for words in lines if words[1] == "end")

    def overlaps(self) -> list[str]:
        """Calls that began while another of their key was under way, or made by another process than the first."""
        running: dict[str, str] = {}
        found = []
        lines = [line.split() for line in whole_lines(self.path)]
        for process, what, *rest in (words for words in lines if words[0] != "child"):
            key, number = rest
            if process != lines[0][0] or (what == "begin" and key in running):
                found.append(" ".join((process, what, *rest)))
            running[key] = number
            if what == "end":
                del running[key]
        return found


STATUSES = {
    ("coroutine", "exit"): EXIT_STATUS,
    ("coroutine", "_exit"): EXIT_STATUS,
    ("coroutine", "returns"): 1,
    ("nested", "exit"): EXIT_STATUS,
    ("nested", "returns"): 1,
    ("threads", "exit"): EXIT_STATUS,
    ("threads", "returns"): 1,
    ("inbox", "exit"): EXIT_STATUS,
    ("inbox", "returns"): 1,
}


@pytest.mark.parametrize(
    ("handler", "child"),
    [pytest.param(*one, marks=() if one[1] == "exit" else pytest.mark.slow) for one in STATUSES],
)
async def test_a_child_that_a_handler_forked_is_no_second_member(
    handler: str, child: str, place: Place, tmp_path: Path
) -> None:
    calls = Calls(tmp_path / "calls")
    # A member that gets no processor for longer than a heartbeat aborts its calls, which may repeat them.
    broker = f"{place.url}?heartbeat=0"
    settings = place.told(name="m", broker=broker, commits=str(tmp_path / "commits"))
    told = {"settings": settings, "calls": str(calls.path), "handler": handler, "child": child}
    await publish(place, 0)
    async with running(told) as process:
        await until(lambda: len(calls.ended()) >= MESSAGES)
        await publish(place, MESSAGES)
        await until(lambda: len(calls.ended()) >= 2 * MESSAGES)
        process.terminate()
        assert await process.wait() == 128 + signal.SIGTERM
    assert calls.ended() == Counter(range(2 * MESSAGES))
    assert calls.overlaps() == []
    statuses = Counter(int(status) for _, status in calls.lines("child"))
    assert statuses == {STATUSES[handler, child]: 2 * MESSAGES // FORKS_EVERY}
    for queue in range(place.spec.queue_count):
        assert await place.count(place.names.queue(queue)) == 0


def children_of(process: int) -> Iterator[int]:
    """Children of its main thread."""
    return map(int, Path(f"/proc/{process}/task/{process}/children").read_text().split())


@pytest.fixture
def orphans() -> Iterator[set[int]]:
    found: set[int] = set()
    yield found
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


async def test_a_killed_member_with_a_process_pool_starts_again_at_once_under_its_name(
    place: Place, tmp_path: Path, orphans: set[int]
) -> None:
    calls = Calls(tmp_path / "calls")
    settings = place.told(name="m", commits=str(tmp_path / "commits"), journal=str(tmp_path / "journal"))
    told = {"settings": settings, "calls": str(calls.path), "handler": "pool"}
    await publish(place, 0)
    async with running(told) as process:
        await until(lambda: len(calls.ended()) >= MESSAGES // 2)
        orphans.update(children_of(process.pid))
        assert len(orphans) == WORKERS
        os.kill(min(orphans), signal.SIGTERM)  # of the worker alone
        await until(lambda: len(calls.ended()) >= MESSAGES)
        process.kill()
        await process.wait()
        await publish(place, MESSAGES)
        async with running({**told, "calls": str(tmp_path / "again")}) as second:
            again = Calls(tmp_path / "again")
            await until(lambda: {*calls.ended(), *again.ended()} == {*range(2 * MESSAGES)})
            second.terminate()
            assert await second.wait() == 128 + signal.SIGTERM
        for worker in orphans:
            os.kill(worker, 0)  # it lives
