"""Processes of a comparison: a publisher and the consumers of one approach."""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from importlib import import_module
from typing import Any

from bench.measurement import Measurement
from bench.peers import TASK, Work
from bench.workers import say
from testing.work_log import DONE

KEYS = 200
BODY_BYTES = 256
BATCH = 50
AHEAD = 4_000
"""Most messages that are published and not processed where there is no rate: a backlog of 2 s at 2 ms each."""


async def consume(peer: str, log: str, **told: Any) -> None:
    await import_module(f"bench.peers.{peer}").consume(Work(log), **told)
    say("done")


async def publish(peer: str, url: str, logs: str) -> None:
    """Publishes from a line of JSON on standard input until the next line, again and again."""
    publisher = await import_module(f"bench.peers.{peer}").publisher(url)
    say("ready")
    chosen = random.Random(7)
    number = phases = 0
    while line := await asyncio.to_thread(sys.stdin.readline):
        told = json.loads(line)
        wait_s, rate_hz = told["wait_s"], told["rate_hz"]
        first, started_ns = number, time.monotonic_ns()
        stop = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
        while not stop.done():
            if rate_hz:
                due = int((time.monotonic_ns() - started_ns) * rate_hz / 1e9) + 1
                room = min(BATCH, first + due - number)
            else:
                room = BATCH if number - _done(logs) < AHEAD else 0
            batch = []
            for _ in range(room):
                key = number % KEYS if rate_hz else chosen.randrange(KEYS)
                batch.append((f"key-{key}", TASK.pack(number, key, wait_s) + bytes(BODY_BYTES - TASK.size)))
                number += 1
            if batch:
                await publisher.send(batch)
            await asyncio.sleep(0 if len(batch) == BATCH else 0.0005)
        await publisher.flush()
        say(f"phase-{phases}", first=first, started_ns=started_ns, end=number)
        phases += 1


def _done(logs: str) -> int:
    with os.scandir(logs) as files:
        return sum(file.stat().st_size for file in files) // DONE.size


if __name__ == "__main__":
    Measurement(__doc__, workers={"consume": consume, "publish": publish}).asked()
