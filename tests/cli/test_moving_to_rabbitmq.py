"""A group moves from the embedded broker to RabbitMQ as docs/embedded-broker.md says: nothing lost or reordered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from testing.broker.embedded import EmbeddedBroker
from testing.command_line import Lbg, Where, start_lbg
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S, whole_lines

ROWS, KEYS = 3000, 50


class Side:
    """One of the two brokers, with a group of the same name and attributes."""

    def __init__(self, lbg: Lbg, where: Where, group: str, place: Path) -> None:
        self._lbg, self._where, self._group, self._place = lbg, where, group, place
        created = lbg("group", "create", group, "--queue-count", "4", *where.options)
        assert created.status == 0, created.err

    def publish(self, rows: Path, state: Path, *more: str) -> subprocess.Popen[str]:
        what = ("--group", self._group, "--key", "k", "--state", str(state), str(rows))
        return start_lbg("publish", *more, "--broker", self._where.broker, *what)

    def consume(self, *more: str) -> subprocess.Popen[str]:
        """Messages of the members, a line each, are in the file of this side."""
        with self._place.open("w") as out:
            return start_lbg(
                "consume", "--group", self._group, "--broker", self._where.broker, *more, stdout=out
            )

    def waiting(self) -> int:
        """Messages ready, or not acknowledged."""
        shown = json.loads(self._lbg("group", "show", self._group, "--json", *self._where.options).out)
        return int(shown["ready"]) + int(shown["unacked"])

    def count(self) -> int:
        return self._place.read_text().count("\n")

    def got(self) -> list[dict[str, int]]:
        return [json.loads(json.loads(line)["data"]) for line in whole_lines(self._place)]


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.05)


def end(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGTERM)
    process.wait(GUARD_S)


def test_publishers_first_and_consumers_when_the_old_queues_are_empty(
    lbg: Lbg, rabbitmq: RabbitNode, unique: str, tmp_path: Path
) -> None:
    rows, state = tmp_path / "rows.jsonl", tmp_path / "publisher.state"
    rows.write_text("".join(json.dumps({"k": n % KEYS, "n": n}) + "\n" for n in range(ROWS)))
    with EmbeddedBroker(tmp_path / "data") as broker:
        old = Side(lbg, Where(broker.url, broker.management_url), unique, tmp_path / "old.jsonl")
        new = Side(lbg, Where(rabbitmq.new_vhost(), rabbitmq.management_url), unique, tmp_path / "new.jsonl")
        first = old.publish(rows, state, "--rate", "400")
        slow = old.consume("--concurrency", "8", "--work", "0.04")
        wait_for(lambda: old.count() + old.waiting() > 400)
        end(first)
        assert old.waiting() > 0, "the old group has a backlog when its publisher leaves"
        second = new.publish(rows, state)
        second.communicate(timeout=GUARD_S)
        assert second.returncode == 0
        assert new.waiting() > 0
        wait_for(lambda: old.waiting() == 0)
        end(slow)
        fast = new.consume()
        wait_for(lambda: new.waiting() == 0)
        end(fast)
    of_key: dict[int, list[int]] = defaultdict(list)
    for row in [*old.got(), *new.got()]:
        of_key[row["k"]].append(row["n"])
    assert sorted(number for numbers in of_key.values() for number in numbers) == list(range(ROWS))
    assert all(numbers == sorted(numbers) for numbers in of_key.values())
    assert min(len(old.got()), len(new.got())) > 100
