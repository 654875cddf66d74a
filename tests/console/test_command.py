"""`lbg console`: options that are wrong, and a start without a broker."""

from __future__ import annotations

import socket

import pytest

from lbgroup.cli import cli
from lbgroup.commands import run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--listen", "nowhere"), "'nowhere' is not HOST:PORT"),
        (("--listen", "127.0.0.1:70000"), "'127.0.0.1:70000' is not HOST:PORT"),
        (("--url", "console.example.org"), "'console.example.org' must be http[s]://host[:port]"),
        (("--url", "https://example.org/lbg"), "the console is at the root of its host"),
        (("--management", "nowhere"), "a management URL looks like"),
        (("Orders",), "must be a DNS label"),
    ],
)
def test_an_option_that_is_wrong_is_one_line(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert run(cli, ["console", *arguments]) != 0
    *_, line = capfd.readouterr().err.splitlines()
    assert line.startswith("lbg: error: ")
    assert words in line


def test_a_port_that_is_in_use_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run(cli, ["console", "--listen", where, "--broker", "amqp://127.0.0.1:1"]) == 1
    assert capfd.readouterr().err.startswith(
        f"lbg: error: cannot listen on {where}: Address already in use (another process listens there: end it, or "
    )


def test_a_console_address_of_the_broker_that_is_none_is_refused(
    capfd: pytest.CaptureFixture[str], tmp_path: object
) -> None:
    assert run(cli, ["broker", "serve", "--data-dir", f"{tmp_path}/data", "--console-url", "here"]) == 2
    assert "--console-url" in capfd.readouterr().err
