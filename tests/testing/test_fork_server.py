"""A process that the fork server makes is one as `subprocess` makes it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testing import ROOT
from testing.fork_server import DIRECTLY, WITH_PARENT
from testing.program import command

pytestmark = pytest.mark.process

SAYS = """
import json, os, sys
print(json.dumps({
    "is_fork": "testing.fork_server" in sys.orig_argv, "arguments": sys.argv[1:], "cwd": os.getcwd(),
    "pid": os.getpid(), "parent": os.getppid(), "session": os.getsid(0), "environment": dict(os.environ),
    "umask": os.umask(0), "descriptors": sorted(map(int, os.listdir("/proc/self/fd"))), "hash": hash("text"),
    "input": sys.stdin.read(),
}))
sys.exit(7)
"""
WAITS = "import sys, time\nprint('here', flush=True)\ntime.sleep(600)"


def said(*under: str, **options: object) -> dict[str, object]:
    process = subprocess.run(
        [*under, *command(SAYS, "a", "b c")],
        input="typed",
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    assert process.returncode == 7, process.stderr
    return dict(json.loads(process.stdout))


def test_it_has_what_a_process_has_that_is_started_directly() -> None:
    environment = {**os.environ, "LBG_TEST_OF_FORKS": "x"}
    fork, direct = (
        said(*under, cwd=ROOT, env=environment, start_new_session=True) for under in ((), DIRECTLY)
    )
    assert (fork.pop("is_fork"), direct.pop("is_fork")) == (True, False)
    for one in (fork, direct):
        assert one.pop("session") == one.pop("pid")
        del one["hash"]
    assert fork == direct
    assert fork["arguments"] == ["a", "b c"]
    assert fork["parent"] == os.getpid()


def test_texts_hash_otherwise_in_the_next_one() -> None:
    assert len({said(cwd=ROOT)["hash"] for _ in range(4)}) == 2


@pytest.mark.parametrize(
    "options", [{"cwd": ROOT, "env": {**os.environ, "PYTHONUTF8": "1"}}, {"cwd": ROOT, "umask": 0o77}]
)
def test_what_it_cannot_have_makes_an_ordinary_process(options: dict[str, object]) -> None:
    assert not said(**options)["is_fork"]


def test_a_directory_that_is_not_there_is_an_error_of_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.Popen([sys.executable, "-m", "lbgroup", "--version"], cwd=tmp_path / "none")


def test_an_interrupt_right_after_the_start_ends_it() -> None:
    for _ in range(10):
        process = subprocess.Popen(
            command(WAITS), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        process.send_signal(signal.SIGINT)
        process.communicate()
        assert process.returncode == -signal.SIGINT


def test_its_session_is_there_to_be_killed_right_after_the_start() -> None:
    for _ in range(10):
        with subprocess.Popen(command(WAITS), stdout=subprocess.DEVNULL, start_new_session=True) as process:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL


def test_it_ends_with_its_parent_where_that_is_asked() -> None:
    starts = (
        "import subprocess, sys\nfrom testing.fork_server import install\ninstall()\n"
        f"process = subprocess.Popen([*{WITH_PARENT!r}, *{command(WAITS)!r}], stdout=subprocess.PIPE)\n"
        "process.stdout.readline()\nprint(process.pid, flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [*DIRECTLY, sys.executable, "-c", starts], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    while Path(f"/proc/{pid}").exists():
        time.sleep(0.01)
