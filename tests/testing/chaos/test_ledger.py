"""The ledger, and an application that writes it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testing import ROOT
from testing.chaos.application import Application, Mood
from testing.chaos.ledger import Kind, Ledger, read
from testing.chaos.stream import key_number, position_in, publisher_number, write_input

NAME = (5, 3, 2, 1, 0)  # position, key, seq, publisher, queue


@pytest.mark.process
def test_what_was_written_before_a_sigkill_is_read_back(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from testing.chaos.ledger import *;"
        f"ledger = Ledger(Path({str(tmp_path / '0.ledger')!r})); ledger.write(Kind.ENTERED, {NAME}, 1, 2);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == -signal.SIGKILL
    started, entered = read(tmp_path / "0.ledger")
    assert started.kind == Kind.STARTED
    assert entered[1:] == (5, 3, 2, 1, 0, Kind.ENTERED, 1, 2)


def test_a_record_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "0.ledger"
    Ledger(path).write(Kind.ENTERED, NAME, 0, 1)
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:10])
    assert len(list(read(path))) == 2


async def test_each_verdict_is_written_behind_its_call(tmp_path: Path) -> None:
    mood = tmp_path / "m.mood"
    told = {
        Mood(): Kind.ACKED,
        Mood(fails=100): Kind.RETRIED,
        Mood(drops=100): Kind.DROPPED,
        Mood(slow_s=0.001): Kind.ACKED,
    }
    for number, (feeling, kind) in enumerate(told.items()):
        feeling.write(mood)
        application = Application(tmp_path / f"{number}.ledger", mood)
        await application.call(NAME, redelivered=False, attempt=1)
        kinds = [record.kind for record in read(tmp_path / f"{number}.ledger")]
        assert kinds == [Kind.STARTED, Kind.ENTERED, kind]


async def test_a_cancelled_call_is_written_as_aborted(tmp_path: Path) -> None:
    Mood(hangs=100).write(tmp_path / "m.mood")
    application = Application(tmp_path / "0.ledger", tmp_path / "m.mood")
    call = asyncio.create_task(application.call(NAME, redelivered=False, attempt=1))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert [record.kind for record in read(tmp_path / "0.ledger")][-1] == Kind.ABORTED


def test_a_body_tells_its_position_and_names_their_numbers(tmp_path: Path) -> None:
    import gzip

    from testing.chaos.stream import keys_of

    keys = keys_of(1, 0, 20, 5)
    write_input(tmp_path / "p0.jsonl.gz", keys, body_bytes=300)
    lines = gzip.decompress((tmp_path / "p0.jsonl.gz").read_bytes()).splitlines()
    assert [position_in(line) for line in lines] == list(range(20))
    assert {len(line) for line in lines} == {300}
    assert publisher_number("p12-0a1b2c") == 12
    assert key_number("k499") == 499
    assert os.path.exists(tmp_path / "p0.jsonl.gz")
