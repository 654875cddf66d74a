"""The example in examples/ works as it stands."""

from __future__ import annotations

import asyncio
import signal
import sys

import pytest

from lbg_core.publisher import GroupPublisher
from testing import ROOT
from testing.member.place import Place
from testing.waiting import GUARD_S

EXAMPLE = ROOT / "examples" / "consume.py"


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT], ids=lambda one: one.name)
async def test_the_example_prints_what_it_gets_and_ends_without_a_traceback(
    place: Place, end: signal.Signals
) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLE), place.url, place.spec.name), stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None
    assert process.stderr is not None
    async with GroupPublisher(place.url, group=place.spec.name) as publisher:
        for body in (b"one", b"", b"tw\xff"):
            await publisher.publish(key="order-1", body=body, topic="example")
        await publisher.flush()
    async with asyncio.timeout(GUARD_S):
        lines = [await process.stdout.readline() for _ in range(2)]
        assert lines == [b"order-1 one\n", "order-1 tw\ufffd\n".encode()]
        process.send_signal(end)
        assert await process.wait() == 128 + end
        assert b"Traceback" not in await process.stderr.read()
    assert await place.count(place.names.dead) == 1
