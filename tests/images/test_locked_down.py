"""Broker, sidecar and operator as containers run them: not root, no privileges, and a read-only root."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testing.command_line import clean_environment
from testing.images.installation import Installed
from testing.images.locked_down import UID, locked_down
from testing.kubernetes.quiet_cluster import quiet_cluster
from testing.ports import free_port
from testing.waiting import GUARD_S

PROBE = """
import os, sys
print(os.geteuid(), os.getegid())
for folder in sys.argv[1:]:
    try:
        open(os.path.join(folder, "probe"), "w").close()
        print(folder)
    except OSError:
        pass
"""
APPLICATION = "import sys, json\nfor line in sys.stdin:\n "
APPLICATION += "print(json.dumps({'id': json.loads(line)['id'], 'verdict': 'ack'}), flush=True)"
OBSERVED = re.compile(r"observed listener: (\S+)")
MESSAGES = 300
STORE = """
import sys
from pathlib import Path
from lbg_broker.store.schema import open_database

database = open_database(Path(sys.argv[1]) / "broker.sqlite3")
database.execute("BEGIN")
for first in range(1, 6000, 500):
    rows = ",".join(f"({n}, x'', x'', zeroblob(2000))" for n in range(first, first + 500))
    database.execute(f"INSERT INTO message VALUES {rows}")
database.execute("COMMIT")
"""


class Running:
    """A process that says things on standard error, into a file."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self._log = log
        with log.open("w") as err:
            self.process = subprocess.Popen(
                command,
                cwd="/",
                env={**clean_environment(), **environment},
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
            )

    @property
    def text(self) -> str:
        return self._log.read_text()

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + GUARD_S
        while not condition():
            assert self.process.poll() is None, self.text
            assert time.monotonic() < deadline, self.text
            time.sleep(0.05)

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=GUARD_S)
        return self.process.returncode

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.end(signal.SIGKILL)
        elif self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def broker(installed: Installed, data: Path, tmp_path: Path) -> Iterator[Running]:
    serve = (
        "broker",
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--management",
        "127.0.0.1:0",
        "--json",
        "--data-dir",
        data,
    )
    with Running(
        locked_down([installed.lbg, *serve], writable=[data]), tmp_path / "broker.log", {}
    ) as broker:
        yield broker


def test_the_lock_that_these_tests_rest_on_holds(installed: Installed, data: Path) -> None:
    folders = [
        "/",
        "/tmp",
        "/var/tmp",
        "/run",
        "/dev/shm",
        str(Path.home()),
        str(data.parent),
        str(installed.prefix),
    ]
    told = subprocess.run(
        locked_down([sys.executable, "-c", PROBE, *folders, data], writable=[data]),
        cwd="/",
        check=True,
        capture_output=True,
        text=True,
    )
    assert told.stdout.splitlines() == [f"{UID} {UID}", str(data)]


def test_broker_and_sidecar_need_no_folder_but_those_that_are_documented(
    installed: Installed, broker: Running, data: Path, tmp_path: Path
) -> None:
    assert broker.process.stdout is not None
    listening = json.loads(broker.process.stdout.readline() or "{}")
    assert listening, broker.text
    where = {"LBG_BROKER": listening["amqp"], "LBG_MANAGEMENT": listening["management"]}
    lbg(
        where, "group", "create", "orders", "--hash-count", "8", "--queue-count", "2", "--queue-size-mb", "64"
    )
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        "".join(json.dumps({"k": n % 20, "n": n, "x": "x" * 1000}) + "\n" for n in range(MESSAGES))
    )
    lbg(where, "publish", "--group", "orders", "--key", "k", str(rows))

    kept = tmp_path / "kept"
    kept.mkdir()
    told = {
        "LBG_BROKER": listening["amqp"],
        "LBG_GROUP": "orders",
        "LBG_NAME": "worker-0",
        "LBG_COMMAND": f'{sys.executable} -c "{APPLICATION}"',
        "LBG_COMMITS": str(kept / "commits"),
        "LBG_JOURNAL": str(kept / "journal"),
        "LBG_LOCAL": "127.0.0.1:0",
        "LBG_OBSERVED": "127.0.0.1:0",
    }
    with Running(
        locked_down([installed.lbg, "sidecar"], writable=[kept]), tmp_path / "sidecar.log", told
    ) as sidecar:
        sidecar.until(lambda: OBSERVED.search(sidecar.text))
        (observed,) = OBSERVED.findall(sidecar.text)
        all_acked = re.compile(rf"^lbg_messages_acked_total{{.*}} {MESSAGES:.1f}$", re.MULTILINE)
        sidecar.until(lambda: all_acked.search(metrics(observed)))
        assert sidecar.end() == 0, sidecar.text
    assert broker.end() == 0, broker.text
    assert {path.name for path in kept.iterdir()} == {"commits", "journal"}
    store = {f"broker.sqlite3{suffix}" for suffix in ("", "-wal", "-shm")}  # where the reserve is
    assert {path.name for path in data.iterdir()} == {*store, "lock"}


def test_the_operator_needs_a_folder_for_temporary_files_and_no_user_with_a_name(
    installed: Installed, data: Path, tmp_path: Path
) -> None:
    with quiet_cluster() as kubeconfig:
        (tmp_path / "kubeconfig").write_text(kubeconfig)
        port = free_port()
        told = {
            "KUBECONFIG": str(tmp_path / "kubeconfig"),
            "TMPDIR": str(data),
            "LBG_OPERATOR_SIDECAR_IMAGE": "lbg-sidecar:0.1.0",
            "LBG_OPERATOR_BROKER_IMAGE": "lbg-broker:0.1.0",
        }
        run = [installed.lbg, "operator", "run", "--host", "127.0.0.1", "--port", str(port)]
        with Running(locked_down(run, writable=[data]), tmp_path / "operator.log", told) as operator:
            operator.until(lambda: is_ready(port))
            assert "lbg_operator_watch_silence_seconds" in metrics(f"127.0.0.1:{port}")
            assert operator.end() == 0, operator.text


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=GUARD_S) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def test_a_store_puts_nothing_into_temporary_files(installed: Installed, data: Path) -> None:
    """SQLite would: a statement's journal, of a batch that is larger than its cache."""
    stored = subprocess.run(
        locked_down([installed.python, "-c", STORE, data], writable=[data]),
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert stored.returncode == 0, stored.stderr


def metrics(observed: str) -> str:
    with urllib.request.urlopen(f"http://{observed}/metrics", timeout=GUARD_S) as answer:
        return str(answer.read().decode())


def lbg(where: dict[str, str], *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lbgroup", *arguments],
        env={
            **clean_environment(),
            **({} if arguments[0] == "publish" else where),
            "LBG_BROKER": where["LBG_BROKER"],
        },
        capture_output=True,
        text=True,
        timeout=GUARD_S,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("LBG_COMMITS", "{}", "the commits directory {} cannot be used: Read-only file system"),
        ("LBG_JOURNAL", "{}", "the journal directory {} cannot be used: it cannot be written to"),
        (
            "LBG_LOCAL",
            "unix:{}/s",
            "LBG_LOCAL is unix:{}/s, but the address cannot be used: Read-only file system",
        ),
    ],
)
def test_a_folder_that_a_sidecar_cannot_write_to_ends_it_with_one_line(
    installed: Installed, tmp_path: Path, setting: str, value: str, says: str
) -> None:
    told = {
        "LBG_BROKER": "amqp://127.0.0.1:1/",
        "LBG_GROUP": "orders",
        "LBG_NAME": "worker-0",
        "LBG_COMMAND": "cat",
        "LBG_LOCAL": "127.0.0.1:0",
        "LBG_OBSERVED": "127.0.0.1:0",
        setting: value.format(tmp_path),
    }
    status, said = outcome([installed.lbg, "sidecar"], told)
    assert status == 2
    assert [line for line in said if " INFO " not in line] == [said[-1]]
    assert said[-1].startswith(f"lbg: error: {says.format(tmp_path)}")


def test_a_data_directory_that_a_broker_cannot_write_to_ends_it_with_one_line(
    installed: Installed, tmp_path: Path
) -> None:
    status, said = outcome([installed.lbg, "broker", "serve", "--data-dir", tmp_path], {})
    assert (status, said) == (
        1,
        [f"lbg: error: cannot use the data directory {tmp_path}: Read-only file system"],
    )


def outcome(command: list[str | Path], environment: dict[str, str]) -> tuple[int, list[str]]:
    done = subprocess.run(
        locked_down(command),
        cwd="/",
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=GUARD_S,
    )
    return done.returncode, done.stderr.splitlines()
