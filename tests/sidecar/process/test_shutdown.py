"""Shutdown of the real process: by signals and drains, under load, with a successor."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from testing.app.noting_pair import Pair, delivered_again
from testing.app.noting_process import exit_status, until_so
from testing.broker.embedded import EmbeddedBroker, free_port
from testing.command_line import start_lbg
from testing.needs import repeated
from testing.sidecar.load import publish
from testing.sidecar.process import SidecarProcess
from testing.waiting import GUARD_S, until

LOAD = 900
LOAD_PER_S = 450
HANGS = {"LBG_CONCURRENCY": "2", "LBG_SHUTDOWN_GRACE_S": "60"}


@pytest.fixture
async def pairs(broker: EmbeddedBroker, tmp_path: Path) -> AsyncIterator[Callable[..., Pair]]:
    made: list[Pair] = []

    def make(**settings: str | float) -> Pair:
        made.append(Pair(broker.url, tmp_path, **settings))
        return made[-1]

    yield make
    for pair in made:
        pair.end()


async def hanging(pair: Pair) -> set[int]:
    """A's application takes what it can get and never answers; returns what it has."""
    await pair.start()
    pair.apps[0].hang()
    await publish(pair.url, pair.group, 200)
    await until_so(pair.a, lambda: pair.apps[0].notes.size == 2)
    return {note.number for note in pair.apps[0].notes.begun()}


async def judge(pair: Pair, again: set[int], *, count: int) -> None:
    """`again`, and nothing else, came a second time; nothing is lost or out of order."""
    await pair.all_ended(count)
    assert pair.notes.repeated() == again
    assert pair.notes.inversions() == []


@pytest.mark.parametrize("way", ["SIGTERM", "drain"])
async def test_a_planned_leave_under_load_loses_repeats_and_reorders_nothing(
    pairs: Callable[..., Pair], way: str
) -> None:
    pair = pairs(work_s=0.01)
    await pair.start()
    loading = asyncio.create_task(publish(pair.url, pair.group, LOAD, per_s=LOAD_PER_S))
    await until_so(pair.a, lambda: pair.apps[0].notes.size >= 100)
    if way == "drain":
        hook = start_lbg("drain", "--local", f"unix:{pair.a.socket}")
        out, err = await asyncio.to_thread(hook.communicate)
        assert (hook.returncode, out) == (0, "drained: nothing is delivered again\n"), err
        assert pair.a.process.poll() is None
    pair.a.process.send_signal(signal.SIGTERM)
    assert await exit_status(pair.a) == 0
    assert delivered_again(pair.a) == 0
    await loading
    await judge(pair, set(), count=LOAD)
    assert pair.notes.overlaps() == []
    assert pair.apps[1].notes.size > 0


async def test_a_call_longer_than_a_handoff_ends_within_the_grace(pairs: Callable[..., Pair]) -> None:
    pair = pairs(work_s=1.5, LBG_MAX_HANDOFF_S="0.3", LBG_MOVES_AT_ONCE="1")
    await pair.start()
    await publish(pair.url, pair.group, 12)
    await until(lambda: pair.notes.size == 12, every_s=0.05)
    pair.a.process.send_signal(signal.SIGTERM)
    assert await exit_status(pair.a) == 0, pair.a.text
    await judge(pair, set(), count=12)


@pytest.mark.parametrize("channel", ["command", "stream"])
async def test_what_hangs_when_the_grace_is_over_is_what_is_said_to_come_again_and_what_comes_again(
    pairs: Callable[..., Pair], channel: str
) -> None:
    pair = pairs(channel=channel, **{**HANGS, "LBG_SHUTDOWN_GRACE_S": "0.7"})
    held = await hanging(pair)
    pair.a.process.send_signal(signal.SIGTERM)
    assert await exit_status(pair.a) == 1
    assert delivered_again(pair.a) == len(held) == 2
    await judge(pair, held, count=200)


async def test_a_second_sigterm_cuts_off_at_once_and_says_what(pairs: Callable[..., Pair]) -> None:
    """The grace is longer than the test may take."""
    pair = pairs(**HANGS | {"LBG_SHUTDOWN_GRACE_S": "600"})
    held = await hanging(pair)
    pair.a.process.send_signal(signal.SIGTERM)
    await until_so(pair.a, lambda: "leaves" in pair.a.text)
    pair.a.process.send_signal(signal.SIGTERM)
    assert await exit_status(pair.a) == 1
    assert delivered_again(pair.a) == len(held)
    await judge(pair, held, count=200)


async def test_sigterm_while_the_broker_is_away_ends_it_and_what_it_had_is_said_to_come_again(
    pairs: Callable[..., Pair], broker: EmbeddedBroker
) -> None:
    pair = pairs(**HANGS)
    held = await hanging(pair)
    await asyncio.to_thread(broker.kill)
    try:
        await until_so(pair.a, lambda: "not in the group" in pair.a.get("/readyz")[1])
        pair.a.process.send_signal(signal.SIGTERM)
        assert await exit_status(pair.a) == 1
        assert delivered_again(pair.a) == len(held)
    finally:
        await asyncio.to_thread(broker.start)
    await pair.all_ended(200)
    assert held <= pair.notes.repeated(), "what B had at work comes again too"
    assert pair.notes.inversions() == []


async def test_a_sidecar_that_is_killed_under_load_repeats_only_what_was_not_acknowledged(
    pairs: Callable[..., Pair],
) -> None:
    pair = pairs(work_s=0.01)
    await pair.start()
    loading = asyncio.create_task(publish(pair.url, pair.group, LOAD, per_s=LOAD_PER_S))

    def acknowledged() -> set[int]:
        """Calls that ended so long ago that the broker must have their acks."""
        since_ns = time.monotonic_ns() - 1_000_000_000
        notes = pair.apps[0].notes.all()
        return {note.number for note in notes if note.word == "end" and note.at_ns < since_ns}

    await until_so(pair.a, lambda: len(acknowledged()) >= 20)
    before = acknowledged()
    pair.a.process.kill()
    pair.a.process.wait()
    await loading
    await pair.all_ended(LOAD)
    assert not pair.notes.repeated() & before
    assert pair.notes.inversions() == []


@pytest.mark.process
@pytest.mark.parametrize("broker_is", ["down", "silent"])
@pytest.mark.parametrize("number", repeated([signal.SIGTERM, signal.SIGINT]), ids=["SIGTERM", "SIGINT"])
async def test_a_signal_ends_it_before_there_was_ever_a_connection(
    tmp_path: Path, broker_is: str, number: signal.Signals
) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", free_port()))
        if broker_is == "silent":
            silent.listen()
        url = f"amqp://guest:guest@127.0.0.1:{silent.getsockname()[1]}/?connection_timeout=600"
        sidecar = SidecarProcess(url, tmp_path, "g", LBG_COMMAND="true")
        await until_so(sidecar, lambda: sidecar.observed)
        assert not sidecar.ready()
        os.kill(sidecar.process.pid, number)
        assert await exit_status(sidecar, within_s=GUARD_S) == 0
        assert delivered_again(sidecar) == 0
        assert "Traceback" not in sidecar.text
