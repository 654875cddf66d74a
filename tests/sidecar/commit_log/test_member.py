"""A member that dies between the application's ack and the broker's does not call the application for it again."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path

import pytest

from lbg_sidecar import Member, MemberSettings, Message, SettingsError
from testing import ROOT, program
from testing.member.group_load import load_on
from testing.member.place import Place
from testing.waiting import GUARD_S, until

DIES_INSTEAD_OF_ACKING = """
import asyncio, json, os, signal, sys
from pathlib import Path
from lbg_sidecar import Member, MemberSettings
from lbg_sidecar.io.consumers import QueueConsumers

told = json.loads(sys.argv[1])
told["commits"] = told["commits"] and Path(told["commits"])
calls = os.open(told.pop("calls"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
QueueConsumers.perform = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

async def handle(message):
    os.write(calls, f"{message.hash}-{message.seq}\\n".encode())

async def run():
    async with Member(MemberSettings(**told), handle) as member:
        await member.run()

asyncio.run(run())
"""


async def called_by_both(place: Place, tmp_path: Path, commits: Path | None) -> tuple[list[str], list[str]]:
    """Calls of the application before a kill -9 in place of the first ack, and after it."""
    calls = tmp_path / "calls"
    again: list[str] = []

    async def handle(message: Message) -> None:
        again.append(f"{message.hash}-{message.seq}")

    async with load_on(place.url, place.spec.name) as load:
        await load.publish(200)
        told = place.told(name="m", calls=str(calls), commits=commits and str(commits))
        command = program.command(DIES_INSTEAD_OF_ACKING, json.dumps(told))
        dead = await asyncio.to_thread(subprocess.run, command, cwd=ROOT, timeout=GUARD_S, check=False)
        assert dead.returncode == -signal.SIGKILL
        before = calls.read_text().split()
        async with Member(place.settings("m", commits=commits), handle) as member:
            await until(lambda: len({*before, *again}) == 200)
            await until(lambda: member.state()["counts"]["delivered"] == 200)
    return before, again


async def test_what_was_acked_before_a_kill_is_not_called_again(place: Place, tmp_path: Path) -> None:
    before, again = await called_by_both(place, tmp_path, tmp_path / "commits")
    assert before
    assert not {*before} & {*again}
    assert len(before) + len(again) == 200


async def test_without_a_commit_log_it_is(place: Place, tmp_path: Path) -> None:
    before, again = await called_by_both(place, tmp_path, None)
    assert {*before} <= {*again}


def test_a_commit_log_needs_a_name_that_comes_back(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="name is '', but commits need one"):
        MemberSettings(group="g", commits=tmp_path)


LINGERS_AFTER_ITS_COMMIT = """
import asyncio, json, os, sys
from pathlib import Path
from lbg_sidecar import Member, MemberSettings
from lbg_sidecar.io.consumers import QueueConsumers

QueueConsumers.perform = lambda *_: None  # so that the broker gives everything again: the log alone knows better

told = json.loads(sys.argv[1])
told["commits"] = Path(told["commits"])
calls = os.open(told.pop("calls"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

async def handle(message):
    os.write(calls, f"{message.hash}-{message.seq}\\n".encode())
    await asyncio.sleep(0.02)

async def run():
    async with Member(MemberSettings(**told), handle) as member:
        await member.run()

asyncio.run(run())
"""


async def test_each_kill_between_the_applications_commit_and_ours_repeats_what_was_in_hand_and_no_more(
    place: Place, tmp_path: Path
) -> None:
    calls, commits = tmp_path / "calls", tmp_path / "commits"
    concurrency, kills, count = 4, 3, 200
    calls.touch()

    def called() -> list[str]:
        return calls.read_text().split()

    async with load_on(place.url, place.spec.name) as load:
        await load.publish(count)
        told = place.told(name="m", calls=str(calls), commits=str(commits), concurrency=concurrency)
        told["prefetch"] = count
        command = program.command(LINGERS_AFTER_ITS_COMMIT, json.dumps(told))
        for kill in range(1, kills + 1):
            process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
            # A handler that has noted its call lingers: its commit, and not yet ours.
            await until(lambda kill=kill: len(called()) >= kill * count // (kills + 1))
            process.kill()
            await process.wait()
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT)
        await until(lambda: len(set(called())) == count)
        process.kill()
        await process.wait()
    repeats = len(called()) - count
    assert 1 <= repeats <= kills * concurrency
