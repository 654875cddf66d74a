"""One run: a broker, a database, publishers and members, who is killed when, and the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lbg_core.client import connect
from lbg_core.group import GroupSpec, Names
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import PASSWORD, USER
from testing.chaos.places import Place, place_of
from testing.chaos.stream import keys_of, publisher_name, write_input

from .databases import DATABASES, Database, place_for
from .pairs import Pair, PublisherSlot, Victim
from .verdict import Outcome, judge

GROUP = "once"
KEYS = 500
LOOK_EVERY_S = 0.02
IDLE_S = 1.0
STUCK_AFTER_S = 120.0


class Failed(Exception):
    """The run cannot go on."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """`queues` of `queue_size_mb` hold a part of the run only, so that publishers wait for members and are there to be
    killed; they are, until this part of everything is published. `linger_s`: how long a call goes on after its commit;
    it makes each kill of a small run repeat something.
    `longest_pause_s`: how long what was killed stays away, at most."""

    messages: int = 1_000_000
    members: int = 4
    publishers: int = 2
    kills: int = 60
    channels: tuple[str, ...] = ("http-batch", "stream")
    body_bytes: int = 100
    queues: int = 8
    queue_size_mb: int = 4
    publishers_killed_until: float = 0.95
    linger_s: float = 0.0
    longest_pause_s: float = 1.0

    def of_publisher(self, number: int) -> int:
        return self.messages // self.publishers + (number < self.messages % self.publishers)


@dataclass
class Run:
    """In an empty directory."""

    seed: int
    sizes: Sizes
    directory: Path
    engine: str = "embedded"
    database: str = "sqlite"
    inbox: bool = True
    kills: Counter[Victim] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._keys = [
            keys_of(self.seed, number, self.sizes.of_publisher(number), KEYS)
            for number in range(self.sizes.publishers)
        ]

    @property
    def _spec(self) -> GroupSpec:
        sizes = self.sizes
        return GroupSpec(
            GROUP,
            GROUP,
            hash_count=64,
            queue_count=sizes.queues,
            queue_size_mb=sizes.queue_size_mb,
            client_username=USER,
        )

    async def play(self) -> Outcome:
        """Raises Failed."""
        self._place: Place = place_of(self.engine, self.directory)
        with place_for(self.database, self.directory) as at:
            self._table: Database = DATABASES[self.database](at)
            self._table.create()
            self._members: list[Pair] = []
            self._publishers: list[PublisherSlot] = []
            try:
                await self._place.start()
                await declare_group(self._url, self._spec)
                self._publishers = [self._publisher(number) for number in range(self.sizes.publishers)]
                self._members = [self._member(number, at) for number in range(self.sizes.members)]
                for process in (*self._publishers, *self._members):
                    await process.start()
                await self._kill_at_random()
                await self._drain()
                return judge(
                    self._table.rows(),
                    self._keys,
                    recognised=self._table.count("recognised"),
                    kills=self.kills,
                )
            finally:
                for process in (*self._members, *self._publishers):
                    await process.kill()
                await self._place.close()
                self._table.close()

    @property
    def _url(self) -> str:
        return f"amqp://{USER}:{PASSWORD}@127.0.0.1:{self._place.ports[0]}/"

    def _publisher(self, number: int) -> PublisherSlot:
        name = publisher_name(number)
        rows = self.directory / f"{name}.jsonl.gz"
        write_input(rows, self._keys[number], body_bytes=self.sizes.body_bytes)
        argv = ["-m", "lbgroup", "publish", "--broker", self._url, "--group", GROUP, "--key", "key"]
        state = self.directory / f"{name}.state"
        argv += ["--name", name, "--state", str(state), str(rows)]
        return PublisherSlot(argv, state, self.directory / f"{name}.log")

    def _member(self, number: int, at: str) -> Pair:
        told: dict[str, Any] = {
            "database": self.database,
            "place": at,
            "inbox": self.inbox,
            "linger_s": self.sizes.linger_s,
        }
        channels = self.sizes.channels
        return Pair(
            number,
            self.directory,
            broker=self._url,
            group=GROUP,
            channel=channels[number % len(channels)],
            told=told,
        )

    async def _kill_at_random(self) -> None:
        """Each kill at a random point of the work, so that there is always something in hand to be repeated; of every
        kind as many as of any other. Publishers are ahead of members, and have points of their own work."""
        victims = Counter(list(Victim)[number % len(Victim)] for number in range(self.sizes.kills))
        of_publishers = [Victim.PUBLISHER] * victims.pop(Victim.PUBLISHER, 0)
        of_others = list(victims.elements())
        self._chance.shuffle(of_others)
        until = self.sizes.publishers_killed_until
        await asyncio.gather(
            self._kill_each(of_others, self._table.inserted_about, until=0.95),
            self._kill_each(of_publishers, self._published, until=until),
        )

    async def _kill_each(self, victims: list[Victim], done: Callable[[], int], *, until: float) -> None:
        plan = [(self._chance.random() * until * self.sizes.messages, self._chance.random()) for _ in victims]
        for victim, (point, pause) in zip(victims, sorted(plan), strict=True):
            await self._until(lambda point=point: done() > point)
            await self._kill(victim, pause * self.sizes.longest_pause_s)

    def _published(self) -> int:
        """Messages that were sent once at least."""
        return sum(each.sent for each in self._publishers)

    async def _kill(self, victim: Victim, pause_s: float) -> None:
        publishing = [each for each in self._publishers if not each.is_done]
        if victim is Victim.PUBLISHER and not publishing:
            return  # nobody is there to be killed
        self.kills[victim] += 1
        if victim is Victim.BROKER:
            await self._place.kill(0)
            await asyncio.sleep(pause_s)
            await self._place.start_again(0)
            return
        member = self._chance.choice(self._members)
        process = {
            Victim.APPLICATION: member.application,
            Victim.SIDECAR: member.sidecar,
            Victim.BOTH: member,
        }.get(victim) or self._chance.choice(publishing)
        await process.kill()
        await asyncio.sleep(pause_s)
        await process.start()

    async def _drain(self) -> None:
        for publisher in self._publishers:
            done = asyncio.create_task(publisher.ended())
            await self._until(done.done)
            try:
                done.result()
            except RuntimeError as error:
                raise Failed(str(error)) from None
        connection = await connect(self._url)
        channel = await connection.open_channel()
        queues = [Names(GROUP).queue(number) for number in range(self.sizes.queues)]

        async def waiting() -> int:
            return sum([(await channel.queue_declare(each, passive=True)).message_count for each in queues])

        while True:
            idle = asyncio.create_task(self._idle(waiting))
            await self._until(idle.done)
            await asyncio.gather(*(member.leave() for member in self._members))
            self._look_at_members()
            if not await waiting():  # what members held and did not finish is in the queues again
                break
            for member in self._members:
                await member.start()
        await connection.close()

    async def _idle(self, waiting: Callable[[], Awaitable[int]]) -> None:
        """Until nothing waits in the queues and nothing was written for a while: members hold nothing any more."""
        written = -1
        while await waiting() or self._written() != written:
            written = self._written()
            await asyncio.sleep(IDLE_S)

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Raises Failed when a member is broken, or when nothing is written any more."""
        written, since = -1, time.monotonic()
        while not condition():
            self._look_at_members()
            if (now_written := self._table.inserted_about()) != written:
                written, since = now_written, time.monotonic()
            elif time.monotonic() - since > STUCK_AFTER_S:
                raise Failed(f"nothing was written for {STUCK_AFTER_S:g} s")
            await asyncio.sleep(LOOK_EVERY_S)

    def _written(self) -> int:
        return self._table.inserted_about() + self._table.count("recognised")

    def _look_at_members(self) -> None:
        for member in self._members:
            if member.failure:
                raise Failed(member.failure)
