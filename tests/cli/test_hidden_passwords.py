"""A password on the command line, and what other users see of it."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from lbgroup.__main__ import hide_passwords
from testing.command_line import start_lbg
from testing.fork_server import DIRECTLY
from testing.waiting import GUARD_S

SECRET = "s3cret/w0rd"
ESCAPED = "s3cret%2Fw0rd"


def test_each_character_of_a_password_becomes_a_star_and_nothing_moves() -> None:
    arguments = [
        "python",
        "/bin/lbg",
        "validate",
        "--broker",
        f"amqp://user:{SECRET}@one:5672,amqp://user:{SECRET}@two",
        "--management=http://user:a b@one",
        "--group",
        "a@b:c",
        "",
    ]
    stars = "*" * len(SECRET)
    hidden = hide_passwords("\0".join(arguments).encode()).decode().split("\0")
    assert hidden[4:6] == [
        f"amqp://user:{stars}@one:5672,amqp://user:{stars}@two",
        "--management=http://user:***@one",
    ]
    assert [*hidden[:4], *hidden[6:]] == [*arguments[:4], *arguments[6:]]


def test_bytes_of_a_password_that_are_no_text_are_hidden() -> None:
    assert hide_passwords("é\0amqp://u:ü\udcff@h\0".encode(errors="surrogateescape")).endswith(
        b"amqp://u:***@h\0"
    )


@pytest.mark.process
@pytest.mark.parametrize("option", ["--broker", "--management"])
def test_a_process_shows_no_password_of_its_addresses(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it is connected to, and answers nothing
        port = silent.getsockname()[1]
        urls = {"--broker": f"amqp://127.0.0.1:{port}/", "--management": f"http://127.0.0.1:{port}/"}
        urls[option] = urls[option].replace("://", f"://user:{ESCAPED}@")
        words = [word for pair in urls.items() for word in pair]
        process = start_lbg("validate", "--group", "g", *words, under=DIRECTLY)
        shown = Path(f"/proc/{process.pid}/cmdline")
        deadline = time.monotonic() + GUARD_S
        while b"user:****" not in (line := shown.read_bytes()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
        assert ESCAPED.encode() not in line
        assert line.split(b"\0")[-2].endswith(f"127.0.0.1:{port}/".encode())
