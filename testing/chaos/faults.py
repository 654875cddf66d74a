"""Effects of faults. Each ends with its victim whole again, and notes possible losses."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable

from testing.chaos.application import CALM, Mood
from testing.chaos.processes import MemberSlot, PublisherSlot
from testing.chaos.schedule import Fault, Planned
from testing.chaos.stage import CALL_TIMEOUT_S, Stage

AT_ONCE_S = 1.0
"""A kill, a reset and a closed socket are noticed at once; this is room for a busy machine."""

SLOW_S = (0.01, 0.1, 1.0)
FAILS_PERCENT = 20
DROPS_PERCENT = 5
HANGS_PERCENT = 1


async def play(stage: Stage, planned: Planned) -> None:
    """Do it, and return when it is over."""
    fault = planned.fault
    if fault in _TO_MEMBERS:
        member = stage.members[planned.victim]
        async with member.lock:
            stage.say(f"#{planned.number} {member.name}: {fault} ({planned.lasts_s:.1f} s)")
            await _TO_MEMBERS[fault](stage, member, planned)
    elif fault in _TO_APPLICATIONS:  # whatever else happens to its member meanwhile
        member = stage.members[planned.victim]
        stage.say(f"#{planned.number} {member.name}: {fault} ({planned.lasts_s:.1f} s)")
        await _TO_APPLICATIONS[fault](stage, member, planned)
    elif fault in _TO_PUBLISHERS:
        publisher = stage.publishers[planned.victim]
        async with publisher.lock:
            stage.say(f"#{planned.number} {publisher.name}: {fault} ({planned.lasts_s:.1f} s)")
            await _TO_PUBLISHERS[fault](publisher, planned)
    elif fault in _TO_BROKER:
        async with stage.broker_lock:
            stage.say(f"#{planned.number} node {planned.victim}: {fault} ({planned.lasts_s:.1f} s)")
            await _TO_BROKER[fault](stage, planned)
            stage.say(f"#{planned.number} is over")
    else:
        stage.say(f"#{planned.number} {fault} ({planned.lasts_s:.1f} s)")
        await _TO_GROUP[fault](stage, planned)


# Members


async def kill_member(stage: Stage, member: MemberSlot, planned: Planned) -> None:
    begin_ns, life = time.monotonic_ns(), member.life
    await member.kill()
    stage.lose("SIGKILL", begin_ns, after_s=0, lives=(life,))
    await asyncio.sleep(planned.lasts_s)
    await member.start()


async def leave_and_come_back(stage: Stage, member: MemberSlot, planned: Planned) -> None:
    """Planned: nobody loses anything, unless it says so."""
    await member.leave()
    await asyncio.sleep(planned.lasts_s)
    await member.start()


async def freeze_member(stage: Stage, member: MemberSlot, planned: Planned) -> None:
    begin_ns, life = time.monotonic_ns(), member.life
    member.signal(signal.SIGSTOP)
    await asyncio.sleep(planned.lasts_s)
    member.signal(signal.SIGCONT)
    lives = member.lives_since(life)
    stage.lose("SIGSTOP", begin_ns, after_s=stage.fence_s, lives=lives, thawed=True)


async def silence_member(stage: Stage, member: MemberSlot, planned: Planned) -> None:
    begin_ns, life = time.monotonic_ns(), member.life
    member.wire.silence()
    await asyncio.sleep(planned.lasts_s)
    member.wire.heal()
    stage.lose("half open", begin_ns, after_s=stage.fence_s, lives=member.lives_since(life))


async def cut_member(stage: Stage, member: MemberSlot, planned: Planned) -> None:
    begin_ns = time.monotonic_ns()
    member.wire.cut()
    stage.lose("reset", begin_ns, after_s=AT_ONCE_S, lives=(member.life,))


async def twin(stage: Stage, member: MemberSlot, planned: Planned) -> None:
    """A second one for its index: refused while the first lives, and nothing else may come of it."""
    index = member.settings["index"]
    await _visit(stage, f"{member.name}-twin{planned.number}", index, planned.lasts_s)


async def slow(stage: Stage, member: MemberSlot, planned: Planned) -> None:
    await _in_mood(member, Mood(slow_s=SLOW_S[int(planned.amount * len(SLOW_S))]), planned)


async def fail(stage: Stage, member: MemberSlot, planned: Planned) -> None:
    await _in_mood(member, Mood(fails=FAILS_PERCENT), planned)


async def drop(stage: Stage, member: MemberSlot, planned: Planned) -> None:
    await _in_mood(member, Mood(drops=DROPS_PERCENT), planned)


async def hang(stage: Stage, member: MemberSlot, planned: Planned) -> None:
    """A call that times out is made again; a command is killed for it, with all its calls."""
    begin_ns, life = time.monotonic_ns(), member.life
    await _in_mood(member, Mood(hangs=HANGS_PERCENT), planned)
    lives = member.lives_since(life)
    stage.lose("timed out", begin_ns, after_s=CALL_TIMEOUT_S + AT_ONCE_S, lives=lives)


async def _in_mood(member: MemberSlot, mood: Mood, planned: Planned) -> None:
    member.feel(mood)
    await asyncio.sleep(planned.lasts_s)
    member.feel(CALM)


# Publishers


async def kill_publisher(publisher: PublisherSlot, planned: Planned) -> None:
    await publisher.kill()
    await asyncio.sleep(planned.lasts_s)
    await publisher.start()


async def freeze_publisher(publisher: PublisherSlot, planned: Planned) -> None:
    publisher.process.signal(signal.SIGSTOP)
    await asyncio.sleep(planned.lasts_s)
    publisher.process.signal(signal.SIGCONT)


async def silence_publisher(publisher: PublisherSlot, planned: Planned) -> None:
    publisher.wire.silence()
    await asyncio.sleep(planned.lasts_s)
    publisher.wire.heal()


async def cut_publisher(publisher: PublisherSlot, planned: Planned) -> None:
    publisher.wire.cut()


# The broker


async def kill_broker(stage: Stage, planned: Planned) -> None:
    await _take_down(stage, planned, stage.place.kill, "broker SIGKILL")


async def stop_broker(stage: Stage, planned: Planned) -> None:
    await _take_down(stage, planned, stage.place.stop, "broker SIGTERM")


async def _take_down(stage: Stage, planned: Planned, end: Callable[[int], Awaitable[None]], why: str) -> None:
    begin_ns = time.monotonic_ns()
    await end(planned.victim)
    stage.lose(why, begin_ns, after_s=AT_ONCE_S)
    await asyncio.sleep(planned.lasts_s)
    if len(stage.place.nodes) == 1:
        with stage.clock_stopped():
            await stage.place.start_again(planned.victim)
    else:
        # The others go on, and with them the consumers of its queues, until all leaders are settled.
        await stage.place.start_again(planned.victim)
        stage.lose(why, begin_ns, after_s=stage.fence_s)


async def freeze_broker(stage: Stage, planned: Planned) -> None:
    begin_ns = time.monotonic_ns()
    await stage.place.freeze(planned.victim)
    await asyncio.sleep(planned.lasts_s)
    await stage.place.thaw(planned.victim)
    stage.lose("broker SIGSTOP", begin_ns, after_s=stage.fence_s)


async def part(stage: Stage, planned: Planned) -> None:
    begin_ns = time.monotonic_ns()
    await stage.place.part(planned.victim)
    await asyncio.sleep(planned.lasts_s)
    await stage.place.heal()
    stage.lose("partition", begin_ns, after_s=stage.fence_s)


async def alarm(stage: Stage, planned: Planned) -> None:
    await stage.place.alarm(planned.victim, on=True)
    await asyncio.sleep(planned.lasts_s)
    await stage.place.alarm(planned.victim, on=False)


# All members


async def stall(stage: Stage, planned: Planned) -> None:
    """In mode Partitioned a call that outlasts the handoff time is repeated."""
    begin_ns, members = time.monotonic_ns(), [*stage.members, *stage.guests]
    for member in members:
        member.feel(Mood(stalls=True))
    await asyncio.sleep(planned.lasts_s)
    for member in members:
        member.feel(CALM)
    if stage.sizes.mode == "Partitioned":
        stage.lose("handoff time", begin_ns, after_s=AT_ONCE_S)


async def roll(stage: Stage, planned: Planned) -> None:
    for member in stage.members:
        async with member.lock:
            await leave_and_come_back(stage, member, planned)


async def grow(stage: Stage, planned: Planned) -> None:
    visits = (_visit(stage, f"guest{planned.number}-{each}", None, planned.lasts_s) for each in range(2))
    await asyncio.gather(*visits)


async def _visit(stage: Stage, name: str, index: int | None, lasts_s: float) -> None:
    guest = await stage.new_member(name, index)
    stage.guests.add(guest)
    await guest.start()
    await asyncio.sleep(lasts_s)
    await guest.leave()
    stage.guests.discard(guest)
    await guest.wire.close()


_TO_MEMBERS: dict[Fault, Callable[[Stage, MemberSlot, Planned], Awaitable[None]]] = {
    Fault.MEMBER_KILL: kill_member,
    Fault.MEMBER_LEAVE: leave_and_come_back,
    Fault.MEMBER_FREEZE: freeze_member,
    Fault.MEMBER_SILENCE: silence_member,
    Fault.MEMBER_CUT: cut_member,
    Fault.MEMBER_TWIN: twin,
}
_TO_APPLICATIONS: dict[Fault, Callable[[Stage, MemberSlot, Planned], Awaitable[None]]] = {
    Fault.APP_SLOW: slow,
    Fault.APP_FAILS: fail,
    Fault.APP_DROPS: drop,
    Fault.APP_HANGS: hang,
}
_TO_PUBLISHERS: dict[Fault, Callable[[PublisherSlot, Planned], Awaitable[None]]] = {
    Fault.PUBLISHER_KILL: kill_publisher,
    Fault.PUBLISHER_FREEZE: freeze_publisher,
    Fault.PUBLISHER_CUT: cut_publisher,
    Fault.PUBLISHER_SILENCE: silence_publisher,
}
_TO_BROKER: dict[Fault, Callable[[Stage, Planned], Awaitable[None]]] = {
    Fault.BROKER_KILL: kill_broker,
    Fault.BROKER_STOP: stop_broker,
    Fault.BROKER_FREEZE: freeze_broker,
    Fault.PARTITION: part,
    Fault.ALARM: alarm,
}
_TO_GROUP: dict[Fault, Callable[[Stage, Planned], Awaitable[None]]] = {
    Fault.ALL_STALL: stall,
    Fault.ROLL: roll,
    Fault.GROW: grow,
}
