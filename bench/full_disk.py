"""`make full-disk`: fill the embedded broker's disk, kill it, start it, drain it, and see whether anything is lost.

    python -m bench.full_disk --on tmpfs --cycles 100
    python -m bench.full_disk --on ext4 --cycles 100        # a file that is mounted; as root

A pika publisher sends until the broker blocks it; another process holds the free space at 0 until the end of the cycle.
The broker is ended by kill -9 (every fourth time by SIGTERM), started on the full disk, and a pika consumer
acknowledges the whole backlog, in every third cycle through a second kill -9. The publisher sends again what has no
confirm when its connection goes. Then the disk has room again, and the publisher must go on by itself.

Judged from what pika saw: a message that was confirmed and never delivered is lost. Exit status 1 if there is any, or
if the broker did not start, a backlog was not drained, or SIGTERM did not end with 0.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pika
import pika.exceptions

from support.embedded import EmbeddedBroker
from support.small_disk import LoopDisk, SmallDisk

__all__ = ["Outcome", "play"]

DISK_KB = 32_000
QUEUE = "q"
BODY_BYTES = (40, 2_000, 30_000)
PATIENCE_S = 300.0
"""For what a broker does at once: long, as the machine may be busy."""

Disk = SmallDisk | LoopDisk


@dataclass
class Outcome:
    """The clients' record of confirms and deliveries."""

    cycles: int = 0
    confirmed: set[int] = field(default_factory=set)
    delivered: set[int] = field(default_factory=set)
    deliveries: int = 0
    kills: int = 0
    stops: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def lost(self) -> set[int]:
        return self.confirmed - self.delivered

    def __str__(self) -> str:
        return (
            f"{self.cycles} cycles, {self.kills} kill -9, {self.stops} SIGTERM: {len(self.confirmed):,} confirmed, "
            f"{self.deliveries:,} delivered, {len(self.lost)} confirmed and lost, {len(self.problems)} problems"
        )


class PikaPublisher(threading.Thread):
    """Publishes numbered messages, one confirm at a time, over as many connections as it takes."""

    def __init__(self, port: int, outcome: Outcome, seed: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._outcome = outcome
        self._random = random.Random(seed)
        self._next = 0
        self.wanted = threading.Event()
        self.idle = threading.Event()
        self.blocked = threading.Event()
        self.over = False

    def run(self) -> None:
        while not self.over:
            with suppress(pika.exceptions.AMQPError, OSError):
                self._publish()
            time.sleep(0.05)

    def _publish(self) -> None:
        connection = connect(self._port)
        try:
            self._publish_over(connection)
        finally:
            release(connection)

    def _publish_over(self, connection: Any) -> None:
        # The blocking connection's own callbacks come between calls only, and a publish that is blocked is one call.
        connection._impl.add_on_connection_blocked_callback(lambda *_: self.blocked.set())
        connection._impl.add_on_connection_unblocked_callback(lambda *_: self.blocked.clear())
        channel = connection.channel()
        channel.confirm_delivery()
        while not self.over:
            if not self.wanted.is_set():
                self.idle.set()
                connection.process_data_events(0.05)
                continue
            self.idle.clear()
            body = b"%d." % self._next + b"." * self._random.choice(BODY_BYTES)
            channel.basic_publish("", QUEUE, body, pika.BasicProperties(delivery_mode=2))
            self._outcome.confirmed.add(self._next)
            self._next += 1


class Play:
    """One broker on one disk."""

    def __init__(self, disk: Disk, logs: Path, seed: int) -> None:
        self._disk = disk
        self._random = random.Random(seed)
        self.outcome = Outcome()
        self.broker = EmbeddedBroker(
            disk.folder / "data",
            under=disk.under,
            log_file=logs / "broker.log",
            settings={"disk_retry_s": 0.1, "close_timeout_s": 1.0},
        )
        self.publisher = PikaPublisher(self.broker.port, self.outcome, seed)

    def begin(self) -> None:
        self.broker.start()
        connection = connect(self.broker.port)
        connection.channel().queue_declare(QUEUE, durable=True)
        connection.close()
        self.publisher.start()

    def end(self) -> None:
        self.publisher.over = True
        self.broker.kill()  # which ends a publish that is blocked
        if self.publisher.is_alive():
            self.publisher.join(PATIENCE_S)

    def cycle(self, number: int) -> None:
        """Fill, end, start, drain."""
        publisher, outcome = self.publisher, self.outcome
        publisher.wanted.set()
        with self._disk.filled() if number % 2 else self._slowly_filled():
            self._expect(publisher.blocked.is_set, "the publisher was not blocked")
            self._end(sigterm=number % 4 == 3)
            publisher.wanted.clear()
            self.broker.start()
            half = len(outcome.confirmed - outcome.delivered) // 2 if number % 3 == 0 else None
            if half:
                self._drain(upto=half)
                self._end(sigterm=False)
                self.broker.start()
            self._drain(upto=None)
        before = len(outcome.confirmed)
        publisher.wanted.set()
        self._expect(lambda: len(outcome.confirmed) > before, "the publisher did not go on by itself")
        outcome.cycles += 1

    @contextmanager
    def _slowly_filled(self) -> Iterator[None]:
        """The broker fills its disk itself, and then the other process comes."""
        self._expect(self.publisher.blocked.is_set, "the publisher was not blocked")
        with self._disk.filled():
            yield

    def _end(self, *, sigterm: bool) -> None:
        if sigterm:
            self.outcome.stops += 1
            status = self.broker.stop()
            if status != 0:
                self.outcome.problems.append(f"SIGTERM ended with {status}")
        else:
            self.outcome.kills += 1
            self.broker.kill()
        self.publisher.blocked.clear()

    def _drain(self, *, upto: int | None) -> None:
        """Acknowledge messages, until there are none, or so many."""
        outcome = self.outcome
        connection = connect(self.broker.port)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=self._random.choice((1, 10, 300)))
        deadline = time.monotonic() + PATIENCE_S
        count = 0
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=1.0):
            if method is not None:
                outcome.delivered.add(int(body.split(b".", 1)[0]))
                outcome.deliveries += 1
                channel.basic_ack(method.delivery_tag)
                count += 1
                deadline = time.monotonic() + PATIENCE_S
                if count == upto:
                    break
            elif upto is not None or (self.publisher.idle.is_set() and not self._waiting(connection)):
                break
            elif time.monotonic() > deadline:
                outcome.problems.append(
                    f"{len(outcome.lost)} messages were not delivered in {PATIENCE_S:.0f} s"
                )
                break
        connection.close()

    def _waiting(self, connection: Any) -> int:
        channel = connection.channel()
        count: int = channel.queue_declare(QUEUE, passive=True).method.message_count
        channel.close()
        return count

    def _expect(self, is_so: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                raise AssertionError(otherwise)
            time.sleep(0.02)


def connect(port: int) -> Any:
    """A pika connection that says nothing by itself."""
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port, heartbeat=0))


def release(connection: Any) -> None:
    """Close a pika connection and its sockets, which pika leaves open where it saw its end in the middle of a call."""
    with suppress(pika.exceptions.AMQPError, OSError):
        connection.close()
    connection._cleanup()


def play(disk: Disk, logs: Path, *, cycles: int, seed: int) -> Outcome:
    """Play so many cycles on an empty disk."""
    stage = Play(disk, logs, seed)
    try:
        stage.begin()
        for number in range(cycles):
            stage.cycle(number)
            if number % 10 == 9:
                print(f"cycle {number + 1}: {len(stage.outcome.confirmed):,} confirmed", flush=True)
        with disk.filled():
            stage.publisher.wanted.clear()
            stage._drain(upto=None)
    except Exception as error:
        stage.outcome.problems.append(f"cycle {stage.outcome.cycles}: {error!r}")
    finally:
        stage.end()
    return stage.outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="bench.full_disk", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", choices=("tmpfs", "ext4"), default="tmpfs")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--disk-kb", type=int, default=DISK_KB)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    arguments = parser.parse_args()
    if arguments.on == "ext4" and (os.geteuid() != 0 or shutil.which("mkfs.ext4") is None):
        print("ext4 is mounted from a file: it takes root and mkfs.ext4", file=sys.stderr)
        return 2
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lbg-full-disk-")))
        kind = LoopDisk if arguments.on == "ext4" else SmallDisk
        try:
            disk = stack.enter_context(kind(folder / "disk", arguments.disk_kb))
        except (AssertionError, subprocess.CalledProcessError) as error:
            print(f"cannot mount {arguments.on}: {error}", file=sys.stderr)
            return 2
        print(f"{arguments.on} of {arguments.disk_kb:,} KB, seed {arguments.seed}", flush=True)
        outcome = play(disk, folder, cycles=arguments.cycles, seed=arguments.seed)
        bad = bool(outcome.lost or outcome.problems)
        for problem in outcome.problems:
            print(problem, file=sys.stderr)
        if bad:
            print((folder / "broker.log").read_text()[-4000:], file=sys.stderr)
    print(f"{outcome}; {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
