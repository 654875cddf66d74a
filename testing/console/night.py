"""A night: in each mode of an engine a group for each of its questions, with a fault of that kind.

Groups are named by question and mode. What the answers are is known here, and not read from the console.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from lbg_core.group import Mode
from testing.console.world import KEYS, World, end, refusing, taking, world_of
from testing.waiting import until_answer

POISONED_KEY = "account-13"
REASON = "no such account: 13"
QUICK, SLOW, VICTIM = "quick", "slow", "victim"
MISSING = 5
"""Numbers of a publisher that were never published."""

FOREIGN = "till-7"
"""Publisher of another make."""

WAITING = 40
"""Messages for a group without a member."""

SLOW_CALL_S = 0.25
CALLS = 800
CALLS_HZ = 40.0
"""Messages for the slow member and its peer, at once and then: far more than the slow one can do."""

QUEUES_WANTED = 8
REPARTITIONED: dict[str, tuple[Mode, ...]] = {
    "embedded": ("Exclusive",),
    "rabbitmq": ("Exclusive", "Partitioned"),
}
"""Modes whose number of queues a command changes in steps: those with separate queues."""

PARKING: dict[str, tuple[Mode, ...]] = {"embedded": ("Exclusive",), "rabbitmq": ("Exclusive", "Partitioned")}
"""Modes with parked keys, docs/modes.md."""

AUDITED: dict[str, tuple[Mode, ...]] = {"embedded": ("Exclusive",), "rabbitmq": ("Exclusive", "Partitioned")}
"""Modes in which members count sequence numbers: those with separate queues, docs/operations.md."""


BALANCED: dict[str, tuple[Mode, ...]] = {"embedded": ("Exclusive",), "rabbitmq": ("Exclusive", "Partitioned")}
"""Modes with an assignment: a member that falls behind, while others have time, is a problem."""


@dataclass
class Night:
    """`first_missing`: id of the first message of the gap, by mode."""

    world: World
    first_missing: dict[str, str] = field(default_factory=dict)

    @property
    def engine(self) -> str:
        return self.world.engine


def named(question: str, mode: Mode) -> str:
    return f"{question}-{mode.lower()}"


@asynccontextmanager
async def night_of(engine: str, url: str, management_url: str) -> AsyncIterator[Night]:
    """With every fault but those of a member, which are planted when they are looked for."""
    async with world_of(engine, url, management_url) as world:
        night = Night(world)
        for mode in world.modes:
            await asyncio.gather(
                _key_blocks(night, mode),
                _key_is_parked(night, mode),
                _one_is_slow(night, mode),
                _one_will_die(night, mode),
                _numbers_are_missing(night, mode),
                _nobody_is_there(night, mode),
                _a_change_stands(night, mode),
            )
        yield night


async def _key_blocks(night: Night, mode: Mode) -> None:
    world, name = night.world, named("key", mode)
    await world.group(name, mode)
    for member in ("m1", "m2"):
        await world.member(name, member, refusing(POISONED_KEY, REASON), max_attempts=2)
    await world.publish(name, 60)


async def _key_is_parked(night: Night, mode: Mode) -> None:
    if mode not in PARKING[night.engine]:
        return
    world, name = night.world, named("parked", mode)
    await world.group(name, mode)
    await world.admin.enable_parking(name)
    for member in ("m1", "m2"):
        refuses = refusing(POISONED_KEY, REASON)
        await world.member(name, member, refuses, max_attempts=2, when_exhausted="park")
    await world.publish(name, 60)


async def _one_is_slow(night: Night, mode: Mode) -> None:
    world, name = night.world, named("slow", mode)
    by_queue = {"assignment": "Balanced"} if mode == "Exclusive" else {}
    await world.group(name, mode, **by_queue)
    await world.member(name, QUICK, taking(0.002), concurrency=1)
    await world.member(name, SLOW, taking(SLOW_CALL_S), concurrency=1)
    await world.publish(name, CALLS)
    world.in_background(world.publish_steadily(name, CALLS_HZ))


async def _one_will_die(night: Night, mode: Mode) -> None:
    world, name = night.world, named("dead", mode)
    await world.group(name, mode)
    await world.member(name, "m1")


async def _numbers_are_missing(night: Night, mode: Mode) -> None:
    world, name = night.world, named("lost", mode)
    spec = await world.group(name, mode)
    await world.member(name, "m1")
    there = [*range(10), *range(10 + MISSING, 30)]
    hash_ = await world.publish_by_hand(spec, KEYS[0], FOREIGN, there)
    night.first_missing[mode] = f"{FOREIGN}-{hash_}-10"


async def _nobody_is_there(night: Night, mode: Mode) -> None:
    world, name = night.world, named("idle", mode)
    await world.group(name, mode)
    await world.publish(name, WAITING)


async def _a_change_stands(night: Night, mode: Mode) -> None:
    """Its command was killed while keys could not move, because nobody consumed."""
    if mode not in REPARTITIONED[night.engine]:
        return
    world, name = night.world, named("change", mode)
    await world.group(name, mode)
    await world.member(name, "m1")
    await world.admin.pause_group(name)
    await world.publish(name, WAITING)
    command = await world.process("group", "repartition", name, "--queues", str(QUEUES_WANTED))

    async def moves() -> bool:
        return (await world.admin.show_group(name, listen_s=0.0)).moving_keys is not None

    await until_answer(moves)
    await end(command)


async def start_victim(night: Night, mode: Mode) -> asyncio.subprocess.Process:
    """A member that is a process, beside one that is none."""
    told = ("--group", named("dead", mode), "--name", VICTIM, "--quiet")
    delay = () if mode == "Partitioned" else ("--rebalance-delay", "0")
    return await night.world.process("consume", *told, *delay)
