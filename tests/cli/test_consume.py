"""`lbg consume` with a broker, a publisher and a group, each a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import fields
from pathlib import Path

import pytest

from lbg_sidecar import MemberSettings
from lbgroup.consume import consume
from testing.broker.embedded import free_port
from testing.command_line import Lbg, Where, start_lbg
from testing.output_documents import checked
from testing.rabbitmq.node import wait_until
from testing.waiting import GUARD_S

ROWS = 300
ECHO = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    verdict = "drop" if message["seq"] == 0 and message["key"] == "k1" else "ack"
    print(json.dumps({"id": message["id"], "verdict": verdict, "reason": "no such account"}), flush=True)
"""


@pytest.fixture
def group(lbg: Lbg, broker: Where, unique: str) -> str:
    assert lbg("group", "create", unique, "--no-user", "--broker", broker.broker).status == 0
    return unique


@pytest.fixture
def published(lbg: Lbg, broker: Where, group: str, tmp_path: Path) -> Path:
    """`ROWS` messages of 10 keys are in the group's queues; the report of it."""
    rows, report = tmp_path / "rows.jsonl", tmp_path / "published.json"
    rows.write_text(
        "".join(json.dumps({"key": f"k{number % 10}", "n": number}) + "\n" for number in range(ROWS))
    )
    done = lbg(
        *("publish", "--group", group, "--key", "key", "--broker", broker.broker, "--report", str(report)),
        str(rows),
    )
    assert done.status == 0, done.err
    return report


class Member:
    """`lbg consume` as a process."""

    def __init__(self, broker: Where, group: str, *arguments: str) -> None:
        environment = {"LBG_BROKER": broker.broker}
        self.process = start_lbg("consume", "--group", group, *arguments, environment=environment)

    def line(self) -> dict[str, object]:
        assert self.process.stdout is not None
        found: dict[str, object] = checked("consume", self.process.stdout.readline())
        return found

    def leave(self) -> tuple[int, str]:
        """SIGTERM; its exit status and what it wrote to standard error."""
        os.kill(self.process.pid, signal.SIGTERM)
        _, err = self.process.communicate(timeout=GUARD_S)
        assert "Traceback" not in err
        return self.process.returncode, err


def test_without_a_command_messages_are_printed_in_order_per_key_and_leave_the_queues(
    lbg: Lbg, broker: Where, group: str, published: Path
) -> None:
    member = Member(broker, group)
    seen = [member.line() for _ in range(ROWS)]
    by_key: dict[object, list[int]] = {}
    for message in seen:
        by_key.setdefault(message["key"], []).append(json.loads(str(message["data"]))["n"])
    assert len(by_key) == 10
    assert all(numbers == sorted(numbers) for numbers in by_key.values())
    status, _ = member.leave()
    assert status == 0
    shown = json.loads(lbg("group", "show", group, "--json", *broker.options).out)
    assert shown["ready"] == 0


def test_a_command_gets_every_message_and_its_refusals_become_dead_letters(
    lbg: Lbg, broker: Where, group: str, published: Path
) -> None:
    judging = ("validate", "--json", "--group", group, "--expect", str(published))
    validator = start_lbg(*judging, environment={"LBG_BROKER": broker.broker})
    assert validator.stdout is not None
    while "listening" not in validator.stdout.readline():
        pass
    member = Member(broker, group, "--republish", "--name", "echo", "--", sys.executable, "-c", ECHO)
    out, _ = validator.communicate(timeout=GUARD_S)
    report = json.loads(out.splitlines()[-1])
    shown = json.loads(lbg("group", "show", group, "--json", *broker.options).out)
    member.leave()
    assert shown["members"][0]["name"] == "echo"
    assert [queue["active_member"] for queue in shown["queues"]].count("echo") >= 1
    assert shown["dead_letters"] == 1
    assert (report["order_errors"], report["duplicated"]) == (0, 0)


def test_a_reader_that_goes_away_ends_it_without_losing_what_it_had_not_read(
    lbg: Lbg, broker: Where, group: str, published: Path
) -> None:
    member = Member(broker, group)
    member.line()
    assert member.process.stdout is not None
    member.process.stdout.close()
    assert member.process.wait(timeout=GUARD_S) == 1
    assert member.process.stderr is not None
    assert "Traceback" not in member.process.stderr.read()
    shown = json.loads(lbg("group", "show", group, "--json", *broker.options).out)
    assert shown["ready"] > 0
    assert shown["unacked"] == 0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--quiet", "--", "cat"], 2, "--quiet and --work go without a command"),
        (
            ["--concurrency", "0"],
            2,
            "Invalid value for '--concurrency': '0' must be a whole number of at least 1",
        ),
        (
            ["--park-max-keys", "0"],
            2,
            "Invalid value for '--park-max-keys': '0' must be a whole number of at least 1",
        ),
        (
            ["--park-max-messages", "0"],
            2,
            "Invalid value for '--park-max-messages': '0' must be a whole number of at least 1",
        ),
        (
            ["--park-max-mb", "0"],
            2,
            "Invalid value for '--park-max-mb': '0' must be a whole number of at least 1",
        ),
        (["--order", "fair"], 2, "'fair' is not one of 'key', 'queue'"),
        (["--", "/no/such/command"], 1, "cannot run '/no/such/command'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_setting_is_one_clear_line(
    lbg: Lbg, broker: Where, group: str, arguments: list[str], status: int, words: str
) -> None:
    said = lbg("consume", "--group", group, "--broker", broker.broker, *arguments)
    assert said.status == status
    assert words in said.last_line


def test_a_group_or_a_broker_that_is_not_there_is_named(lbg: Lbg, broker: Where) -> None:
    said = lbg("consume", "--group", "nobody", "--broker", broker.broker)
    assert (said.status, "there is no group 'nobody'" in said.last_line) == (1, True)
    nowhere = lbg(
        "consume", "--group", "g", "--broker", "amqp://u:s3cret@127.0.0.1:1/", "--connect-timeout", "0.1"
    )
    assert nowhere.status == 1
    assert "127.0.0.1:1" in nowhere.last_line
    assert "s3cret" not in nowhere.err


def test_a_member_whose_group_is_deleted_says_so_and_nothing_of_exchanges(
    lbg: Lbg, broker: Where, group: str
) -> None:
    member = Member(broker, group, "--name", "m1", "--quiet")
    assert member.process.stderr is not None
    lines = iter(member.process.stderr.readline, "")
    assert any("live members: 1 (index 0)" in line for line in lines)
    delete = ("group", "delete", group, "--force", "--yes", "--no-user", "--broker", broker.broker)
    assert lbg(*delete).status == 0
    again = f"m1: group '{group}' was deleted; trying again"
    seen: list[str] = []
    for line in lines:
        seen.append(line)
        if again in line:
            break
    assert any(f"m1: group '{group}' was deleted; 0 running calls are aborted" in line for line in seen)
    assert not any("NOT_FOUND" in line or "exchange" in line for line in seen), seen
    assert lbg("group", "create", group, "--no-user", "--broker", broker.broker).status == 0
    assert any("m1: connected again after " in line for line in lines)
    assert member.leave()[0] == 0


def test_metrics_are_served_with_the_group_and_promtool_accepts_them(
    broker: Where, group: str, published: Path
) -> None:
    port = free_port()
    member = Member(broker, group, "--metrics", f"127.0.0.1:{port}")
    for _ in range(ROWS):
        member.line()

    def scrape() -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=GUARD_S) as answer:
                return answer.read().decode()
        except OSError:
            return ""

    acked = f'lbg_messages_acked_total{{group="{group}"}} {ROWS}.0'
    wait_until(lambda: acked in scrape(), timeout_s=GUARD_S)
    judged = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape(), capture_output=True, text=True, check=False
    )
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")
    status, err = member.leave()
    assert status == 0, err


def test_metrics_on_an_address_that_is_none_or_taken_are_one_line(
    lbg: Lbg, broker: Where, group: str
) -> None:
    wrong = lbg("consume", "--group", group, "--broker", broker.broker, "--metrics", "here")
    assert wrong.status == 2
    assert wrong.last_line == "lbg: error: Invalid value for --metrics: must be HOST:PORT or unix:/PATH"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = lbg("consume", "--group", group, "--broker", broker.broker, "--metrics", address)
    assert refused.status == 1
    assert (
        f"--metrics is {address}, but the address cannot be used: Address already in use ("
        in refused.last_line
    )


def test_a_log_of_json_has_one_object_a_line(broker: Where, group: str, published: Path) -> None:
    member = Member(broker, group, "--log-format", "json")
    for _ in range(ROWS):
        member.line()
    status, err = member.leave()
    assert status == 0
    lines = [json.loads(line) for line in err.splitlines() if not line.startswith("connected to ")]
    assert any("live members: 1" in line["message"] for line in lines)
    assert all({"time", "level", "message"} <= line.keys() for line in lines)


CONFIGURED = """
broker = "{broker}"
group = "{group}"
name = "of-the-file"
concurrency = 3
max_handoff_s = 2.5
shutdown_grace_s = 4
log_format = "json"
metrics = "127.0.0.1:0"
command = "{python} -c '{program}'"
"""


def test_settings_come_from_a_file_and_options_take_precedence(
    broker: Where, group: str, published: Path, tmp_path: Path
) -> None:
    program, noted = tmp_path / "echo.py", tmp_path / "noted"
    program.write_text(
        ECHO.replace("import json, sys\n", f"import json, sys\nopen({str(noted)!r}, 'w').close()\n")
    )
    config = tmp_path / "consume.toml"
    run = f'import runpy; runpy.run_path(\\"{program}\\")'
    config.write_text(
        CONFIGURED.format(broker=broker.broker, group=group, python=sys.executable, program=run)
    )
    process = start_lbg("consume", "--config", str(config), "--name", "of-the-command-line")
    assert process.stderr is not None
    lines = (json.loads(line) for line in process.stderr)
    served = next(line for line in lines if line.get("event") == "taken_over")
    assert served["member"] == "of-the-command-line"
    wait_until(noted.exists, timeout_s=GUARD_S)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=GUARD_S)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('concurrency = "x"', "concurrency in {} is 'x', but must be a whole number of at least 1"),
        ('order = "odd"', "order in {} is 'odd', but must be one of key, queue"),
        (
            "target = 'http://h/'",
            "target in {} is not a setting of lbg consume: remove it or correct its name",
        ),
        ("config = 'x'", "config in {} is not a setting of lbg consume: remove it or correct its name"),
        ('command = "\'"', 'command in {} is "\'", but cannot be split: No closing quotation'),
        ("x = [", "--config {} is not TOML: Invalid value (at end of document)"),
    ],
)
def test_a_wrong_file_is_one_line_that_names_it(lbg: Lbg, tmp_path: Path, line: str, words: str) -> None:
    config = tmp_path / "consume.toml"
    config.write_text(f'group = "g"\n{line}\n')
    said = lbg("consume", "--config", str(config))
    assert said.status == 2
    assert said.last_line == f"lbg: error: {words.format(config)}"


def test_every_setting_of_a_member_may_be_in_the_file(tmp_path: Path) -> None:
    """As in that of a sidecar."""
    names = [one.name for one in fields(MemberSettings) if one.name != "broker"]
    config = tmp_path / "consume.toml"
    of_enums = {"order": "queue", "when_exhausted": "dead-letter"}
    texts = {"group": "g", "name": "m", "journal": "j", "commits": "c"} | of_enums
    config.write_text(
        "".join(
            f"{name} = {json.dumps(True if name == 'republish' else texts.get(name, 7))}\n" for name in names
        )
    )
    context = consume.make_context("consume", ["--config", str(config)])
    assert {name: context.params[name] for name in of_enums} == of_enums
    assert (context.params["group"], context.params["concurrency"]) == ("g", 7)
    assert [context.params[f"park_max_{unit}"] for unit in ("keys", "messages", "mb")] == [7, 7, 7]
