"""Members as processes that write a line for each message that they process, and the judge of these lines.

A line has the time in ns (CLOCK_MONOTONIC), the key and the number of a message. Keys and numbers are whole numbers;
numbers rise in the order of publishing. Lines of a killed process count.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from testing.broker.embedded import EmbeddedBroker
from testing.rabbitmq.node import RabbitNode

TIMEOUT_S = 900.0


class Members:
    """Processes of `python -m bench.MODULE --member …`, which get their name as the last argument. They are killed when
    the measurement dies."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._argv = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            sys.executable,
            "-m",
            f"bench.{module}",
            "--member",
            *arguments,
        ]
        self._processes: list[asyncio.subprocess.Process] = []

    async def start(self, name: str) -> None:
        self._processes.append(await asyncio.create_subprocess_exec(*self._argv, name))

    async def kill_one(self, chance: random.Random) -> None:
        number = chance.randrange(len(self._processes))
        process = self._processes.pop(number)
        process.kill()
        await process.wait()
        await self.start(f"m{chance.randrange(1000)}")

    async def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            await process.wait()


def processed(directory: Path) -> Iterator[tuple[int, int, int]]:
    """Time, key and number of each message that was processed, in no order. The last line of a killed process may be
    cut."""
    for path in directory.glob("*.log"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            at_ns, key, number = line.split()
            yield int(at_ns), int(key), int(number)


def _size_bytes(directory: Path) -> int:
    return sum([path.stat().st_size for path in directory.glob("*.log")])


def judge(directory: Path, messages: int) -> dict[str, int]:
    orders: dict[int, list[int]] = {}
    seen: set[int] = set()
    repeats = inverted = 0
    for _, key, number in sorted(processed(directory)):
        if number in seen:
            repeats += 1
            continue
        seen.add(number)
        order = orders.setdefault(key, [])
        if order and number < order[-1]:
            inverted += 1
        order.append(number)
    return {"lost": messages - len(seen), "out of order": inverted, "repeated": repeats, "keys": len(orders)}


async def until_processed(directory: Path, count: int, *, within_s: float = TIMEOUT_S) -> float:
    """Returns when so many different messages are processed."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        size_bytes = _size_bytes(directory)
        if size_bytes >= count * 20 and len({number for _, _, number in processed(directory)}) >= count:
            return time.monotonic()
        await asyncio.sleep(0.2)
    raise TimeoutError(f"{len({n for _, _, n in processed(directory)})} of {count} are processed")


@contextmanager
def broker(engine: str, directory: Path) -> Iterator[tuple[str, str]]:
    if engine == "rabbitmq":
        with RabbitNode() as node:
            yield node.amqp_url, node.management_url
    else:
        with EmbeddedBroker(directory / "data") as embedded:
            yield embedded.url, embedded.management_url
