"""README's commands and code, run as they stand."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from lbg_broker.server.store.errors import StoreError
from lbg_broker.server.store.schema import lock_holder
from support.broker.embedded import free_port
from support.command_line import clean_environment
from support.documents import on_free_ports
from support.rabbitmq.node import wait_until
from support.waiting import GUARD_S

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
QUICKSTART = ROOT / "examples" / "quickstart.py"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def use_it() -> list[str]:
    """The shell blocks of "Use it", but for the installation."""
    section = README.read_text().partition("## Use it\n")[2].partition("\n## ")[0]
    first, *others = re.findall(r"^```\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    install, _, rest = first.partition("\n")
    assert install.startswith('make install && export PATH="$PWD/.venv/bin:$PATH" ')
    return [rest, *others]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Bash in a directory with the examples, in which `lbg` is a command; it prints to the file `screen`."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    with (tmp_path / "screen").open("w") as screen:
        process = subprocess.Popen(
            ["bash", "-e"],
            stdin=subprocess.PIPE,
            stdout=screen,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=tmp_path,
            start_new_session=True,
            env={**clean_environment(), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        )
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            with suppress(StoreError, ProcessLookupError):
                if (broker := lock_holder(tmp_path / "data")) is not None:
                    os.kill(broker, signal.SIGKILL)


@pytest.mark.process
def test_the_quick_start_runs_as_it_stands_in_one_terminal_and_ends_with_nothing_left(
    terminal: subprocess.Popen[str], tmp_path: Path
) -> None:
    ports = {known: free_port() for known in ("5672", "15672", "8750", "8751", "8080")}
    amqp, api = f"amqp://guest:guest@127.0.0.1:{ports['5672']}/", f"http://127.0.0.1:{ports['15672']}"
    local = f"LBG_LOCAL=127.0.0.1:{ports['8750']} LBG_OBSERVED=127.0.0.1:{ports['8751']}"
    screen, program = tmp_path / "screen", tmp_path / "examples" / "quickstart.py"
    for text, here in {
        '"amqp://guest:guest@localhost/"': json.dumps(amqp),
        "connect_admin(BROKER)": f"connect_admin(BROKER, {api!r})",
    }.items():
        assert text in program.read_text()
        program.write_text(program.read_text().replace(text, here))

    def paste(block: str) -> None:
        assert terminal.stdin is not None
        terminal.stdin.write(block)
        terminal.stdin.flush()

    def shows(done: Callable[[str], bool]) -> None:
        wait_until(
            lambda: done(screen.read_text()), timeout_s=GUARD_S, check=lambda: running(terminal, screen)
        )

    script, server, python, stop = (on_free_ports(block, ports) for block in use_it())
    paste(f"export PYTHONUNBUFFERED=1 LBG_BROKER={amqp} LBG_MANAGEMENT={api}\n")
    paste(script)
    shows(lambda text: len(handled(text)) == 40)
    paste(server.replace("LBG_GROUP=", f"{local} LBG_GROUP="))
    shows(lambda text: len(handled(text)) == 41 and "\nlbg.orders.q.7 " in text)
    paste(python)
    shows(lambda text: len(handled_by_python(text)) == 10)
    paste(stop)
    assert terminal.stdin is not None
    terminal.stdin.close()
    assert terminal.wait(GUARD_S) == 0, screen.read_text()
    assert lock_holder(tmp_path / "data") is None
    orders: dict[str, list[int]] = {}
    for message in handled(screen.read_text()):
        if "account" in message:
            orders.setdefault(message["account"], []).append(message["order"])
    assert len(orders) == 5
    assert all(of_account == list(range(1, len(of_account) + 1)) for of_account in orders.values())
    for account in range(3):
        numbers = [int(order) for of, order in handled_by_python(screen.read_text()) if int(of) == account]
        assert numbers == list(range(account, 10, 3))


def handled(screen: str) -> list[Any]:
    """Messages that the script or the server printed, in their order. What curl prints has no end of a line, and the
    server's next line may follow it."""
    return [json.loads(line) for line in re.findall(r"(?:^|\})\w+ (\{[^{}]*\})$", screen, re.MULTILINE)]


def handled_by_python(screen: str) -> list[tuple[str, str]]:
    """Numbers of account and order that the program printed, in their order."""
    return re.findall(r"^account-(\d) order (\d)$", screen, re.MULTILINE)


def running(process: subprocess.Popen[str], screen: Path) -> None:
    assert process.poll() is None, screen.read_text()


def test_the_python_of_the_readme_is_the_example() -> None:
    assert blocks("python") == [QUICKSTART.read_text()]
