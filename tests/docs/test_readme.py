"""README's commands and code, run as they stand."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pika
import pytest

from lbg_broker.store.errors import StoreError
from lbg_broker.store.schema import lock_holder
from testing import ROOT
from testing.broker.embedded import EmbeddedBroker, free_port
from testing.documents import on_free_ports
from testing.terminal import Terminal

README = ROOT / "README.md"
QUICKSTART = ROOT / "examples" / "quickstart.py"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def try_it() -> list[str]:
    """The shell blocks of "Try it", but for the installation and its removal."""
    section = README.read_text().partition("## Try it\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    first, last = (text for language, text in blocks if not language)
    install, _, first = first.partition("\n")
    assert install == 'make install && export PATH="$PWD/.venv/bin:$PATH" &&'
    assert last.endswith(" && make clean\n")
    return [first, last.removesuffix(" && make clean\n") + "\n"]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    terminal = Terminal(tmp_path, Path(sys.executable).parent)
    try:
        yield terminal
    finally:
        terminal.close()
        with suppress(StoreError, ProcessLookupError):
            if (broker := lock_holder(tmp_path / "data")) is not None:
                os.kill(broker, signal.SIGKILL)


@pytest.mark.process
def test_the_first_commands_run_as_they_stand_in_one_terminal_and_leave_nothing(
    terminal: Terminal, tmp_path: Path
) -> None:
    ports = {known: free_port() for known in ("5673", "15673")}
    program = tmp_path / "examples" / "quickstart.py"
    program.write_text(on_free_ports(program.read_text(), ports))
    first, last = (on_free_ports(block, ports) for block in try_it())
    terminal.type(first)
    terminal.shows(lambda text: len(handled(text)) == 40)
    terminal.interrupt()
    assert "`python examples/quickstart.py`" in README.read_text()
    terminal.type("python examples/quickstart.py\n")
    terminal.shows(lambda text: len(handled_by_python(text)) == 10)
    terminal.interrupt()
    terminal.type(last)
    terminal.leave()
    assert not (tmp_path / "data").exists()
    orders: dict[str, list[int]] = {}
    for message in handled(terminal.screen):
        orders.setdefault(message["account"], []).append(message["order"])
    assert len(orders) == 5
    assert all(of_account == list(range(1, len(of_account) + 1)) for of_account in orders.values())
    for account in range(3):
        numbers = [int(order) for of, order in handled_by_python(terminal.screen) if int(of) == account]
        assert numbers == list(range(account, 10, 3))


@pytest.mark.process
def test_the_first_commands_end_where_their_port_is_taken_and_touch_no_other_broker(
    terminal: Terminal, own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    first = on_free_ports(try_it()[0], {"5673": own_broker.port, "15673": free_port()})
    terminal.type(first + "echo the next $((1 + 1))\n")
    terminal.shows(lambda text: "the next 2" in text)
    assert "lbg: error:" in terminal.screen
    assert "confirmed" not in terminal.screen
    with (
        pika.BlockingConnection(pika.URLParameters(own_broker.url)) as connection,
        pytest.raises(pika.exceptions.ChannelClosedByBroker),
    ):
        connection.channel().exchange_declare("lbg.orders", passive=True)


def handled(screen: str) -> list[Any]:
    """Messages that the script printed, in their order."""
    return [json.loads(line) for line in re.findall(r"^\w+ (\{[^{}]*\})$", screen, re.MULTILINE)]


def handled_by_python(screen: str) -> list[tuple[str, str]]:
    """Numbers of account and order that the program printed, in their order."""
    return re.findall(r"^account-(\d) order (\d)$", screen, re.MULTILINE)


def test_the_python_of_the_readme_is_the_example() -> None:
    assert blocks("python") == [QUICKSTART.read_text()]


def test_the_readme_is_read_in_minutes() -> None:
    assert len(README.read_text().split()) <= 900
