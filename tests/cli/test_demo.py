"""`lbg demo`: the whole of it, on a small input and fast."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from lbg_core.group import DeliveredRecord, PublishedRecord
from lbg_core.journal import JournalReader
from testing.command_line import Lbg, start_lbg
from testing.output_documents import checked
from testing.waiting import GUARD_S


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    lines = [f"{'' if number % 100 == 0 else f'N{number % 97}'},{number}" for number in range(2000)]
    file.write_text("\n".join(["tail,n", *lines]) + "\n")
    return file


def start(rows: Path, *options: str) -> subprocess.Popen[str]:
    what = ("--input", str(rows), "--key", "tail", "--speed", "12")
    return start_lbg("demo", *what, *options, environment={"TMPDIR": str(rows.parent)})


@pytest.mark.process
def test_the_demo_proves_that_nothing_is_lost_and_nothing_out_of_order(rows: Path, tmp_path: Path) -> None:
    demo = start(rows, "--report", str(tmp_path / "report.json"), "--journal", str(tmp_path / "journal"))
    out, err = demo.communicate(timeout=GUARD_S)
    assert demo.returncode == 0, err
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["published"], report["distinct"], report["lost"], report["order_errors"]) == (
        2000,
        2000,
        0,
        0,
    )
    assert report["repeated_on_planned_moves"] == 0
    assert report["kills"][0]["member"] == "m2"
    assert report["kills"][0]["repeated"] <= report["kills"][0]["in_flight"]
    assert sum(report["per_queue"].values()) == report["delivered"]
    for words in ("m2 is killed", "Scale to four", "One is left", "nothing lost, nothing out of order"):
        assert words in out
    assert not list(tmp_path.glob("lbg-demo-*"))
    journal = list(JournalReader(tmp_path / "journal"))
    published = {(one.hash_, one.seq) for one in journal if isinstance(one, PublishedRecord)}
    acked = {
        (one.hash_, one.seq) for one in journal if isinstance(one, DeliveredRecord) and one.verdict == "ack"
    }
    assert len(published) == 2000
    assert acked == published


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("Sessions", "m4 is assigned nothing more"),
        ("Partitioned", "Two consumers share the partitions"),
    ],
)
def test_other_modes_are_played_and_proved_as_well(mode: str, words: str, rows: Path, tmp_path: Path) -> None:
    demo = start(rows, "--mode", mode, "-o", "json", "--report", str(tmp_path / "report.json"))
    out, err = demo.communicate(timeout=GUARD_S)
    assert demo.returncode == 0, err
    report = checked("demo", out)
    assert report == json.loads((tmp_path / "report.json").read_text())
    assert (report["mode"], report["distinct"], report["lost"], report["order_errors"]) == (mode, 2000, 0, 0)
    assert report["repeated_otherwise"] == 0
    assert words in err


@pytest.mark.process
def test_an_interrupted_demo_leaves_no_process_and_no_directory(rows: Path, tmp_path: Path) -> None:
    demo = start(rows)
    assert demo.stdout is not None
    while "the publisher starts" not in demo.stdout.readline():
        pass
    children = children_of(demo.pid)
    assert len(children) == 5  # broker, validator, two members, publisher
    os.kill(demo.pid, signal.SIGINT)
    _, err = demo.communicate(timeout=GUARD_S)
    assert demo.returncode == 130
    assert "Traceback" not in err
    assert not [pid for pid in children if is_running(pid)]
    assert not list(tmp_path.glob("lbg-demo-*"))


@pytest.mark.slow
@pytest.mark.process
def test_a_killed_demo_takes_its_processes_with_it(rows: Path) -> None:
    demo = start(rows)
    assert demo.stdout is not None
    while "the publisher starts" not in demo.stdout.readline():
        pass
    children = children_of(demo.pid)
    demo.kill()
    demo.communicate()
    deadline = time.monotonic() + GUARD_S
    while running := [pid for pid in children if is_running(pid)]:
        assert time.monotonic() < deadline, running
        time.sleep(0.01)


def test_an_input_without_the_key_field_is_told_before_anything_starts(lbg: Lbg, rows: Path) -> None:
    said = lbg("demo", "--input", str(rows), "--key", "nothing")
    assert said.status == 1
    assert "nothing" in said.last_line
    assert "tail" in said.last_line


def test_an_empty_input_is_told(lbg: Lbg, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("tail,n\n")
    said = lbg("demo", "--input", str(tmp_path / "empty.csv"), "--key", "tail")
    assert (said.status, "holds no messages" in said.last_line) == (1, True)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.process
@pytest.mark.slow
def test_a_demo_whose_reader_goes_away_ends_at_once_with_its_processes(rows: Path, tmp_path: Path) -> None:
    demo = start(rows)
    assert demo.stdout is not None
    while "m1 starts" not in demo.stdout.readline():
        pass
    children = children_of(demo.pid)
    demo.stdout.close()
    demo.stdout = None
    demo.communicate(timeout=GUARD_S)
    assert demo.returncode == 1
    assert not [pid for pid in children if is_running(pid)]
    assert not list(tmp_path.glob("lbg-demo-*"))
