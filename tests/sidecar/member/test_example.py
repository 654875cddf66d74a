"""The example in examples/ works as it stands."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from lbg_broker.publisher import GroupPublisher
from support.member.place import Place
from support.waiting import GUARD_S

EXAMPLE = Path(__file__).parents[3] / "examples" / "consume.py"


async def test_the_example_prints_what_it_gets_and_leaves_on_sigterm(place: Place) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLE), place.url, place.spec.name), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with GroupPublisher(place.url, group=place.spec.name) as publisher:
        for body in (b"one", b"", b"two"):
            await publisher.publish(key="order-1", body=body, topic="example")
        await publisher.flush()
    async with asyncio.timeout(GUARD_S):
        lines = [await process.stdout.readline() for _ in range(2)]
        assert lines == [b"order-1 one\n", b"order-1 two\n"]
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 128 + signal.SIGTERM
    assert await place.count(place.names.dead) == 1
