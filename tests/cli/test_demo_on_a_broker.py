"""`lbg demo --broker`: on a broker that is somebody else's, which is left as it was."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from testing.command_line import Lbg, Where, start_lbg
from testing.waiting import GUARD_S

ON_RABBITMQ = pytest.mark.parametrize("broker", ["rabbitmq"], indirect=True)
ON_EMBEDDED = pytest.mark.parametrize("broker", ["embedded"], indirect=True)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    file.write_text("\n".join(["tail,n", *(f"N{number % 97},{number}" for number in range(2000))]) + "\n")
    return file


def start(rows: Path, group: str, options: Sequence[str]):
    what = ("--input", str(rows), "--key", "tail", "--speed", "12", "--group", group)
    return start_lbg("demo", *what, *options, environment={"TMPDIR": str(rows.parent)})


def groups_on(lbg: Lbg, broker: Where) -> list[str]:
    return [
        group["group"] for group in json.loads(lbg("group", "list", "--json", *broker.options).out or "[]")
    ]


@ON_RABBITMQ
def test_an_interrupted_demo_takes_its_group_away(lbg: Lbg, broker: Where, unique: str, rows: Path) -> None:
    demo = start(rows, unique, broker.options)
    assert demo.stdout is not None
    while "the publisher starts" not in demo.stdout.readline():
        pass
    assert groups_on(lbg, broker) == [unique]
    os.kill(demo.pid, signal.SIGINT)
    _, err = demo.communicate(timeout=GUARD_S)
    assert (demo.returncode, err.strip()) == (130, "lbg: interrupted")
    assert groups_on(lbg, broker) == []


@ON_RABBITMQ
def test_a_group_of_that_name_is_refused_and_left_alone(
    lbg: Lbg, broker: Where, unique: str, rows: Path
) -> None:
    assert lbg("group", "create", unique, "--no-user", *broker.options).status == 0
    said = lbg("demo", "--input", str(rows), "--key", "tail", "--group", unique, *broker.options)
    assert said.status == 1
    assert f"there is a group '{unique}' on this broker already" in said.last_line
    assert "--group" in said.last_line
    assert groups_on(lbg, broker) == [unique]
    assert lbg("group", "delete", unique, *broker.options).status == 0


@ON_EMBEDDED
def test_without_a_management_api_members_log_in_as_whoever_was_named(
    lbg: Lbg, broker: Where, unique: str, rows: Path
) -> None:
    demo = start(rows, unique, ["--broker", broker.broker, "--management", "http://127.0.0.1:1"])
    assert demo.stdout is not None
    out = ""
    while "m2 is killed" not in out:
        out += demo.stdout.readline()
        assert demo.poll() is None, out
    assert (
        "no user of its own for the group: the management API at http://127.0.0.1:1 cannot be reached" in out
    )
    os.kill(demo.pid, signal.SIGINT)
    demo.communicate(timeout=GUARD_S)
    assert unique not in groups_on(lbg, broker)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--management", "http://h"], 2, "--management and the TLS files need --broker"),
        (["--broker", "amqp://u:s3cret@127.0.0.1:1/"], 1, "the broker cannot be reached"),
        (["--broker", "http://h/"], 2, "must begin with amqp:// or amqps://"),
        (["--broker", "amqp://h/", "--group", "No.Label"], 2, "must be a DNS label"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_what_is_wrong_is_one_clear_line(
    lbg: Lbg, rows: Path, arguments: list[str], status: int, words: str
) -> None:
    said = lbg("demo", "--input", str(rows), "--key", "tail", *arguments)
    assert (said.status, words in said.last_line) == (status, True), said.err
    assert "s3cret" not in said.err


def test_the_environment_does_not_send_a_demo_to_a_broker(
    lbg: Lbg, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making and removing groups on a broker is for those who name it."""
    monkeypatch.setenv("LBG_BROKER", "http://not-even-an-address")
    said = lbg("demo", "--input", str(rows), "--key", "nothing")
    assert "nothing" in said.last_line
    assert "amqp" not in said.err
