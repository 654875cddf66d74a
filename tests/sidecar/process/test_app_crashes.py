"""The application killed alone, with -9 and under load, beside a sidecar that lives: nothing lost or reordered."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from testing.app.noting_pair import CHANNELS, Pair
from testing.app.noting_process import until_so
from testing.broker.embedded import EmbeddedBroker
from testing.needs import repeated
from testing.rabbitmq.node import RabbitNode
from testing.sidecar.load import publish

COUNT = 500


async def kill_and_return(pair: Pair) -> None:
    """A's application dies under load; B gets its queues while A is not ready, and A takes them back."""
    await pair.start()
    loading = asyncio.create_task(publish(pair.url, pair.group, COUNT, per_s=COUNT / 4))
    await until_so(pair.a, lambda: pair.apps[0].notes.size >= 60)
    pair.kill_app("a")
    await until_so(pair.a, lambda: "the application is not ready" in pair.a.get("/readyz")[1])
    assert pair.b.ready()
    killed_at = pair.apps[0].notes.size
    pair.start_app("a")
    await until_so(pair.a, pair.a.ready)
    await loading
    await pair.all_ended(COUNT)
    assert pair.notes.inversions() == []
    assert len(pair.notes.repeated()) <= 2 * 16, "what was at work when it died, at most"
    await publish(pair.url, pair.group, 200, first=COUNT)
    await pair.all_ended(COUNT + 200)
    assert pair.apps[0].notes.size > killed_at, "A got its queues back"


@pytest.mark.parametrize("channel", repeated(channel for channel in CHANNELS if channel != "command"))
async def test_an_application_that_dies_and_comes_back_loses_and_reorders_nothing(
    broker: EmbeddedBroker, tmp_path: Path, channel: str
) -> None:
    pair = Pair(broker.url, tmp_path, channel=channel, work_s=0.01)
    try:
        await kill_and_return(pair)
    finally:
        pair.end()


@pytest.mark.slow
async def test_so_it_is_on_rabbitmq(rabbit_vhost: str, rabbitmq: RabbitNode, tmp_path: Path) -> None:
    pair = Pair(rabbit_vhost, tmp_path, channel="http", work_s=0.01)
    try:
        await kill_and_return(pair)
    finally:
        pair.end()


async def test_a_command_that_dies_is_started_anew_and_loses_and_reorders_nothing(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    pair = Pair(broker.url, tmp_path, work_s=0.01)
    await pair.start()
    loading = asyncio.create_task(publish(pair.url, pair.group, COUNT, per_s=COUNT / 3))
    await until_so(pair.a, lambda: pair.apps[0].notes.size >= 60)
    pair.kill_command("a")
    await until_so(pair.a, lambda: "the command is started again" in pair.a.text)
    await loading
    await pair.all_ended(COUNT)
    assert pair.notes.inversions() == []
    assert pair.a.ready()
