"""The document's own definition of exactly once: `make exactly-once`. Exit status 1 if it does not hold.

"If all consumers are simply inserting the messages into a database table without any unique index restrictions, the
end-result must be all 1 million messages from the broker inserted into the database table, without any duplicates"
("Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers"). Publishers fill a group on the embedded
broker, members insert into one SQLite database through the inbox, and members and the broker are killed (SIGKILL) at
random points of the work and started again, until the group is drained. `--without-inbox` shows that it is the inbox:
the same run then has duplicates, and fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.chaos.member import COULD_NOT_JOIN
from bench.chaos.places import Place, place_of
from bench.chaos.processes import Process
from bench.chaos.stream import keys_of, publisher_name, write_input
from bench.inserting import create, opened
from lbg_broker.client import connect
from lbg_broker.group import GroupSpec, Names
from support.embedded import PASSWORD, USER
from support.group_on_broker import declare_group

SPEC = GroupSpec("once", "once", hash_count=64, queue_count=8, queue_size_mb=100, client_username=USER)
KEYS = 500
BODY_BYTES = 100
BROKER_SHARE = 0.25
LONGEST_PAUSE_S = 1.0
LOOK_EVERY_S = 0.02
IDLE_S = 1.0
LEAVE_WITHIN_S = 60.0
STUCK_AFTER_S = 120.0


class Failed(Exception):
    """The run cannot go on."""


@dataclass(frozen=True, slots=True)
class Sizes:
    messages: int = 1_000_000
    members: int = 4
    publishers: int = 2
    kills: int = 60
    linger_s: float = 0.0
    """How long a call goes on after its commit: it makes a small run last, and each kill repeat something."""

    def of_publisher(self, number: int) -> int:
        return self.messages // self.publishers + (number < self.messages % self.publishers)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`rows` in the table; `distinct` messages of those that were published; `recognised` by the inbox."""

    expected: int
    rows: int
    distinct: int
    recognised: int
    member_kills: int
    broker_kills: int

    @property
    def holds(self) -> bool:
        return self.rows == self.distinct == self.expected

    def __str__(self) -> str:
        return (
            f"{self.expected:,} messages, {self.member_kills} kills of members, {self.broker_kills} of the broker: "
            f"{self.rows:,} rows, {self.expected - self.distinct:,} messages lost, "
            f"{self.rows - self.distinct:,} rows too many, "
            f"{self.recognised:,} calls recognised as seen before"
        )


class Table:
    """What the applications have written."""

    def __init__(self, database: Path) -> None:
        self._connection = opened(database)
        create(self._connection)

    def close(self) -> None:
        self._connection.close()

    def written(self) -> int:
        """Calls that were committed."""
        return self._one("SELECT count(*) FROM recognised") + self.inserted()

    def inserted(self) -> int:
        return self._one("SELECT coalesce(max(rowid), 0) FROM inserted")

    def outcome(self, sizes: Sizes, *, member_kills: int, broker_kills: int) -> Outcome:
        distinct = sum(
            self._one(
                "SELECT count(DISTINCT position) FROM inserted WHERE publisher = ? AND position BETWEEN 0 AND ?",
                number,
                sizes.of_publisher(number) - 1,
            )
            for number in range(sizes.publishers)
        )
        return Outcome(
            expected=sizes.messages,
            rows=self._one("SELECT count(*) FROM inserted"),
            distinct=distinct,
            recognised=self._one("SELECT count(*) FROM recognised"),
            member_kills=member_kills,
            broker_kills=broker_kills,
        )

    def _one(self, query: str, *arguments: int) -> int:
        found: int = self._connection.execute(query, arguments).fetchone()[0]
        return found


class MemberSlot:
    """A member that is started again when it could not join. `failure` says why it ended in any other way."""

    def __init__(self, argv: list[str], log: Path) -> None:
        self._process = Process(argv, log)
        self._lock = asyncio.Lock()  # nothing is killed while the watch starts it
        self._watch: asyncio.Task[None] | None = None
        self.failure = ""

    async def start(self) -> None:
        await self._process.start()
        self._watch = asyncio.create_task(self._stay())

    async def kill(self) -> None:
        async with self._lock:
            self._unwatch()
            await self._process.kill()

    async def leave(self) -> None:
        """SIGTERM, and wait for the end."""
        async with self._lock:
            self._unwatch()
            self._process.signal(signal.SIGTERM)
            status = await self._process.ended(LEAVE_WITHIN_S)
            if status not in (0, COULD_NOT_JOIN, -signal.SIGTERM):
                self._fail(status)

    async def _stay(self) -> None:
        while True:
            status = await self._process.ended()
            if status != COULD_NOT_JOIN:
                self._fail(status)
                return
            async with self._lock:
                await self._process.start()

    def _fail(self, status: int) -> None:
        self.failure = f"a member ended with {status}: {self._process.last_words()}"

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None


@dataclass
class Run:
    """One run in an empty directory."""

    seed: int
    sizes: Sizes
    directory: Path
    inbox: bool
    place: Place = field(init=False)
    table: Table = field(init=False)
    members: list[MemberSlot] = field(default_factory=list)
    publishers: list[Process] = field(default_factory=list)
    member_kills: int = 0
    broker_kills: int = 0

    def __post_init__(self) -> None:
        self.place = place_of("embedded", self.directory)
        self.table = Table(self.database)

    @property
    def database(self) -> Path:
        return self.directory / "applications.db"

    @property
    def url(self) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self.place.ports[0]}/"

    async def play(self) -> Outcome:
        try:
            await self.place.start()
            await declare_group(self.url, SPEC)
            self.publishers = [self._publisher(number) for number in range(self.sizes.publishers)]
            self.members = [self._member(number) for number in range(self.sizes.members)]
            for process in (*self.publishers, *self.members):
                await process.start()
            await self._kill_at_random()
            await self._drain()
            return self.table.outcome(
                self.sizes, member_kills=self.member_kills, broker_kills=self.broker_kills
            )
        finally:
            for process in (*self.members, *self.publishers):
                await process.kill()
            await self.place.close()
            self.table.close()

    def _publisher(self, number: int) -> Process:
        name, messages = publisher_name(number), self.sizes.of_publisher(number)
        rows = self.directory / f"{name}.jsonl.gz"
        write_input(rows, keys_of(self.seed, number, messages, KEYS), body_bytes=BODY_BYTES)
        argv = ["-m", "lbg", "publish", "--broker", self.url, "--group", SPEC.name, "--key", "key"]
        argv += ["--name", name, "--state", str(self.directory / f"{name}.state"), str(rows)]
        return Process(argv, self.directory / f"{name}.log")

    def _member(self, number: int) -> MemberSlot:
        settings = {"broker": self.url, "group": SPEC.name, "name": f"m{number}", "rebalance_delay_s": 0.5}
        told = {
            "settings": settings,
            "database": str(self.database),
            "inbox": self.inbox,
            "linger_s": self.sizes.linger_s,
        }
        return MemberSlot(["-m", "bench.inserting", json.dumps(told)], self.directory / f"m{number}.log")

    async def _kill_at_random(self) -> None:
        """Each kill at a random point of the work, so that there is always something in hand to be repeated."""
        chance = random.Random(self.seed)
        points = sorted(chance.random() * 0.95 * self.sizes.messages for _ in range(self.sizes.kills))
        for point in points:
            await self._until(lambda point=point: self.table.inserted() > point)
            pause_s = chance.random() * LONGEST_PAUSE_S
            if chance.random() < BROKER_SHARE:
                await self.place.kill(0)
                self.broker_kills += 1
                await asyncio.sleep(pause_s)
                await self.place.start_again(0)
            else:
                member = chance.choice(self.members)
                await member.kill()
                self.member_kills += 1
                await asyncio.sleep(pause_s)
                await member.start()

    async def _drain(self) -> None:
        for publisher in self.publishers:
            done = asyncio.create_task(publisher.ended())
            await self._until(done.done)
            if done.result() != 0:
                raise Failed(f"a publisher ended with {done.result()}: {publisher.last_words()}")
        connection = await connect(self.url)
        channel = await connection.open_channel()
        queues = [Names(SPEC.name).queue(number) for number in range(SPEC.queue_count)]

        async def waiting() -> int:
            return sum([(await channel.queue_declare(each, passive=True)).message_count for each in queues])

        while True:
            idle = asyncio.create_task(self._idle(waiting))
            await self._until(idle.done)
            await asyncio.gather(*(member.leave() for member in self.members))
            if not await waiting():  # what members held and did not finish is in the queues again
                break
            for member in self.members:
                await member.start()
        await connection.close()
        self._look_at_members()

    async def _idle(self, waiting: Callable[[], Awaitable[int]]) -> None:
        """Until nothing waits in the queues and nothing was written for a while: members hold nothing any more."""
        written = -1
        while await waiting() or self.table.written() != written:
            written = self.table.written()
            await asyncio.sleep(IDLE_S)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Raises Failed when a member is broken, or when nothing is written any more."""
        written, since = -1, time.monotonic()
        while not condition():
            self._look_at_members()
            if (now_written := self.table.written()) != written:
                written, since = now_written, time.monotonic()
            elif time.monotonic() - since > STUCK_AFTER_S:
                raise Failed(f"nothing was written for {STUCK_AFTER_S:g} s")
            await asyncio.sleep(LOOK_EVERY_S)

    def _look_at_members(self) -> None:
        for member in self.members:
            if member.failure:
                raise Failed(member.failure)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = Sizes()
    parser.add_argument("--messages", type=int, default=sizes.messages)
    parser.add_argument("--members", type=int, default=sizes.members)
    parser.add_argument("--kills", type=int, default=sizes.kills)
    parser.add_argument("--seed", type=int, help="of the messages' keys and of what is killed when")
    parser.add_argument("--without-inbox", action="store_true", help="insert whatever comes")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(1_000_000)
    sizes = Sizes(messages=arguments.messages, members=arguments.members, kills=arguments.kills)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lbg-once-") as directory:
        print(
            f"seed {seed}: {sizes.messages:,} messages, {sizes.members} members, {sizes.kills} kills",
            flush=True,
        )
        try:
            outcome = asyncio.run(Run(seed, sizes, Path(directory), not arguments.without_inbox).play())
        except Failed as failure:
            print(f"FAILED: {failure}")
            return 1
    print(f"{'exactly once' if outcome.holds else 'NOT exactly once'}: {outcome}")
    print(f"{time.monotonic() - began:.0f} s")
    return 0 if outcome.holds else 1


if __name__ == "__main__":
    sys.exit(main())
