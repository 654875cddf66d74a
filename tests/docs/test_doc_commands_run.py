"""Shell blocks of README and docs are run as they stand, unless they need what a test of some seconds does not have.

A new block is run without being listed. It begins in a new directory with `examples`, and finds an embedded broker with
groups unless it starts one.
"""

from __future__ import annotations

import ast
import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from testing import ROOT
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.command_line import clean_environment
from testing.documents import BLOCKS, SHELL, Block, Command, commands, on_free_ports
from testing.member.group_load import group_spec
from testing.ports import free_port
from testing.rabbitmq.node import wait_until
from testing.waiting import GUARD_S

RUN_BY = {
    ("README.md", "Try it"): "docs/test_readme.py",
    ("console.md", "The console"): "console/test_command.py",
    ("install.md", "Try it"): "images/test_wheel.py",
    ("kubernetes.md", "kubectl lbg"): "cli/test_kubectl.py",
    ("parked-keys.md", "Use"): "cli/test_park.py",
    ("publishing.md", "Through the sidecar"): "sidecar/publish_api/test_endpoint.py",
    ("rabbitmq.md", "Start"): "docs/test_rabbitmq.py",
}
"""Page and section -> the test that runs its blocks: it needs more than an embedded broker, or checks the results."""

NOT_RUN = {
    "docker": "needs a container engine",
    "helm": "needs a cluster: e2e/",
    "kind": "needs a container engine: make e2e",
    "kubectl": "needs a cluster: e2e/",
    "lbg demo": "takes a minute; tests/cli/test_demo.py plays it fast",
    "lbg pipeline": "takes the start of a JVM, and journals; tests/pipeline/commands",
    "make": "installs packages, or takes minutes",
    "pip": "needs a package index",
    "rabbitmqctl": "needs a RabbitMQ node; tests/core/admin/test_on_rabbitmq.py",
}
"""Programs and commands that a test of some seconds cannot run, and why."""

FOREGROUND = {
    "lbg broker serve": "listening: ",
    "lbg consume": "live members: 1",
    "lbg sidecar": "live members: 1",
}
"""Commands that run until SIGTERM -> what they print when they are at work."""

PROGRAMS = {"curl", "lbg", "node", "python", "sh", *(one for one in NOT_RUN if " " not in one)}
GROUPS = ("flights", "orders")


def whole_commands(block: Block) -> list[Command]:
    return [one for one in commands(block) if one.is_whole]


def is_shell(block: Block) -> bool:
    """Blocks without a language are shell or what a command prints."""
    if block.language:
        return block.language in SHELL
    return any(one.words[0] in PROGRAMS for one in whole_commands(block))


def reason_not_to_run(block: Block) -> str | None:
    if test := RUN_BY.get((block.page, block.section)):
        return test
    if "…" in block.text or block.text.startswith("#!"):
        return "is incomplete, or a script"
    words = [one.words for one in whole_commands(block)]
    named = {word for one in words for word in one} | {" ".join(one[:2]) for one in words}
    return next((why for name, why in NOT_RUN.items() if name in named), None)


SHELL_BLOCKS = [one for one in BLOCKS if is_shell(one)]
RUN = [one for one in SHELL_BLOCKS if reason_not_to_run(one) is None]


def test_tests_that_run_blocks_exist_and_every_reason_is_used() -> None:
    assert RUN
    assert all((ROOT / "tests" / test).is_file() for test in RUN_BY.values())
    used = {reason_not_to_run(one) for one in SHELL_BLOCKS}
    assert {*NOT_RUN.values(), *RUN_BY.values()} - used == set()


def run_in_e2e() -> set[tuple[str, str]]:
    """Page and section of the blocks that e2e/ runs on a cluster: the literal arguments of `blocks`."""
    found = set()
    for path in (ROOT / "e2e").glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "blocks":
                page, section = (one.value for one in node.args if isinstance(one, ast.Constant))
                found.add((str(page), str(section)))
    return found


def test_all_blocks_for_a_cluster_are_run_in_e2e() -> None:
    for_cluster = {
        (one.page, one.section) for one in SHELL_BLOCKS if "needs a cluster" in (reason_not_to_run(one) or "")
    }
    assert for_cluster == run_in_e2e()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Directory with what commands name: examples, an administrator's files, an application."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "secret").mkdir()
    for name in ("username", "password"):
        (tmp_path / "secret" / name).write_text("admin\n")
    return tmp_path


@pytest.fixture
def screen(folder: Path) -> Path:
    return folder / "screen"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.process
@pytest.mark.parametrize("block", RUN, ids=lambda one: f"{one.page}:{one.line}")
def test_the_block_runs(
    block: Block, folder: Path, screen: Path, started: list[subprocess.Popen[str]]
) -> None:
    *_, last = whole_commands(block)
    begin = next((one for one in FOREGROUND if " ".join(last.words).startswith(one)), None)
    environment = {
        **clean_environment(),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LBG_OBSERVED": "127.0.0.1:0",
        "LBG_LOCAL": "127.0.0.1:0",
    }
    ports = {known: free_port() for known in ("5672", "15672", "8080")}
    broker = EmbeddedBroker(folder / "data", port=ports["5672"])
    if "lbg broker serve" not in block.text:
        broker.start()
        for name in GROUPS:
            asyncio.run(declare_group(broker.url, group_spec(name)))
        environment |= {"LBG_BROKER": broker.url, "LBG_MANAGEMENT": broker.management_url}
    text = on_free_ports(block.text, ports).replace("amqp://127.0.0.1/", broker.url)
    try:
        with screen.open("w") as output:

            def start(script: str) -> subprocess.Popen[str]:
                started.append(
                    subprocess.Popen(
                        ["bash", "-euc", script],
                        cwd=folder,
                        env=environment,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        text=True,
                        start_new_session=True,
                    )
                )
                return started[-1]

            if "LBG_TARGET=" in text:
                start(f"exec node examples/push_server.js {ports['8080']}")
            # With a trap bash stays the parent of its last command, and ends with that command's status.
            shell = start(f"trap : TERM\n{text}")
            if begin is not None:
                wait_until(
                    lambda: FOREGROUND[begin] in screen.read_text(),
                    timeout_s=GUARD_S,
                    check=lambda: is_running(shell, screen),
                )
                os.killpg(shell.pid, signal.SIGTERM)
            assert shell.wait(GUARD_S) == 0, screen.read_text()
    finally:
        broker.kill()
    assert not re.search(r"^Traceback", screen.read_text(), re.MULTILINE)


def is_running(process: subprocess.Popen[str], screen: Path) -> None:
    assert process.poll() is None, screen.read_text()
