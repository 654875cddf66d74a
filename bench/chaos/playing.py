"""One run: begin, play the schedule, let everything drain, judge."""

from __future__ import annotations

import asyncio
import heapq
import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from bench.chaos import ledger, losses
from bench.chaos.faults import play
from bench.chaos.judging import Name, Rules, Verdict, judge
from bench.chaos.ledger import Record
from bench.chaos.places import place_of
from bench.chaos.schedule import Planned, Sizes, schedule_of
from bench.chaos.stage import GROUP, Stage
from bench.chaos.stream import keys_of, position_in, publisher_number
from lbg_broker.client import connect
from lbg_broker.group import HEADER_PUBLISHER, Names

NEWS_EVERY_S = 15.0
PUBLISHED_WITHIN_S = 300.0
"""After the last fault: the rest of the messages, at least at a few hundred a second."""
DRAINED_WITHIN_S = 180.0
EMPTY_FOR_S = 1.0


async def run(engine: str, seed: int, sizes: Sizes, directory: Path) -> tuple[Verdict, list[str]]:
    """Play one run in an empty directory. Returns what is to be said of its history, and other problems."""
    planned = schedule_of(seed, engine, sizes)
    stage = Stage(engine, seed, sizes, directory, place_of(engine, directory))
    try:
        await stage.open()
        stage.say(f"{sizes.members} members of {sizes.queues} queues have joined")
        began = time.monotonic()
        await stage.open_publishers(duration_s=planned[-1].at_s + sizes.fault_every_s)
        news = asyncio.create_task(tell_news(stage))
        try:
            await play_all(stage, planned)
            stage.say("no more faults: the rest is published and processed")
            await publish_rest(stage)
            dead = await drain(stage)
        finally:
            news.cancel()
        stage.say(
            f"all in the applications' hands: {sizes.messages / (time.monotonic() - began):,.0f} messages/s"
        )
    finally:
        await stage.close()
        losses.write(directory / "losses.jsonl", stage.losses)
    told_twice = check_reports(stage)
    (directory / "run.json").write_text(
        json.dumps(
            {"engine": engine, "seed": seed, "sizes": asdict(sizes), "told_twice": told_twice, "dead": dead}
        )
    )
    return judge_directory(directory), stage.problems


async def play_all(stage: Stage, planned: list[Planned]) -> None:
    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for each in planned:
            await asyncio.sleep(began + each.at_s - time.monotonic())
            group.create_task(play(stage, each))


async def tell_news(stage: Stage) -> None:
    while True:
        await asyncio.sleep(NEWS_EVERY_S)
        stage.say(f"{ledger.entered(stage.directory):,} calls")


async def publish_rest(stage: Stage) -> None:
    for publisher in stage.publishers:
        try:
            status = await asyncio.wait_for(publisher.done(), PUBLISHED_WITHIN_S)
        except TimeoutError:
            stage.problem(f"{publisher.name} does not end:\n{publisher.process.last_words()}")
        else:
            if status != 0:
                stage.problem(f"{publisher.name} ended with {status}:\n{publisher.process.last_words()}")


async def drain(stage: Stage) -> list[Name]:
    """Let the members finish, and leave; returns what is among the dead letters."""
    names = Names(GROUP)
    queues = [names.queue(number) for number in range(stage.sizes.queues)]
    connection = await connect(stage.broker_url)
    channel = await connection.open_channel()

    async def waiting() -> int:
        return sum([(await channel.queue_declare(queue, passive=True)).message_count for queue in queues])

    deadline = time.monotonic() + DRAINED_WITHIN_S
    while True:
        while await waiting() and time.monotonic() < deadline:  # noqa: ASYNC110 (the broker tells nobody)
            await asyncio.sleep(0.2)
        await asyncio.sleep(EMPTY_FOR_S)
        await asyncio.gather(*(member.leave() for member in stage.members))
        left = await waiting()  # what members held comes back when they leave
        if not left:
            break
        if time.monotonic() > deadline:
            stage.problem(f"{left} messages are stuck: their queues do not drain")
            break
        await asyncio.gather(*(member.start() for member in stage.members))
        await asyncio.gather(*(member.joined() for member in stage.members))
    dead: list[Name] = []
    while (message := await channel.basic_get(names.dead, no_ack=True)) is not None:
        dead.append(
            (publisher_number(str(message.headers[HEADER_PUBLISHER])), position_in(bytes(message.body)))
        )
    await connection.close()
    return dead


def check_reports(stage: Stage) -> list[int]:
    """That each publisher says all is confirmed; returns how many messages each may have published twice."""
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


# Judging what lies in a directory


def judge_directory(directory: Path) -> Verdict:
    told = json.loads((directory / "run.json").read_text())
    sizes = Sizes(**told["sizes"])
    streams = [
        keys_of(told["seed"], publisher, sizes.messages_of(publisher), sizes.keys)
        for publisher in range(sizes.publishers)
    ]
    return judge(
        streams,
        records_of(directory),
        losses=list(losses.read(directory / "losses.jsonl")),
        dead={(publisher, position) for publisher, position in told["dead"]},
        rules=Rules(window=sizes.prefetch, overlap_s=overlap_s(sizes), told_twice=told["told_twice"]),
    )


def overlap_s(sizes: Sizes) -> float:
    """A member gives its connection up after two to three silent heartbeats, and then cancels its calls."""
    return 3.0 * sizes.heartbeat_s + 2.0


def records_of(directory: Path) -> Iterator[tuple[int, Record]]:
    """Of all lives, in order of time."""
    merged = heapq.merge(*(_of_life(path) for path in directory.glob("*.ledger")))
    return ((life, record) for record, life in merged)


def history_of(directory: Path, name: Name) -> Iterator[str]:
    """Every record of a message and of those just before and behind it in its key, as lines for a person."""
    told = json.loads((directory / "run.json").read_text())
    sizes = Sizes(**told["sizes"])
    publisher, position = name
    keys = keys_of(told["seed"], publisher, sizes.messages_of(publisher), sizes.keys)
    same = [each for each, key in enumerate(keys) if key == keys[position]]
    at = same.index(position)
    near = set(same[max(0, at - 1) : at + 2])
    for life, record in records_of(directory):
        if record.publisher == publisher and record.position in near and record.kind != ledger.Kind.STARTED:
            yield (
                f"    {record.at_ns / 1e9:.6f} life {life} {ledger.Kind(record.kind).name:8} "
                f"({publisher}, {record.position}) key {record.key} seq {record.seq} queue {record.queue} "
                f"attempt {record.attempt}{' redelivered' if record.redelivered else ''}"
            )


def _of_life(path: Path) -> Iterator[tuple[Record, int]]:
    life = int(path.stem)
    return ((record, life) for record in ledger.read(path))
