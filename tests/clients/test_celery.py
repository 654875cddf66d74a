"""Celery, unmodified and with its defaults, on the embedded broker: tasks, results, remote control, events."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from testing import ROOT
from testing.broker.embedded import EmbeddedBroker
from testing.broker.engines import eventually
from testing.command_line import clean_environment
from testing.needs import repeated
from testing.waiting import GUARD_S

CELERY = ("celery", "-A", "testing.amqp.celery_tasks")
TASKS = 30


def environment(broker: EmbeddedBroker, **settings: str) -> dict[str, str]:
    return {
        **clean_environment(),
        "CELERY_BROKER_URL": broker.url,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        **settings,
    }


@contextmanager
def running(
    module: tuple[str, ...], broker: EmbeddedBroker, log: Path, *, until: bytes, **settings: str
) -> Iterator[None]:
    """A process of Celery's, from when its output says so until the end of the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            cwd=log.parent,
            env=environment(broker, **settings),
            stdout=output,
            stderr=output,
        )
    try:
        assert eventually(lambda: until in log.read_bytes(), timeout_s=GUARD_S), log.read_text()
        yield
    finally:
        process.terminate()
        process.wait(GUARD_S)


def worker(name: str) -> tuple[str, ...]:
    return (*CELERY, "worker", "-n", f"{name}@here", "-c", "1", "--task-events", "--loglevel", "info")


def ask(broker: EmbeddedBroker, tasks: int, *, workers: int = 1, **settings: str) -> dict[str, object]:
    """Have tasks carried out, by a process of its own that waits for so many workers."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from testing.amqp.celery_tasks import main; main()",
            str(tasks),
            str(workers),
        ],
        env=environment(broker, **settings),
        capture_output=True,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_workers_carry_out_tasks_and_are_controlled_and_watched(
    own_broker: EmbeddedBroker, tmp_path: Path
) -> None:
    one, two, events = (tmp_path / f"{name}.log" for name in ("one", "two", "events"))
    with (
        running(worker("one"), own_broker, one, until=b" ready."),
        running(worker("two"), own_broker, two, until=b" ready."),
        running((*CELERY, "events", "--dump"), own_broker, events, until=b" heartbeat: "),
    ):
        found = ask(own_broker, TASKS, workers=2)
        assert eventually(lambda: events.read_bytes().count(b"task succeeded") == TASKS + 1)
    sums = [2 * number for number in range(TASKS)]
    assert found == {"sums": sums, "retries": 2, "workers": ["one@here", "two@here"]}
    assert b"PRECONDITION_FAILED" not in one.read_bytes() + two.read_bytes()


@pytest.mark.parametrize("queue_type", repeated(["quorum", "classic"]))
def test_a_worker_goes_on_after_the_broker_was_killed(
    own_broker: EmbeddedBroker, tmp_path: Path, queue_type: str
) -> None:
    """With quorum queues a task that is to wait goes through queues of delays, whose messages expire."""
    log, kind = tmp_path / "one.log", {"QUEUE_TYPE": queue_type}
    with running(worker("one"), own_broker, log, until=b" ready.", **kind):
        ask(own_broker, 1, **kind)
        own_broker.kill()
        own_broker.start()
        assert ask(own_broker, 1, **kind)["sums"] == [0]
