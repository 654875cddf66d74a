"""`lbg publish` as a person meets it: what it says, what it writes, how it ends."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import sys
from pathlib import Path
from typing import cast

import pika
import pytest

from lbg_core.group import GroupSpec
from lbg_core.journal import JournalReader
from lbg_core.publisher import GroupPublisher
from lbg_core.publisher import resume as layout
from lbgroup.publish import counts_text, default_name
from testing import ROOT
from testing.admin.group_on_broker import declare_group
from testing.command_line import Lbg, Where, clean_environment, start_lbg
from testing.waiting import GUARD_S

FLIGHTS = ROOT / "examples" / "flights-sample.csv.gz"


@pytest.fixture
def group(broker: Where) -> str:
    name = f"g{secrets.token_hex(4)}"
    spec = GroupSpec(name, name, hash_count=20, queue_count=4, queue_size_mb=100, client_username="guest")
    asyncio.run(declare_group(broker.broker, spec))
    return name


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders.jsonl"
    path.write_text("".join(f'{{"order": {{"id": {number % 9}}}, "n": {number}}}\n' for number in range(500)))
    return path


def test_a_month_of_flights_is_published_and_reported(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path
) -> None:
    report_file = tmp_path / "report.json"
    files = ("--report", str(report_file), "--journal", str(tmp_path / "journal"))
    said = lbg(
        "publish", "--group", group, "--key", "tailnum", *files, "--broker", broker.broker, str(FLIGHTS)
    )
    assert said.status == 0, said.err
    assert f"24,951 of 24,951 messages confirmed by group {group}" in said.out
    assert "446 without a key" in said.out
    report = json.loads(report_file.read_text())
    assert report["publisher"].startswith("flights-sample-")
    assert sum(report["next_seq"].values()) == report["confirmed"] == 24_951
    assert {name: report[name] for name in ("refused", "maybe_twice", "accepted_after_gap", "bad_rows")} == {
        "refused": 0,
        "maybe_twice": 0,
        "accepted_after_gap": 0,
        "bad_rows": 0,
    }
    assert len(list(JournalReader(tmp_path / "journal"))) == 24_951


def test_the_same_command_with_a_state_file_publishes_nothing_twice(
    lbg: Lbg, broker: Where, group: str, orders: Path, tmp_path: Path
) -> None:
    command = ("publish", "--group", group, "--key", "order.id", "--state", str(tmp_path / "state"))
    first = lbg(*command, "--broker", broker.broker, str(orders))
    again = lbg(*command, "--broker", broker.broker, str(orders))
    assert (first.status, again.status) == (0, 0)
    assert "500 of 500 messages confirmed" in again.out
    assert ", 0 in this run" in again.out
    other = lbg(*command, "--topic", "x", "--broker", broker.broker, str(orders))
    assert other.status == 1
    assert "was made with --topic '', and now it is 'x'" in other.last_line


def test_standard_input_is_read(broker: Where, group: str) -> None:
    command = [sys.executable, "-m", "lbgroup", "publish", "--group", group, "--key", "k", "-"]
    environment = clean_environment() | {"LBG_BROKER": broker.broker}
    said = subprocess.run(command, input=b"k,v\n1,2\n,3\n", capture_output=True, env=environment, check=False)
    assert said.returncode == 0, said.stderr
    assert b"2 of 2 messages confirmed" in said.stdout


def test_a_bad_row_ends_with_one_line_or_is_skipped_and_counted(
    lbg: Lbg, broker: Where, group: str, orders: Path
) -> None:
    with orders.open("a") as file:
        file.write("{broken\n" * 12)
    command = ("publish", "--group", group, "--key", "order.id", "--broker", broker.broker)
    stopped = lbg(*command, str(orders))
    assert stopped.status == 1
    assert stopped.last_line.startswith(f"lbg: error: {orders}, row 501: not JSON")
    skipped = lbg(*command, "--bad-rows", "skip", str(orders))
    assert skipped.status == 0
    assert "12 bad rows skipped" in skipped.out
    assert skipped.err.count("skipped: ") == 10


def test_a_row_over_the_largest_message_is_a_bad_row(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        "".join(json.dumps({"id": n, "text": "x" * size}) + "\n" for n, size in enumerate((10, 99, 20)))
    )
    command = (
        "publish",
        "--group",
        group,
        "--key",
        "id",
        "--broker",
        broker.broker,
        "--max-message-size",
        "100",
    )
    stopped = lbg(*command, str(path))
    assert stopped.status == 1
    assert stopped.last_line == (
        f"lbg: error: {path}, row 2: message size 120: must be at most 100, the broker's max_message_size"
    )
    skipped = lbg(*command, "--bad-rows", "skip", str(path))
    assert skipped.status == 0
    assert "2 of 2 messages confirmed" in skipped.out
    assert "1 bad rows skipped" in skipped.out


def test_the_counts_at_a_bad_row_are_those_of_the_broker(
    lbg: Lbg, broker: Where, group: str, tmp_path: Path
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("id,n\n" + "".join(f"k{number % 50},{number}\n" for number in range(6000)) + "bad\n")
    said = lbg("publish", "--group", group, "--key", "id", "--broker", broker.broker, str(path))
    assert said.status == 1
    assert said.last_line.startswith(f"lbg: error: {path}, row 6001")
    assert f"6,000 of 6,000 messages confirmed by group {group}" in said.out
    assert message_count(broker.broker, group) == 6000


@pytest.mark.parametrize(
    ("name", "text", "format_", "words"),
    [
        ("notes.txt", "hello world\n", (), "as CSV (by its first character): a header row (hello world) and"),
        ("notes.csv", "a,b\n", (), "as CSV: a header row (a, b) and no row behind it"),
        ("notes.txt", "", ("--format", "jsonl"), "as JSON Lines: no line that is not blank"),
    ],
)
def test_an_input_without_a_row_is_no_error_and_what_was_read_is_said(
    lbg: Lbg,
    broker: Where,
    group: str,
    tmp_path: Path,
    name: str,
    text: str,
    format_: tuple[str, ...],
    words: str,
) -> None:
    path = tmp_path / name
    path.write_text(text)
    said = lbg("publish", "--group", group, "--keyless", *format_, "--broker", broker.broker, str(path))
    assert said.status == 0
    assert "0 of 0 messages confirmed" in said.out
    assert f"nothing to publish: {path} was read {words}" in said.out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--key", "nope", "ORDERS"), 1, "has no field 'nope'; its fields are order.id, n"),
        (("ORDERS",), 2, "say which field is the key with --key FIELD"),
        (("--key", "n", "--keyless", "ORDERS"), 2, "or --keyless that there is none"),
        (("--key", "n", "nowhere.csv"), 1, "nowhere.csv cannot be opened: No such file"),
        (("--key", "n", "--name", "a b", "ORDERS"), 2, "'a b' cannot name a publisher"),
        (("--key", "n", "--state", "ORDERS", "ORDERS"), 1, "is no state file of a publisher"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    lbg: Lbg, broker: Where, group: str, orders: Path, arguments: tuple[str, ...], status: int, words: str
) -> None:
    filled = [str(orders) if argument == "ORDERS" else argument for argument in arguments]
    said = lbg("publish", "--group", group, "--broker", broker.broker, *filled)
    assert (said.status, said.out) == (status, "")
    assert words in said.last_line
    assert said.last_line.startswith("lbg: error: ")


def test_a_missing_group_and_a_missing_broker_are_said(lbg: Lbg, broker: Where, orders: Path) -> None:
    said = lbg("publish", "--group", "nope", "--key", "n", "--broker", broker.broker, str(orders))
    assert (said.status, said.out) == (1, "")
    assert "there is no group 'nope'" in said.last_line
    nowhere = ("--broker", "amqp://me:secret@127.0.0.1:1/", "--connect-timeout", "0.1")
    said = lbg("publish", "--group", "nope", "--key", "n", *nowhere, str(orders))
    assert said.status == 1
    assert "127.0.0.1:1" in said.last_line
    assert "secret" not in said.err


def message_count(url: str, group: str) -> int:
    """Messages in the queues of the group, by a foreign client."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    depths = [
        channel.queue_declare(f"lbg.{group}.q.{number}", passive=True).method.message_count
        for number in range(4)
    ]
    connection.close()
    return sum(depths)


def saved_position(state: Path) -> int:
    content = state.read_bytes() if state.exists() else b""
    size = layout.slot_size_bytes(20)
    slots = [content[layout.SLOTS_AT + which * size :] for which in (0, 1)]
    return max(slot.position if (slot := layout.unpacked_slot(each, 20)) else 0 for each in slots)


def test_sigterm_ends_it_in_order_and_the_state_goes_on(broker: Where, group: str, tmp_path: Path) -> None:
    state, report_file = tmp_path / "state", tmp_path / "report.json"
    arguments = ["--group", group, "--key", "tailnum", "--state", str(state), "--report", str(report_file)]
    command = [sys.executable, "-m", "lbgroup", "publish", *arguments, "--rate", "2000", str(FLIGHTS)]
    environment = clean_environment() | {"LBG_BROKER": broker.broker}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stderr is not None
    assert b"connected" in process.stderr.readline()
    for _ in range(600):
        if saved_position(state) > 0:
            break
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.05)
    process.terminate()
    output, errors = process.communicate(timeout=GUARD_S)
    assert process.returncode == 1
    assert b"stopped by SIGTERM" in errors
    assert b"goes on from" in errors
    done = json.loads(report_file.read_text())
    assert 0 < done["confirmed"] < 24_951
    assert done["confirmed"] == done["published"], "what was on its way is waited for"
    assert b"messages confirmed" in output
    command[command.index("--rate") : command.index("--rate") + 2] = []
    subprocess.run(command, env=environment, check=True, capture_output=True)
    again = json.loads(report_file.read_text())
    assert (again["confirmed"], again["runs"], again["maybe_twice"]) == (24_951, 2, 0)
    assert [epoch["publisher"] for epoch in again["epochs"]] == [done["publisher"], again["publisher"]]
    assert again["epochs"][0]["next_seq"] == done["next_seq"]
    assert sum(sum(epoch["next_seq"].values()) for epoch in again["epochs"]) == 24_951


def test_a_full_queue_is_named_off_a_terminal_and_in_group_show(
    lbg: Lbg, broker: Where, tmp_path: Path
) -> None:
    name = f"g{secrets.token_hex(4)}"
    spec = GroupSpec(name, name, hash_count=1, queue_count=1, queue_size_mb=1, client_username="guest")
    asyncio.run(declare_group(broker.broker, spec))
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        f'{{"k": "a", "pad": "{"x" * 10_000}"}}\n' * 3000
    )  # RabbitMQ accepts some behind the limit
    full = f"publishing to {name}: queue lbg.{name}.q.0 has no room; a full queue refuses messages, which wait in order"
    process = start_lbg("publish", "--group", name, "--key", "k", "--broker", broker.broker, str(rows))
    assert process.stderr is not None
    assert "connected" in process.stderr.readline()
    assert full in process.stderr.readline()
    problem = f"! lbg.{name}.q.0 is full ("
    for _ in range(100):  # RabbitMQ samples its statistics at intervals
        shown = lbg("group", "show", name, *broker.options)
        if problem in shown.out:
            break
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
    assert problem in shown.out
    process.terminate()
    process.communicate(timeout=GUARD_S)


def test_a_full_queue_is_named_on_a_terminal() -> None:
    class Publisher:
        full_queues = ("lbg.g.q.0", "lbg.g.q.1", "lbg.g.q.2", "lbg.g.q.3")
        accepted_count, confirmed_count = 2000, 1000

    text = counts_text(cast(GroupPublisher, Publisher()), 20.0)
    assert text == "2,000 read, 1,000 confirmed, 20/s [yellow]full: lbg.g.q.0, lbg.g.q.1, lbg.g.q.2, …[/]"


@pytest.mark.parametrize(
    ("file", "name"),
    [("a/flights.csv.gz", "flights"), ("-", "stdin"), ("/x/ü b.csv", "b"), ("..", "publisher")],
)
def test_a_publisher_is_called_after_its_file(file: str, name: str) -> None:
    assert default_name(file) == name


def test_the_example_publishes(broker: Where, group: str) -> None:
    example = FLIGHTS.parent / "publish.py"
    command = [sys.executable, str(example), broker.broker, group]
    assert subprocess.run(command, capture_output=True, check=True).stdout == b"1000 messages confirmed\n"
