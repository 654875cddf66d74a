"""Everything that a run has on its hands: the broker, the group's members and publishers, and what was lost when."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lbg_core.group import PARTITIONED, UNCOUNTED_MODES
from testing.chaos.losses import Loss
from testing.chaos.places import Place
from testing.chaos.processes import MemberSlot, Process, PublisherSlot, Wire
from testing.chaos.schedule import Sizes
from testing.chaos.stream import keys_of, publisher_name, write_input

GROUP = "chaos"
LOGIN = "chaos:chaos"
CALL_TIMEOUT_S = 10.0
REBALANCE_DELAY_S = 1.0


@dataclass
class Stage:
    """`say` tells a person. `problems` are what must never happen, found while playing."""

    engine: str
    seed: int
    sizes: Sizes
    directory: Path
    place: Place
    members: list[MemberSlot] = field(default_factory=list)
    publishers: list[PublisherSlot] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    guests: set[MemberSlot] = field(default_factory=set)
    lives: itertools.count[int] = field(default_factory=itertools.count)
    broker_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    started_at: float = field(default_factory=time.monotonic)
    _clock_since: float = 0.0
    _clock_s: float = 0.0

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.started_at:7.1f} s  {text}", flush=True)

    def problem(self, text: str) -> None:
        self.problems.append(text)
        self.say(f"PROBLEM: {text}")

    def lose(
        self,
        why: str,
        begin_ns: int,
        *,
        after_s: float,
        lives: tuple[int, ...] | None = None,
        limit: int | None = None,
        thawed: bool = False,
    ) -> None:
        """From `begin_ns` until `after_s` from now. `thawed`: the lives' processes stood still until now."""
        now_ns = time.monotonic_ns()
        end_ns = now_ns + round(after_s * 1e9)
        self.losses.append(Loss(why, begin_ns, end_ns, lives, limit, now_ns if thawed else None))

    def start_clock(self) -> None:
        """The schedule's: it counts what faults are planned by."""
        self._clock_since = time.monotonic()

    @property
    def clock_s(self) -> float:
        return self._clock_s + (time.monotonic() - self._clock_since if self._clock_since else 0.0)

    @contextmanager
    def clock_stopped(self) -> Iterator[None]:
        """While the only node starts: what breaks then breaks nothing, and how long it takes is the machine's."""
        self._clock_s, self._clock_since = self.clock_s, 0.0
        try:
            yield
        finally:
            self.start_clock()

    def _cut_off(self, life: int, begin_ns: int, count: int) -> None:
        self.lose("cut off", begin_ns, after_s=0, lives=(life,), limit=count)

    @property
    def fence_s(self) -> float:
        """After so long without a sign of the other end both ends of a connection have given it up: three
        heartbeats, and a little time to do so."""
        return 3 * self.sizes.heartbeat_s + 1

    # Beginning

    async def open(self) -> None:
        """Start the broker, make the group, and start its members."""
        for publisher in range(self.sizes.publishers):
            self._write_input(publisher)
        await self.place.start()
        await self._create_group()
        for number in range(self.sizes.members):
            self.members.append(await self.new_member(f"m{number}", number))
        await asyncio.gather(*(member.start() for member in self.members))
        await asyncio.gather(*(member.joined() for member in self.members))

    async def open_publishers(self, *, duration_s: float) -> None:
        """They share the messages, and each spreads its own evenly over the duration."""
        from_ns = time.monotonic_ns()
        for number in range(self.sizes.publishers):
            wire = await self._new_wire()
            told = {
                "name": publisher_name(number),
                "brokers": wire.urls(LOGIN, self.sizes.heartbeat_s),
                "group": GROUP,
                "strict": self.engine != "embedded",
                "from_ns": from_ns,
                "rate": self.sizes.messages_of(number) / duration_s,
            }
            self.publishers.append(PublisherSlot(wire, self.directory, told))
            await self.publishers[-1].start()

    async def new_member(self, name: str, index: int | None) -> MemberSlot:
        """The group's own have fixed indexes, as the pods of a StatefulSet do; guests (None) take what is free."""
        wire = await self._new_wire()
        settings: dict[str, Any] = {
            "broker": wire.urls(LOGIN, self.sizes.heartbeat_s),
            "group": GROUP,
            "index": index,
            "prefetch": self.sizes.prefetch,
            "rebalance_delay_s": REBALANCE_DELAY_S,
            "call_timeout_s": CALL_TIMEOUT_S,
        }
        return MemberSlot(
            name,
            wire,
            self.directory,
            settings,
            as_command=name == "m0",  # `lbg consume`, as one would start it
            lives=self.lives,
            on_problem=self.problem,
            on_cut_off=self._cut_off,
        )

    async def _new_wire(self) -> Wire:
        wire = Wire(self.place.ports)
        await wire.open()
        return wire

    def _write_input(self, publisher: int) -> None:
        keys = keys_of(self.seed, publisher, self.sizes.messages_of(publisher), self.sizes.keys)
        path = self.directory / f"{publisher_name(publisher)}.jsonl.gz"
        write_input(path, keys, body_bytes=self.sizes.body_bytes)

    async def _create_group(self) -> None:
        """As an admin does. The group's user may do no more than a member and a publisher need."""
        queues = 1 if self.sizes.mode in UNCOUNTED_MODES else self.sizes.queues
        password = self.directory / "password"
        password.write_text(LOGIN.partition(":")[2])
        create = Process(
            [
                *("-m", "lbgroup", "group", "create", GROUP, "--client-username", LOGIN.partition(":")[0]),
                *("--broker", self.broker_url, "--management", self.place.management_url),
                *("--mode", self.sizes.mode, "--hash-count", str(self.sizes.hashes)),
                *("--queue-count", str(queues), "--queue-size-mb", str(self.sizes.queues // queues)),
                *(("--rebalance-delay", str(REBALANCE_DELAY_S)) if self.sizes.mode == PARTITIONED else ()),
                *("--client-password-file", str(password)),
            ],
            self.directory / "create.log",
        )
        await create.start()
        if await create.ended(60) != 0:
            raise RuntimeError(f"the group was not created: {create.last_words()}")

    @property
    def broker_url(self) -> str:
        """An administrator's, past all wires."""
        return f"amqp://guest:guest@127.0.0.1:{self.place.ports[0]}/"

    # Ending

    async def close(self) -> None:
        for member in (*self.members, *self.guests):
            await member.kill()
            await member.wire.close()
        for publisher in self.publishers:
            await publisher.kill()
            await publisher.wire.close()
        await self.place.close()
