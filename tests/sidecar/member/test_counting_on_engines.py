"""Members on real brokers: what waits and what is in flight add up to what is there, on either engine."""

from __future__ import annotations

import asyncio

from lbg_sidecar import Member
from testing.member.balance import in_balance
from testing.member.group_load import Judge, Load, under_load
from testing.member.place import Place
from testing.waiting import until


async def test_what_waits_at_the_broker_and_what_is_in_flight_is_all_there_is(
    place: Place, load: Load
) -> None:
    hanging = asyncio.Event()

    async def hang(message: object) -> None:
        await hanging.wait()

    judge = Judge()
    async with Member(place.settings("a", prefetch=5, concurrency=2), judge.handler("a", hang)) as a:
        await load.publish(100)

        async def total() -> int:
            counted = [await a.count(queue) for queue in range(4)]
            assert None not in counted
            return sum(filter(None, counted)) + sum(one["in_flight"] for one in a.state()["queues"])

        await until(lambda: sum(one["in_flight"] for one in a.state()["queues"]) == 20, what="full windows")
        for _ in range(1000):  # what is not confirmed yet is not there yet
            if await total() == 100:
                break
            await asyncio.sleep(0.02)
        assert await total() == 100
        assert [one["window"] for one in a.state()["queues"]] == [5] * 4
        assert [one["served_by"] for one in a.state()["queues"]] == [0] * 4
        assert a.last_received_at is not None
        hanging.set()
        await load.all_seen(judge)

        async with Member(place.settings("b"), judge.handler("b")) as b, under_load(load):
            await until(lambda: in_balance(a, b), what="two members in balance")

            def served_by(member: Member) -> list[str]:
                return sorted(str(one["served_by"]) for one in member.state()["queues"])

            both = ["0", "0", "1", "1"]
            await until(lambda: served_by(a) == served_by(b) == both, what="each to know of both")
        await load.all_seen(judge)
