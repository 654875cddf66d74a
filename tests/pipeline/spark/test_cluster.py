"""Jobs on a standalone cluster whose Python has no LBG: what they print, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from testing.journal.rows import delivered, published, write_journal
from testing.pipeline.standalone_cluster import bare_python, executors, standalone_cluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

NEEDED = ("numpy", "pandas", "pyarrow", "dateutil", "pytz", "tzdata")

_JOBS = """
import json, sys
from lbgroup.cli import cli
from lbgroup.commands import run
print(json.dumps([run(cli, ["pipeline", *command]) for command in json.load(sys.stdin)]), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def cluster(process: None, place: Path) -> Iterator[str]:
    with standalone_cluster(place) as url:
        yield url


@pytest.fixture(scope="module")
def journal(place: Path) -> Path:
    at = [
        {"at_us": number * 30_000_000, "key": f"k{number % 3}", "hash_": number % 3} for number in range(60)
    ]
    write_journal(place / "journal" / "publisher", [published(n // 3, **one) for n, one in enumerate(at)])
    write_journal(place / "journal" / "member", [delivered(n // 3, **one) for n, one in enumerate(at)])
    return place / "journal"


def start(python: Path | str, commands: list[list[str]]) -> subprocess.Popen[str]:
    """`commands` of `lbg pipeline` in one process, whose statuses are its last line of standard error."""
    process = subprocess.Popen(
        [sys.executable, "-c", _JOBS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYSPARK_PYTHON": str(python)},
        start_new_session=True,
    )
    stdin: IO[str] | None = process.stdin
    assert stdin is not None
    stdin.write(json.dumps(commands))
    stdin.close()
    process.stdin = None
    return process


def command(job: str, journal: Path, out: Path, master: str, *options: str) -> list[str]:
    small = ("--conf", "spark.executor.memory=1g", "--conf", "spark.sql.shuffle.partitions=2")
    return [job, "--journal", str(journal), "--out", str(out), "--master", master, *small, *options]


def test_every_job_runs_where_only_spark_and_arrow_are_installed_and_the_jvm_prints_nothing(
    cluster: str, journal: Path, tmp_path: Path
) -> None:
    stream = ("--stream", "--available-now", "--checkpoint", str(tmp_path / "state"))
    forecast = ("--now", "2023-11-14T22:43:00Z", "--interval", "1m", "--horizon", "5m", "--backtest", "1")
    commands = [
        command("validate", journal, tmp_path / "validate", cluster, "--json"),
        command("validate", journal, tmp_path / "stream", cluster, *stream),
        command("profile", journal, tmp_path / "profile", cluster),
        command("plan", journal, tmp_path / "plan", cluster, "--hash-counts", "4", "--queue-counts", "2"),
        command("forecast", journal, tmp_path / "forecast", cluster, *forecast),
    ]
    process = start(bare_python(tmp_path / "python", *NEEDED), commands)
    output, errors = process.communicate()
    lines = errors.splitlines()
    assert json.loads(lines[-1]) == [0, 0, 0, 0, 0], errors
    assert json.loads(output.splitlines()[0])["verdict"] == "sound"
    assert [
        line for line in lines[:-1] if "…" not in line and "tasks, " not in line and "epoch " not in line
    ] == []


def test_what_executors_lack_is_one_line(cluster: str, journal: Path, tmp_path: Path) -> None:
    process = start(
        bare_python(tmp_path / "python"),
        [
            command("validate", journal, tmp_path / "out", cluster),
            command("validate", journal, tmp_path / "out", "sc://127.0.0.1"),
        ],
    )
    _, errors = process.communicate()
    *lines, statuses = (line for line in errors.splitlines() if "…" not in line and "tasks, " not in line)
    assert json.loads(statuses) == [1, 1]
    assert [line.partition(":")[2].partition(":")[0] for line in lines] == [" error", " error"]
    assert "the Python of Spark's executors has no module " in lines[0]
    assert "Spark Connect cannot run these jobs" in lines[1]


def test_sigterm_to_the_group_frees_the_executors_and_ends_with_one_line(
    cluster: str, place: Path, journal: Path, tmp_path: Path
) -> None:
    endless = tmp_path / "python"
    endless.write_text("#!/bin/sh\nexec cat\n")  # no task ends before its executor does
    endless.chmod(0o700)
    with start(endless, [command("validate", journal, tmp_path / "out", cluster)]) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "reading and checking …\n"
        while not executors(place):
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGTERM)
        lines = [line for line in process.stderr.read().splitlines() if "tasks, " not in line]
    assert process.returncode == 143
    assert lines == ["lbg: terminated: every table in --out is whole, of this run or an earlier one"]
    while executors(place):
        time.sleep(0.1)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["_lbg-pipeline"]
