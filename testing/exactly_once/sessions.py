"""The same goal by sessions: a queue full of messages, consumers that are killed, a table without a unique index.

"Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers" (The Problem) begins with a queue that
holds them all: so they are published first, and then each consumer has a session of its name. When
everybody who was to be killed has been, the queue is closed, and every consumer ends with its End-of-Session.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lbg_core.group import SESSIONS, GroupSpec, Names
from lbg_core.publisher import GroupPublisher
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import USER, EmbeddedBroker
from testing.chaos.processes import Process

from .run import LOOK_EVERY_S, STUCK_AFTER_S, Failed
from .session_tables import connected, create

GROUP = "once"
KEYS = 500


@dataclass(frozen=True, slots=True)
class SessionSizes:
    """`kills` are of consumers, each a SIGKILL at a random point of the work; `broker_kills` of the broker.
    `longest_pause_s`: how long what was killed stays away, at most."""

    messages: int = 1_000_000
    consumers: int = 4
    kills: int = 60
    broker_kills: int = 6
    linger_s: float = 0.0
    longest_pause_s: float = 1.0


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """`repeated`: rows too many. `misplaced`: messages in two sessions, or under two numbers. `inverted`: rows that
    come after a later one of their session. `repeats_allowed`: none where the position is committed with its row; a
    file allows one for each kill of a consumer, and for each call that a kill of the broker aborts."""

    expected: int
    rows: int
    distinct: int
    misplaced: int
    inverted: int
    kills: int
    broker_kills: int
    repeats_allowed: int

    @property
    def repeated(self) -> int:
        return self.rows - self.distinct

    @property
    def holds(self) -> bool:
        is_complete = self.distinct == self.expected
        return (
            is_complete and not self.misplaced and not self.inverted and self.repeated <= self.repeats_allowed
        )

    def __str__(self) -> str:
        return (
            f"{self.expected:,} messages, kill -9: {self.kills} of consumers, {self.broker_kills} of the broker: "
            f"{self.rows:,} rows, {self.expected - self.distinct:,} messages lost, {self.repeated:,} rows too many "
            f"(at most {self.repeats_allowed} allowed), {self.misplaced:,} in two sessions or under two numbers, "
            f"{self.inverted:,} out of their session's order"
        )


class SessionsRun:
    """In an empty directory. `with_file`: the position is kept by the member, else by the application."""

    def __init__(self, seed: int, sizes: SessionSizes, directory: Path, *, with_file: bool) -> None:
        self._chance = random.Random(seed)
        self._sizes = sizes
        self._directory = directory
        self._with_file = with_file
        self._broker = EmbeddedBroker(directory / "broker")
        self._names = Names(GROUP)

    async def play(self) -> SessionOutcome:
        """Raises Failed."""
        database = str(self._directory / "rows.db")
        self._table = connected(database)
        create(self._table)
        consumers: list[Process] = []
        try:
            await asyncio.to_thread(self._broker.start)
            await declare_group(self._broker.url, self._spec)
            await self._publish()
            consumers = [self._consumer(number, database) for number in range(self._sizes.consumers)]
            for consumer in consumers:
                await consumer.start()
            await self._kill_at_random(consumers)
            await asyncio.to_thread(self._broker.perform, self._names.parent, "close")
            await self._end(consumers)
            return self._judged()
        finally:
            for consumer in consumers:
                await consumer.kill()
            await asyncio.to_thread(self._broker.kill)
            self._table.close()

    @property
    def _spec(self) -> GroupSpec:
        return GroupSpec(
            GROUP, GROUP, hash_count=64, queue_size_mb=10_000, client_username=USER, mode=SESSIONS
        )

    async def _publish(self) -> None:
        async with GroupPublisher(self._broker.url, group=GROUP) as publisher:
            for number in range(self._sizes.messages):
                await publisher.publish(key=f"key-{self._chance.randrange(KEYS)}", body=b"%d" % number)
            await publisher.flush()

    def _consumer(self, number: int, database: str) -> Process:
        name = f"consumer-{number}"
        told: dict[str, Any] = {
            "broker": self._broker.url,
            "group": GROUP,
            "name": name,
            "database": database,
            "commits": str(self._directory / "commits") if self._with_file else None,
            "linger_s": self._sizes.linger_s,
        }
        argv = ["-m", "testing.exactly_once.consumer", json.dumps(told)]
        return Process(argv, self._directory / f"{name}.log")

    async def _kill_at_random(self, consumers: list[Process]) -> None:
        sizes, chance = self._sizes, self._chance
        of_broker = [False] * sizes.kills + [True] * sizes.broker_kills
        chance.shuffle(of_broker)
        points = sorted(chance.random() * 0.95 * sizes.messages for _ in of_broker)
        for point, is_broker in zip(points, of_broker, strict=True):
            await self._until(lambda point=point: self._inserted() > point, consumers)
            pause_s = chance.random() * sizes.longest_pause_s
            if is_broker:
                await asyncio.to_thread(self._broker.kill)
                await asyncio.sleep(pause_s)
                await asyncio.to_thread(self._broker.start)
            else:
                victim = chance.choice(consumers)
                await victim.kill()
                await asyncio.sleep(pause_s)
                victim.ends_on_purpose = False
                await victim.start()

    async def _end(self, consumers: list[Process]) -> None:
        await self._until(lambda: all(consumer.has_ended for consumer in consumers), consumers)

    async def _until(self, condition: Callable[[], bool], consumers: list[Process]) -> None:
        """Raises Failed when a consumer ended in error, or when nothing is written any more."""
        written, since = -1, time.monotonic()
        while not condition():
            for consumer in consumers:
                if consumer.has_ended and (status := await consumer.ended()):
                    raise Failed(f"a consumer ended with {status}: {consumer.last_words()}")
            if (now_written := self._inserted()) != written:
                written, since = now_written, time.monotonic()
            elif time.monotonic() - since > STUCK_AFTER_S:
                raise Failed(f"nothing was written for {STUCK_AFTER_S:g} s")
            await asyncio.sleep(LOOK_EVERY_S)

    def _inserted(self) -> int:
        """About: without counting them."""
        found: int = self._table.execute("SELECT coalesce(max(rowid), 0) FROM inserted").fetchone()[0]
        return found

    def _judged(self) -> SessionOutcome:
        return judged(self._table, self._sizes, with_file=self._with_file)


def judged(table: sqlite3.Connection, sizes: SessionSizes, *, with_file: bool) -> SessionOutcome:
    """Rows of the table, in the order of their writes."""
    places: dict[int, tuple[str, int]] = {}
    latest: dict[str, int] = {}
    rows = misplaced = inverted = 0
    for session, sequence, number in table.execute("SELECT * FROM inserted ORDER BY rowid"):
        rows += 1
        misplaced += places.setdefault(number, (session, sequence)) != (session, sequence)
        inverted += sequence < latest.get(session, 0)
        latest[session] = max(sequence, latest.get(session, 0))
    return SessionOutcome(
        expected=sizes.messages,
        rows=rows,
        distinct=len(places.keys() & range(sizes.messages)),
        misplaced=misplaced,
        inverted=inverted,
        kills=sizes.kills,
        broker_kills=sizes.broker_kills,
        repeats_allowed=sizes.kills + sizes.broker_kills * sizes.consumers if with_file else 0,
    )
