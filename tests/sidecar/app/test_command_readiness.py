"""Output of a command before its first verdict, and the report of one that ends early."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lbg_sidecar import CommandChannel
from testing.app.application_channel import Offering, offering_to
from testing.app.subjects import COMMAND
from testing.waiting import until

pytestmark = pytest.mark.process


async def test_a_command_may_begin_with_its_positions(tmp_path: Path) -> None:
    source = """print('{"processed": [["p", 5, [[0, 3]]]]}', flush=True)""" + COMMAND
    channel = CommandChannel([sys.executable, "-c", source, str(tmp_path / "log")], concurrency=4)
    async with offering_to(channel, Offering()) as offering:
        offering.offer("a")
        await until(lambda: offering.acked())
        assert offering.streams == [("p", 5, ((0, 3),))]


async def test_a_command_that_crashes_for_longer_than_the_grace_is_not_ready_until_it_stays_up(
    tmp_path: Path,
) -> None:
    cured = tmp_path / "cured"
    source = f"""
import os, sys
if not os.path.exists({str(cured)!r}):
    sys.exit(1)
{COMMAND}"""
    channel = CommandChannel(
        [sys.executable, "-c", source, str(tmp_path / "log")], concurrency=4, down_grace_s=0.2
    )
    async with offering_to(channel, Offering()) as offering:
        offering.offer("a")
        await until(lambda: not offering.is_ready)
        cured.touch()
        await until(lambda: offering.acked())
        assert [is_ready for is_ready, _ in offering.readiness] == [False, True]


async def test_a_command_that_is_killed_for_a_call_or_ends_is_logged_with_its_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed = CommandChannel([sys.executable, "-c", COMMAND, str(tmp_path / "log")], concurrency=4)
    async with offering_to(killed, Offering(call_timeout_s=0.1)) as offering:
        offering.offer("a", b"sleep 60")
        await until(lambda: len(caplog.messages) == 1)
    ending = CommandChannel(["sh", "-c", "read line; exit 3"], concurrency=4)
    async with offering_to(ending, Offering()) as offering:
        offering.offer("a")
        await until(lambda: len(caplog.messages) == 2)
    assert caplog.messages == [
        "the command was killed to abort a call; the command is started again; calls that ended with it: 1",
        "the command ended: exit status 3; the command is started again; calls that ended with it: 1",
    ]
