"""One run: begin, play the schedule, let everything drain, judge."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from lbg_core.client import connect
from lbg_core.group import HEADER_PUBLISHER, Names, stream_queues
from lbg_sidecar.io.startup import group_of
from testing.chaos import evidence, ledger
from testing.chaos.faults import play
from testing.chaos.places import place_of
from testing.chaos.schedule import Planned, Sizes, duration_s, schedule_of
from testing.chaos.stage import GROUP, Stage
from testing.chaos.stream import position_in, publisher_number
from testing.chaos.verdict import Name, Verdict

NEWS_EVERY_S = 15.0
STUCK_AFTER_S = 120.0
"""Nothing breaks any more, and no application was called for so long: nothing will change."""
EMPTY_FOR_S = 1.0
LOOK_EVERY_S = 0.5


async def run(engine: str, seed: int, sizes: Sizes, directory: Path) -> tuple[Verdict, list[str]]:
    """Play one run in an empty directory. Returns what is to be said of its history, and other problems."""
    planned = schedule_of(seed, engine, sizes)
    stage = Stage(engine, seed, sizes, directory, place_of(engine, directory))
    dead: list[Name] = []
    try:
        await stage.open()
        stage.say(f"{sizes.members} members have joined, mode {sizes.mode}")
        began = time.monotonic()
        await stage.open_publishers(duration_s=duration_s(engine, planned))
        news = asyncio.create_task(tell_news(stage))
        try:
            await play_all(stage, planned)
            stage.say("no more faults: the rest is published and processed")
            await publish_rest(stage)
            await drain(stage)
            dead = await dead_letters(stage)
        finally:
            news.cancel()
        rate = sizes.messages / (time.monotonic() - began)
        stage.say(f"all is processed, {rate:,.0f} messages a second; judging")
    finally:
        await stage.close()
    evidence.leave(
        directory, seed=seed, sizes=sizes, losses_=stage.losses, told_twice=check_reports(stage), dead=dead
    )
    return evidence.judge_directory(directory), stage.problems


async def play_all(stage: Stage, planned: list[Planned]) -> None:
    async def play_one(each: Planned) -> None:
        try:
            await play(stage, each)
        except Exception as error:  # a broker that does not start again, a member that does not join
            stage.problem(f"#{each.number} {each.fault}: {error!r}")

    stage.start_clock()
    async with asyncio.TaskGroup() as group:
        for each in planned:
            while (wait_s := each.at_s - stage.clock_s) > 0:  # noqa: ASYNC110 (a clock that stops tells nobody)
                await asyncio.sleep(min(wait_s, LOOK_EVERY_S))
            group.create_task(play_one(each))


async def tell_news(stage: Stage) -> None:
    while True:
        await asyncio.sleep(NEWS_EVERY_S)
        stage.say(f"{ledger.entered(stage.directory):,} calls")


class Progress:
    """Progress of the applications' calls."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._calls = -1
        self._since = 0.0

    def is_stuck(self) -> bool:
        calls, now = ledger.entered(self._stage.directory), time.monotonic()
        if calls != self._calls:
            self._calls, self._since = calls, now
        return now - self._since > STUCK_AFTER_S


async def publish_rest(stage: Stage) -> None:
    progress = Progress(stage)
    for publisher in stage.publishers:
        done = asyncio.create_task(publisher.done())
        while not done.done() and not progress.is_stuck():
            await asyncio.wait({done}, timeout=LOOK_EVERY_S)
        if not done.done():
            done.cancel()
            stage.problem(f"{publisher.name} does not end:\n{publisher.process.last_words()}")
        elif done.result() != 0:
            stage.problem(f"{publisher.name} ended with {done.result()}:\n{publisher.process.last_words()}")


async def drain(stage: Stage) -> None:
    """Let the members finish, and leave."""
    progress = Progress(stage)
    connection = await connect(stage.broker_url)
    channel = await connection.open_channel()
    group = await group_of(connection, GROUP)
    queues = stream_queues(group.spec, group.engine)

    async def waiting() -> int:
        return sum([(await channel.queue_declare(queue, passive=True)).message_count for queue in queues])

    while True:
        while await waiting() and not progress.is_stuck():  # noqa: ASYNC110 (the broker tells nobody)
            await asyncio.sleep(LOOK_EVERY_S)
        await asyncio.sleep(EMPTY_FOR_S)
        await asyncio.gather(*(member.leave() for member in stage.members))
        left = await waiting()  # what members held comes back when they leave
        if not left:
            break
        if progress.is_stuck():
            stage.problem(f"{left} messages are stuck: their queues do not drain")
            break
        await asyncio.gather(*(member.start() for member in stage.members))
        await asyncio.gather(*(member.joined() for member in stage.members))
    await connection.close()


async def dead_letters(stage: Stage) -> list[Name]:
    connection = await connect(stage.broker_url)
    channel = await connection.open_channel()
    dead: list[Name] = []
    while (message := await channel.basic_get(Names(GROUP).dead, no_ack=True)) is not None:
        publisher = publisher_number(str(message.headers[HEADER_PUBLISHER]))
        dead.append((publisher, position_in(bytes(message.body))))
    await connection.close()
    return dead


def check_reports(stage: Stage) -> list[int]:
    """Checks that each publisher reports all as confirmed.
    Returns the number of messages that each may have published twice."""
    told_twice = []
    for number, publisher in enumerate(stage.publishers):
        if not publisher.report.exists():
            told_twice.append(0)
            continue
        report = json.loads(publisher.report.read_text())
        told_twice.append(report["maybe_twice"])
        if not report["published"] == report["confirmed"] == stage.sizes.messages_of(number):
            stage.problem(f"{publisher.name} reports {report}")
        if report["inverted"]:
            stage.problem(f"{publisher.name} reports {report['inverted']} inverted")
    return told_twice
