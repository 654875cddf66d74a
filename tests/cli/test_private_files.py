"""Files of every process are their owner's alone, with a umask that takes nothing away."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing import ROOT, program
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import Said, start_lbg
from testing.sidecar.process import PROMPT, Sidecar
from testing.waiting import GUARD_S

pytestmark = pytest.mark.process

SIZES = ("--hash-count", "8", "--queue-count", "2", "--queue-size-mb", "8")
ROWS = 20


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    """Of this process and of all that it starts."""
    before = os.umask(0)
    yield
    os.umask(before)


def open_to_others(directory: Path) -> dict[str, str]:
    """Paths in the directory, itself included, with access for others than the owner."""
    return {
        str(path.relative_to(directory)): oct(mode)
        for path in (directory, *directory.rglob("*"))
        if (mode := stat.S_IMODE(path.stat().st_mode)) & 0o077
    }


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.rglob("*") if path.is_file()}


def lbg(*arguments: str, **environment: str) -> Said:
    process = start_lbg(*arguments, environment=environment)
    out, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, err
    return Said(process.returncode, out, err)


def end(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 0, err
    return err


def serve(data: Path) -> tuple[subprocess.Popen[str], str]:
    """A broker, and its address."""
    listen = ("--listen", "127.0.0.1:0", "--management", "127.0.0.1:0")
    arguments = ("broker", "serve", "--json", "--data-dir", str(data), *listen)
    process = start_lbg(*arguments)
    assert process.stdout is not None
    where: str = json.loads(process.stdout.readline())["amqp"]
    return process, where.replace("://", "://guest:guest@")


def write_rows(directory: Path) -> str:
    rows = directory / "rows.jsonl"
    rows.write_text("".join(json.dumps({"k": str(n % 4), "n": n}) + "\n" for n in range(ROWS)))
    return str(rows)


def publish(url: str, group: str, directory: Path, *more: str) -> None:
    lbg("publish", "--group", group, "--key", "k", *more, write_rows(directory), LBG_BROKER=url)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A directory that the process creates, with the one above it."""
    return tmp_path / "made" / "state"


@pytest.fixture
def group(embedded: EmbeddedBroker, unique: str) -> str:
    lbg("group", "create", unique, "--no-user", *SIZES, LBG_BROKER=embedded.url)
    return unique


def test_the_store_of_a_broker_is_its_owners_alone(state: Path, tmp_path: Path) -> None:
    process, url = serve(state)
    lbg("group", "create", "orders", "--no-user", *SIZES, LBG_BROKER=url)
    publish(url, "orders", tmp_path)
    assert names(state) == {"lock", "broker.sqlite3", "broker.sqlite3-wal", "broker.sqlite3-shm"}
    assert open_to_others(state.parent) == {}
    lbg("broker", "backup", "--data-dir", str(state), str(state / "copy"))
    end(process)
    assert open_to_others(state.parent) == {}
    lbg("broker", "restore", "--data-dir", str(state.parent / "other"), str(state / "copy"))
    assert open_to_others(state.parent) == {}


def test_a_broker_reports_a_directory_that_is_open_to_others_and_starts(tmp_path: Path) -> None:
    (data := tmp_path / "data").mkdir(0o755)
    process, _ = serve(data)
    warnings = [line for line in end(process).splitlines() if "WARNING" in line]
    assert [line.partition("WARNING ")[2] for line in warnings] == [
        f"{data} has mode 0755, which gives every user who can reach it access to it, but to none of its files: "
        f"chmod -R go= {data}"
    ]


def test_state_and_journal_of_a_publisher_are_its_owners_alone(
    embedded: EmbeddedBroker, group: str, state: Path, tmp_path: Path
) -> None:
    file = tmp_path / "rows.state"
    publish(embedded.url, group, tmp_path, "--state", str(file), "--journal", str(state))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(names(state)) == 1
    assert open_to_others(state.parent) == {}


def test_journal_and_commit_log_of_a_member_are_its_owners_alone(
    embedded: EmbeddedBroker, group: str, state: Path, tmp_path: Path
) -> None:
    publish(embedded.url, group, tmp_path)
    process = start_lbg(
        *("consume", "--group", group, "--name", "m"),
        *("--journal", str(state / "journal"), "--commits", str(state / "commits")),
        environment={"LBG_BROKER": embedded.url},
    )
    assert process.stdout is not None
    for _ in range(ROWS):
        process.stdout.readline()
    assert f"{group}-m.commits" in names(state)
    assert open_to_others(state.parent) == {}
    end(process)
    assert open_to_others(state.parent) == {}


def test_files_of_a_sidecar_are_its_owners_alone(
    embedded: EmbeddedBroker, group: str, state: Path, tmp_path: Path
) -> None:
    sidecar = Sidecar(
        embedded,
        tmp_path,
        group,
        PROMPT,
        LBG_NAME="m",
        LBG_JOURNAL=str(state / "journal"),
        LBG_COMMITS=str(state / "commits"),
    )
    sidecar.until(sidecar.ready)
    sidecar.publish(group, ROWS)
    sidecar.until(lambda: sidecar.acked() == ROWS)
    journals = {name.lstrip(".").partition("-")[0] for name in names(state / "journal")}
    assert journals == {"delivered", "published"}
    assert open_to_others(state.parent) == {}
    sidecar.process.send_signal(signal.SIGTERM)
    assert sidecar.process.wait(timeout=GUARD_S) == 0
    assert open_to_others(state.parent) == {}


def test_a_sidecar_that_waits_for_its_group_reports_an_open_directory_once(
    embedded: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    (commits := tmp_path / "commits").mkdir(0o755)
    sidecar = Sidecar(embedded, tmp_path, unique, PROMPT, LBG_NAME="m", LBG_COMMITS=str(commits))
    sidecar.until(lambda: "trying again" in sidecar.text)
    lbg("group", "create", unique, "--no-user", *SIZES, LBG_BROKER=embedded.url)
    sidecar.until(sidecar.ready)
    assert sidecar.text.count(f"chmod -R go= {commits}") == 1


def test_position_of_a_session_is_its_owners_alone(
    embedded: EmbeddedBroker, unique: str, state: Path, tmp_path: Path
) -> None:
    lbg("group", "create", unique, "--no-user", "--mode", "Sessions", LBG_BROKER=embedded.url)
    process = start_lbg(
        *("consume", "--group", unique, "--name", "m0", "--commits", str(state)),
        environment={"LBG_BROKER": embedded.url},
    )
    publish(embedded.url, unique, tmp_path)
    assert process.stdout is not None
    process.stdout.readline()
    position, notes = sorted(names(state), key=lambda name: name.endswith(".calls"))
    assert position == f"{unique}-m0.position"
    assert notes.endswith(".calls"), "of the calls that run in this process"
    assert open_to_others(state.parent) == {}
    end(process)


def test_a_password_that_is_written_is_its_owners_alone(
    embedded: EmbeddedBroker, unique: str, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    lbg(
        *("group", "create", unique, "--write-password", str(file)),
        *("--broker", embedded.url, "--management", embedded.management_url),
    )
    assert file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_umask_of_these_tests_takes_nothing_away(tmp_path: Path) -> None:
    """Otherwise they would hold for any mode that a file is created with."""
    for made, start in (
        (tmp_path / "directly", lambda text: [sys.executable, "-c", text]),
        (tmp_path / "forked", program.command),
    ):
        subprocess.run(start(f"open({str(made)!r}, 'w')"), cwd=ROOT, check=True)
        assert stat.S_IMODE(made.stat().st_mode) == 0o666
