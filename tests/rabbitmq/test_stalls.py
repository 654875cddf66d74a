"""A consumer that is stuck while its connection lives, on a real broker: a proxy lets its deliveries vanish."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lbg_core.group import hash_of, queue_of
from lbg_sidecar import Member, Message, Verdict, retry
from lbg_sidecar.core import stall_watchdog
from testing.amqp.swallowing_proxy import SwallowingProxy
from testing.member.group_load import Judge, Load
from testing.member.place import Place
from testing.needs import repeated
from testing.waiting import GUARD_S, until

QUEUE = 0  # the first member is its primary


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members count a quiet queue's messages after a third of the time."""
    monkeypatch.setattr(stall_watchdog, "COUNT_INTERVAL_S", 1.6)
    monkeypatch.setattr(stall_watchdog, "RECOUNT_INTERVAL_S", 0.7)


@pytest.fixture
async def proxy(place: Place) -> AsyncIterator[SwallowingProxy]:
    async with SwallowingProxy(place.url) as proxy:
        yield proxy


def state_of(member: Member, queue: int) -> dict[str, Any]:
    """Empty until the member consumes the queue."""
    return next((one for one in member.state()["queues"] if one["queue"] == queue), {})


def progress(member: Member, queue: int = QUEUE) -> str:
    return str(state_of(member, queue).get("progress"))


def active(member: Member, queue: int = QUEUE) -> bool:
    return bool(state_of(member, queue).get("active"))


def keys_of_queue(place: Place) -> list[str]:
    return [
        key
        for key in (f"key-{number}" for number in range(40))
        if queue_of(hash_of(key, place.spec.hash_count), place.spec.queue_count) == QUEUE
    ]


@pytest.mark.parametrize("had_deliveries", repeated([True, False]))
async def test_a_channel_that_swallows_deliveries_is_replaced_and_everything_comes_in_order(
    place: Place, load: Load, proxy: SwallowingProxy, had_deliveries: bool, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Judge()
    async with (
        Member(place.settings("a", broker=proxy.url, prefetch=8), judge.handler("a")) as a,
        Member(place.settings("b", broker=place.url, prefetch=8), judge.handler("b")) as b,
    ):
        await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1])
        if had_deliveries:
            await load.publish(600, rate_hz=300)
            await load.all_seen(judge)
        assert active(a) == had_deliveries
        proxy.swallow.add(proxy.consumers[place.names.queue(QUEUE)])
        await load.publish(400)
        await load.publisher.flush()
        await until(lambda: proxy.swallowed >= 8, what="a window of deliveries to vanish")
        await until(
            lambda: progress(a) == "Stalled" or active(b), what="the stall to be noticed", timeout_s=GUARD_S
        )
        await load.all_seen(judge)
        assert a.state()["counts"]["stalls"] == 1
        assert b.state()["counts"]["stalls"] == 0
        assert "queue 0 is stalled" in caplog.text
        await load.publish(400)
        await load.all_seen(judge)
        await until(lambda: progress(a) != "Stalled", what="the end of the stall to be seen")
    assert not judge.inversions
    assert not judge.repeats, "what vanished was never called"


async def test_a_slow_application_and_a_blocked_key_are_shown_and_left_alone(
    place: Place, load: Load
) -> None:
    judge = Judge()
    poison, *_ = keys_of_queue(place)
    may_end = asyncio.Event()

    async def work(message: Message) -> Verdict | None:
        if may_end.is_set():
            return None
        if message.queue == QUEUE:
            return retry("poison", after_s=0.2) if message.key == poison else None
        await may_end.wait()
        return None

    settings = place.settings("a", prefetch=8, concurrency=64, max_attempts=10_000)
    async with Member(settings, judge.handler("a", work)) as a:
        await load.publish(600)
        await load.publisher.flush()
        await until(lambda: progress(a) == "Blocked", what="the window to be full of the poisonous key")
        await asyncio.sleep(4.5)  # longer than a stall would take to be noticed
        assert a.state()["counts"]["stalls"] == 0
        assert [progress(a, queue) for queue in range(4)] == ["Blocked", "Working", "Working", "Working"]
        may_end.set()
        await load.all_seen(judge)
    assert not judge.inversions
