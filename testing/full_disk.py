"""`make full-disk`: fill the embedded broker's disk, kill it, start it, drain it, and see whether anything is lost.

    python -m testing.full_disk --on tmpfs --cycles 100
    python -m testing.full_disk --on ext4 --cycles 100        # a file that is mounted; as root
    python -m testing.full_disk --consumer members            # two members of a group, and not pika
    python -m testing.full_disk --quota                       # the broker is told EDQUOT, not ENOSPC; with a C compiler

A pika publisher sends until the broker blocks it; another process holds the free space at 0 until the end of the cycle.
The broker is ended by kill -9 (every fourth time by SIGTERM), started on the full disk, and a consumer acknowledges the
whole backlog, in every third cycle through a second kill -9. The publisher sends again what has no confirm when its
connection goes. Then the disk has room again, and the publisher must go on by itself.

The consumer is pika, or two members (a program with a callable each), which join on the full disk, share its queues out
and are ended by SIGTERM on it.

Judged from what pika and the callables saw: a message that was confirmed and never delivered is lost. Exit status 1 if
there is any, or if the broker did not start, a backlog was not drained, or SIGTERM did not end with 0.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pika
import pika.exceptions

from lbg_core.group import Names, hash_of
from lbg_core.group.names import HEADER_KEY, routing_key
from testing import ROOT
from testing.broker.embedded import EmbeddedBroker
from testing.broker.small_disk import LoopDisk, SmallDisk, as_quota
from testing.command_line import clean_environment
from testing.promises.judge import FINISHED

__all__ = ["Outcome", "play"]

DISK_KB = 32_000
QUEUE = "q"
GROUP = "g"
MEMBERS = QUEUES = 2
HASHES = 100
KEYS = 50
CALL_MS = 20
BODY_BYTES = (40, 2_000, 30_000)
REBALANCE_DELAY_S = 0.5
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

    def not_drained(self) -> None:
        self.problems.append(f"{len(self.lost)} messages were not delivered in {PATIENCE_S:.0f} s")

    def __str__(self) -> str:
        return (
            f"{self.cycles} cycles, {self.kills} kill -9, {self.stops} SIGTERM: {len(self.confirmed):,} confirmed, "
            f"{self.deliveries:,} delivered, {len(self.lost)} confirmed and lost, {len(self.problems)} problems"
        )


class PikaPublisher(threading.Thread):
    """Publishes numbered messages, one confirm at a time, over as many connections as it takes."""

    def __init__(self, port: int, consumer: Consumer, outcome: Outcome, seed: int) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._address = consumer.address
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
            key = f"key-{self._next % KEYS}"
            filler = "." * self._random.choice(BODY_BYTES)
            body = json.dumps({"n": self._next, "key": key, "filler": filler})
            properties = pika.BasicProperties(delivery_mode=2, headers={HEADER_KEY: key})
            channel.basic_publish(*self._address(key), body, properties)
            self._outcome.confirmed.add(self._next)
            self._next += 1


class Consumer(Protocol):
    """Consumer of the backlog."""

    def declare(self) -> None:
        """Make what is published to."""

    def address(self, key: str) -> tuple[str, str]:
        """Exchange and routing key of a message."""

    def waiting(self) -> int:
        """Messages that are in the queues."""

    def drain(self, *, upto: int | None, is_over: Callable[[], bool]) -> None:
        """Acknowledge messages, until it is over, or so many."""

    def close(self) -> None:
        """End what still runs."""


class PikaConsumer:
    """One consumer of one queue, over a connection for each time."""

    def __init__(self, broker: EmbeddedBroker, outcome: Outcome, seed: int) -> None:
        self._broker = broker
        self._outcome = outcome
        self._random = random.Random(seed)

    def declare(self) -> None:
        connection = connect(self._broker.port)
        connection.channel().queue_declare(QUEUE, durable=True)
        connection.close()

    def address(self, key: str) -> tuple[str, str]:
        return "", QUEUE

    def waiting(self) -> int:
        connection = connect(self._broker.port)
        count: int = connection.channel().queue_declare(QUEUE, passive=True).method.message_count
        connection.close()
        return count

    def drain(self, *, upto: int | None, is_over: Callable[[], bool]) -> None:
        outcome = self._outcome
        connection = connect(self._broker.port)
        channel = connection.channel()
        channel.basic_qos(prefetch_count=self._random.choice((1, 10, 300)))
        deadline = time.monotonic() + PATIENCE_S
        count = 0
        for method, _, body in channel.consume(QUEUE, inactivity_timeout=1.0):
            if method is not None:
                outcome.delivered.add(json.loads(body)["n"])
                outcome.deliveries += 1
                channel.basic_ack(method.delivery_tag)
                count += 1
                deadline = time.monotonic() + PATIENCE_S
                if count == upto:
                    break
            elif upto is not None or is_over():
                break
            elif time.monotonic() > deadline:
                outcome.not_drained()
                break
        connection.close()

    def close(self) -> None:
        """Nothing of it runs between drains."""


class MemberConsumers:
    """Members of a group, which join when there is something to drain and leave by SIGTERM when all is drained."""

    def __init__(self, broker: EmbeddedBroker, outcome: Outcome, logs: Path) -> None:
        self._broker = broker
        self._outcome = outcome
        self._logs = logs
        self._names = Names(GROUP)
        self._running: list[subprocess.Popen[bytes]] = []
        self._read = dict.fromkeys((logs / f"m{number}.lines" for number in range(MEMBERS)), 0)

    def declare(self) -> None:
        numbers = ["--queue-count", str(QUEUES), "--hash-count", str(HASHES)]
        command = [sys.executable, "-m", "lbgroup", "group", "create", GROUP, "--no-user", *numbers]
        urls = ["--broker", self._broker.url, "--management", self._broker.management_url]
        subprocess.run([*command, *urls], env=clean_environment(), stdout=subprocess.DEVNULL, check=True)

    def address(self, key: str) -> tuple[str, str]:
        return self._names.exchange, routing_key(GROUP, hash_of(key, HASHES), "")

    def waiting(self) -> int:
        return sum(self._broker.queue(self._names.queue(number))["messages"] for number in range(QUEUES))

    def drain(self, *, upto: int | None, is_over: Callable[[], bool]) -> None:
        if not self._running:
            self._running = [self._start(lines) for lines in self._read]
        enough = len(self._outcome.delivered) + upto if upto is not None else None
        deadline = time.monotonic() + PATIENCE_S
        while not (
            is_over() and self._have_joined() if enough is None else len(self._outcome.delivered) >= enough
        ):
            if self._note_calls():
                deadline = time.monotonic() + PATIENCE_S
            elif any(member.poll() is not None for member in self._running):
                raise AssertionError("a member ended by itself")
            elif time.monotonic() > deadline:
                self._outcome.not_drained()
                break
            else:
                time.sleep(0.02)
        if upto is None:
            for member in self._running:
                member.terminate()
            ended = [member.wait(PATIENCE_S) for member in self._running]
            self._outcome.stops += len(ended)
            self._outcome.problems += [
                f"SIGTERM of a member ended with {status}" for status in ended if status
            ]
            self._running = []
            self._note_calls()

    def close(self) -> None:
        for member in self._running:
            member.kill()
            member.wait()

    def _have_joined(self) -> bool:
        """True if each has claimed an index; before, it need not heed SIGTERM."""
        try:
            return all(self._broker.queue(self._names.mailbox(index)) for index in range(MEMBERS))
        except urllib.error.HTTPError:
            return False

    def _start(self, lines: Path) -> subprocess.Popen[bytes]:
        settings = {
            "broker": self._broker.url,
            "group": GROUP,
            "name": lines.stem,
            "rebalance_delay_s": REBALANCE_DELAY_S,
        }
        application = [
            "testing.promises.application",
            "callable",
            str(lines),
            str(CALL_MS),
            json.dumps(settings),
        ]
        with lines.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", *application],
                cwd=ROOT,
                env=clean_environment(),
                stdout=log,
                stderr=log,
            )

    def _note_calls(self) -> int:
        """Take what the callables finished meanwhile into the outcome; how many calls."""
        count = 0
        for path, start in self._read.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                file.seek(start)
                whole, mark, _ = file.read().rpartition(b"\n")
            self._read[path] = start + len(whole) + len(mark)
            for line in whole.decode().splitlines():
                kind, _, _, number, _ = line.split()
                if kind == FINISHED:
                    self._outcome.delivered.add(int(number))
                    count += 1
        self._outcome.deliveries += count
        return count


class Play:
    """One broker on one disk."""

    def __init__(self, disk: Disk, logs: Path, *, seed: int, members: bool, quota: bool) -> None:
        self._disk = disk
        self.outcome = Outcome()
        self.broker = EmbeddedBroker(
            disk.folder / "data",
            under=as_quota(logs, disk.under) if quota else disk.under,
            log_file=logs / "broker.log",
            settings={"disk_retry_s": 0.1, "close_timeout_s": 1.0},
        )
        self.consumer: Consumer = (
            MemberConsumers(self.broker, self.outcome, logs)
            if members
            else PikaConsumer(self.broker, self.outcome, seed)
        )
        self.publisher = PikaPublisher(self.broker.port, self.consumer, self.outcome, seed)

    def begin(self) -> None:
        self.broker.start()
        self.consumer.declare()
        self.publisher.start()

    def end(self) -> None:
        self.publisher.over = True
        self.consumer.close()
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
                self.drain(upto=half)
                self._end(sigterm=False)
                self.broker.start()
            self.drain(upto=None)
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

    def drain(self, *, upto: int | None) -> None:
        self.consumer.drain(
            upto=upto, is_over=lambda: self.publisher.idle.is_set() and not self.consumer.waiting()
        )

    def _expect(self, is_so: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            if time.monotonic() > deadline:
                raise AssertionError(otherwise)
            time.sleep(0.02)


def connect(
    port: int, user: str = "guest", password: str = "guest", trusting: ssl.SSLContext | None = None
) -> Any:
    """A pika connection that says nothing by itself, over TLS if it is to trust somebody."""
    tls = None if trusting is None else pika.SSLOptions(trusting, "127.0.0.1")
    login = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", port, heartbeat=0, credentials=login, ssl_options=tls)
    )


def release(connection: Any) -> None:
    """Close a pika connection and its sockets, which pika leaves open where it saw its end in the middle of a call."""
    with suppress(pika.exceptions.AMQPError, OSError):
        connection.close()
    connection._cleanup()


def play(
    disk: Disk, logs: Path, *, cycles: int, seed: int, members: bool = False, quota: bool = False
) -> Outcome:
    """Play so many cycles on an empty disk."""
    stage = Play(disk, logs, seed=seed, members=members, quota=quota)
    try:
        stage.begin()
        for number in range(cycles):
            stage.cycle(number)
            if number % 10 == 9:
                print(f"cycle {number + 1}: {len(stage.outcome.confirmed):,} confirmed", flush=True)
        with disk.filled():
            stage.publisher.wanted.clear()
            stage.drain(upto=None)
    except Exception as error:
        stage.outcome.problems.append(f"cycle {stage.outcome.cycles}: {error!r}")
    finally:
        stage.end()
    return stage.outcome


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="testing.full_disk", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--on", choices=("tmpfs", "ext4"), default="tmpfs")
    parser.add_argument("--consumer", choices=("pika", "members"), default="pika")
    parser.add_argument("--quota", action="store_true", help="answer the broker EDQUOT in place of ENOSPC")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--disk-kb", type=int, default=DISK_KB)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    arguments = parser.parse_args()
    if arguments.on == "ext4" and (os.geteuid() != 0 or shutil.which("mkfs.ext4") is None):
        print("ext4 is mounted from a file: it takes root and mkfs.ext4", file=sys.stderr)
        return 2
    if arguments.quota and shutil.which("cc") is None:
        print("what answers EDQUOT is compiled: it takes a C compiler, cc", file=sys.stderr)
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
        members = arguments.consumer == "members"
        outcome = play(
            disk,
            folder,
            cycles=arguments.cycles,
            seed=arguments.seed,
            members=members,
            quota=arguments.quota,
        )
        bad = bool(outcome.lost or outcome.problems)
        for problem in outcome.problems:
            print(problem, file=sys.stderr)
        if bad:
            for log in sorted(folder.glob("*.log")):
                print(f"{log.name}:\n{log.read_text()[-4000:]}", file=sys.stderr)
    print(f"{outcome}; {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
