"""`lbg broker backup` and `restore`, beside a broker that runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testing.broker.embedded import EmbeddedBroker
from testing.command_line import Lbg, clean_environment

LBG = (sys.executable, "-m", "lbgroup")


@pytest.mark.process
def test_a_broker_is_moved_to_another_directory_through_a_pipe(lbg: Lbg, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        assert lbg("group", "create", "orders", "--broker", broker.url, "--management", broker.management_url)
        copying = subprocess.run(
            [*LBG, "broker", "backup", "--data-dir", str(tmp_path / "data"), "-"],
            capture_output=True,
            env=clean_environment(),
            check=True,
        )
        restoring = subprocess.run(
            [*LBG, "broker", "restore", "--data-dir", str(tmp_path / "other"), "-"],
            input=copying.stdout,
            capture_output=True,
            env=clean_environment(),
            check=True,
        )
        assert copying.stderr.startswith(b"backed up: 8 queues, 2 messages, ")
        assert restoring.stderr == copying.stderr.replace(b"backed up", b"restored")
    with EmbeddedBroker(tmp_path / "other") as broker:
        listed = lbg("group", "list", "--broker", broker.url, "--management", broker.management_url)
        assert "orders" in listed.out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["backup", "--data-dir", "DIR/none", "DIR/copy"], 1, "broker.sqlite3 is not there"),
        (["backup", "DIR/copy"], 2, "Missing option '--data-dir'"),
        (["restore", "--data-dir", "DIR/data", "DIR/copy"], 2, "No such file or directory"),
        (["restore", "--data-dir", "DIR/data", "/dev/null"], 1, "is not a store of a broker"),
    ],
)
def test_what_is_wrong_is_one_clear_line(
    lbg: Lbg, tmp_path: Path, arguments: list[str], status: int, words: str
) -> None:
    said = lbg("broker", *(argument.replace("DIR", str(tmp_path)) for argument in arguments))
    assert (said.status, words in said.last_line) == (status, True), said.err
    assert said.last_line.startswith("lbg: error: ")
    assert "Traceback" not in said.err
