"""`lbg publish --state` after its state, its input or both were taken back from a copy, and after kill -9.

A foreign client consumes, and drops what it has seen as members do: by publisher, hash and sequence.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
import pytest

from lbg_core.group import GroupSpec
from testing.admin.group_on_broker import declare_group
from testing.command_line import Lbg, Where, clean_environment
from testing.waiting import GUARD_S

QUEUES = 4


@pytest.fixture
def group(broker: Where) -> str:
    name = f"g{secrets.token_hex(4)}"
    spec = GroupSpec(
        name, name, hash_count=20, queue_count=QUEUES, queue_size_mb=100, client_username="guest"
    )
    asyncio.run(declare_group(broker.broker, spec))
    return name


@dataclass
class Consumer:
    """A foreign client of the group's queues. `processed`: rows in the order in which they were first new to it."""

    url: str
    group: str
    numbers: dict[tuple[str, int, int], bytes] = field(default_factory=dict)
    processed: list[int] = field(default_factory=list)

    def take(self, until: Callable[[list[int]], bool], *, within_s: float = GUARD_S) -> list[int]:
        """Rows in the queues until then; those among them that are no repeats."""
        fresh: list[int] = []

        def heard(channel: Any, method: Any, properties: Any, body: bytes) -> None:
            hash_ = int(method.routing_key.split(".")[1])
            number = (properties.headers["lbg-publisher"], hash_, properties.headers["lbg-seq"])
            assert self.numbers.setdefault(number, body) == body, "a number has two bodies"
            if number not in seen:
                seen.add(number)
                fresh.append(json.loads(body)["n"])

        seen = set(self.numbers)
        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        channel = connection.channel()
        for queue in range(QUEUES):
            channel.basic_consume(f"lbg.{self.group}.q.{queue}", heard, auto_ack=True)
        deadline = time.monotonic() + within_s
        while not until(fresh) and time.monotonic() < deadline:
            connection.process_data_events(time_limit=0.1)
        connection.process_data_events(time_limit=0.1)
        connection.close()
        self.processed += fresh
        return fresh


@pytest.fixture
def consumer(broker: Where, group: str) -> Iterator[Consumer]:
    return Consumer(broker.broker, group)


def write_rows(path: Path, rows: range) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps({"k": f"k{n % 7}", "n": n}) + "\n" for n in rows)


def in_order(rows: list[int]) -> bool:
    by_key: dict[int, list[int]] = {}
    for n in dict.fromkeys(rows):
        by_key.setdefault(n % 7, []).append(n)
    return all(each == sorted(each) for each in by_key.values())


def test_rows_that_are_new_after_a_restore_are_delivered(
    lbg: Lbg, broker: Where, group: str, consumer: Consumer, tmp_path: Path
) -> None:
    """State and input are taken back from a copy, and the input gets 100 other rows than it had got."""
    rows, state = tmp_path / "rows.jsonl", tmp_path / "state"
    command = ("publish", "--group", group, "--key", "k", "--state", str(state), "--broker", broker.broker)
    write_rows(rows, range(200))
    assert lbg(*command, str(rows)).status == 0
    for file in (rows, state):
        shutil.copy(file, f"{file}.copy")
    write_rows(rows, range(200, 300))
    assert lbg(*command, str(rows)).status == 0
    assert sorted(consumer.take(lambda rows: len(rows) == 300)) == list(range(300))
    for file in (rows, state):
        shutil.copy(f"{file}.copy", file)
    write_rows(rows, range(1000, 1100))
    said = lbg(*command, str(rows))
    assert said.status == 0
    assert "300 of 300 messages confirmed" in said.out
    assert sorted(consumer.take(lambda rows: len(rows) == 100)) == list(range(1000, 1100))
    assert "all that follow are new messages" in said.err
    assert "100 were new to the state saved at 20" in said.out


def test_an_older_state_repeats_rows_and_says_so(
    lbg: Lbg, broker: Where, group: str, consumer: Consumer, tmp_path: Path
) -> None:
    rows, state = tmp_path / "rows.jsonl", tmp_path / "state"
    command = ("publish", "--group", group, "--key", "k", "--state", str(state), "--broker", broker.broker)
    write_rows(rows, range(50))
    assert lbg(*command, str(rows)).status == 0
    shutil.copy(state, tmp_path / "copy")
    write_rows(rows, range(50, 80))
    assert lbg(*command, str(rows)).status == 0
    shutil.copy(tmp_path / "copy", state)
    write_rows(rows, range(80, 100))
    said = lbg(*command, str(rows))
    assert said.status == 0
    got = consumer.take(lambda rows: len(rows) == 130)
    assert sorted(got) == sorted([*range(100), *range(50, 80)])
    assert in_order(got)
    assert "those of them that a run published after this state was saved are repeated" in said.err
    assert "50 were new to the state saved at 20" in said.out


def test_a_state_copied_while_it_is_written_gives_no_number_another_body(
    broker: Where, group: str, consumer: Consumer, tmp_path: Path
) -> None:
    """Killed at random moments, and in between state, input or both are taken back; the last run ends well."""
    source = random.Random(47)
    rows, state = tmp_path / "rows.jsonl", tmp_path / "state"
    arguments = ["--group", group, "--key", "k", "--state", str(state), "--rate", "1500", str(rows)]
    command = [sys.executable, "-m", "lbgroup", "publish", *arguments]
    environment = clean_environment() | {"LBG_BROKER": broker.broker}
    copies: list[tuple[bytes | None, bytes]] = []
    written, kills, refused, restores = 0, 0, 0, 0
    for _ in range(7):
        write_rows(rows, range(written, written + 300))
        written += 300
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        )
        assert process.stderr is not None
        first = process.stderr.readline()
        for _ in range(source.randrange(1, 6)):
            copies.append((state.read_bytes() if state.exists() else None, rows.read_bytes()))
            try:
                process.wait(source.random() * 0.1)
            except subprocess.TimeoutExpired:
                continue
        if process.poll() is None:
            process.kill()
            kills += 1
        _, told = process.communicate()
        refused += b"Give the same input" in first + told
        what = source.randrange(4)
        state_then, rows_then = source.choice(copies)
        restores += what < 3
        if what in (0, 1) and state_then is not None:
            state.write_bytes(state_then)
        if what in (1, 2):
            rows.write_bytes(rows_then)
        consumer.take(lambda rows: False, within_s=0.3)
    command[command.index("--rate") : command.index("--rate") + 2] = []
    last = subprocess.run(command, env=environment, check=False, capture_output=True)
    if last.returncode:  # the input is not the state's any more: a state of its own publishes all of it
        assert b"Give the same input, or another state file" in last.stderr
        state.unlink()
        subprocess.run(command, env=environment, check=True, capture_output=True)
    there = [json.loads(line)["n"] for line in rows.read_text().splitlines()]
    consumer.take(lambda rows: set(there) <= {*consumer.processed, *rows})
    assert set(there) <= set(consumer.processed), "confirmed, and nobody processed it"
    assert in_order([n for n in consumer.processed if n in set(there)])
    assert kills >= 4
    assert restores >= 4
    print(f"{kills} kills, {restores} restores, {refused} refused inputs")
