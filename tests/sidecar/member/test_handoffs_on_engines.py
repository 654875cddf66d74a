"""Members on real brokers: queues that move from one member to another."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from lbg_core.admin import connect_admin
from lbg_core.client import BasicProperties, connect
from lbg_core.group import BALANCED, BY_LOAD, EXCLUSIVE, PARTITIONED, STATIC, Assignment
from lbg_sidecar import Member, Message, Verdict, retry
from lbg_sidecar.core import acks
from testing.member.balance import active, in_balance, primary
from testing.member.group_load import Judge, Load, under_load
from testing.member.place import Place
from testing.waiting import until

NEVER_S = 3600.0


async def test_a_member_that_joins_takes_its_share_and_one_that_leaves_gives_it_back(
    place: Place, load: Load
) -> None:
    judge = Judge()
    async with Member(place.settings("a"), judge.handler("a")) as a:
        async with under_load(load):
            await until(lambda: len(active(a)) == 4)
            async with Member(place.settings("b"), judge.handler("b")) as b:
                await until(lambda: in_balance(a, b), what="two members in balance")
                assert len(active(a)) == len(active(b)) == 2
                assert a.state()["live"] == b.state()["live"] == [0, 1]
                since = len(judge.starts)
                await until(lambda: judge.members(since=since) == {"a", "b"})
            await until(lambda: len(active(a)) == 4, what="everything back at a")
        await load.all_seen(judge)
    assert not judge.inversions
    assert not judge.repeats, "planned moves repeat nothing"


async def test_a_queue_that_does_not_drain_stays_and_moves_once_it_does(place: Place, load: Load) -> None:
    judge = Judge()
    release = asyncio.Event()

    async def hang(message: Message) -> None:
        if message.key == "key-0":
            await release.wait()

    settings = {"max_handoff_s": 0.2, "rebalance_delay_s": 0.3}
    async with Member(place.settings("a", **settings), judge.handler("a", hang)) as a:
        await load.publish(400)
        await until(lambda: len(judge.times) >= 390)
        stuck = next(q["queue"] for q in a.state()["queues"] if q["in_flight"])
        async with (
            Member(place.settings("b", index=1, **settings), judge.handler("b", hang)) as b,
            Member(place.settings("c", index=2, **settings), judge.handler("c", hang)) as c,
            Member(place.settings("d", index=3, **settings), judge.handler("d", hang)) as d,
        ):
            owner = next(member for member in (a, b, c, d) if stuck in primary(member))
            if owner is not a:
                await until(lambda: len(active(a) - primary(a)) == 1, what="all but the stuck queue to move")
                await asyncio.sleep(0.5)
                assert stuck in active(a)
            async with under_load(load, rate_hz=100):
                release.set()
                await until(lambda: in_balance(a, b, c, d), what="four members in balance")
            await load.all_seen(judge)
    assert not judge.inversions
    assert not judge.repeats


async def test_calls_that_outlast_the_handoff_time_starve_no_join_and_are_not_repeated(
    place: Place, load: Load
) -> None:
    judge = Judge()

    async def work(message: Message) -> None:
        await asyncio.sleep(1.0)

    settings = {"max_handoff_s": 0.1, "rebalance_delay_s": 0.2}
    async with (
        Member(place.settings("a", **settings), judge.handler("a", work)) as a,
        under_load(load, rate_hz=14),
    ):
        await until(lambda: a.state()["lanes"]["running"] >= 8, what="calls in every queue")
        async with Member(place.settings("b", **settings), judge.handler("b", work)) as b:
            await until(lambda: in_balance(a, b), what="two members in balance")
            assert a.state()["counts"]["forced"] == 0
            assert not any(queue["put_off"] for queue in a.state()["queues"])
            await until(lambda: "b" in judge.members(since=0), what="work at the member that joined")
    assert not judge.inversions
    assert not judge.repeats


async def assign(place: Place, assignment: Assignment) -> None:
    async with connect_admin(place.url) as admin:
        await admin.assign_queues(place.spec.name, assignment)


async def test_a_static_member_serves_its_own_queues_and_the_rest_wander(place: Place, load: Load) -> None:
    """Also when they were balanced before, and are again afterwards."""
    judge = Judge()
    static = {"release_interval_s": 0.4}
    async with (
        Member(place.settings("a", index=0, **static), judge.handler("a")) as a,
        Member(place.settings("b", index=1, **static), judge.handler("b")) as b,
    ):
        async with under_load(load):
            await until(lambda: len(active(a)) == len(active(b)) == 2, what="balance")
            await assign(place, STATIC)
            await until(lambda: 0 in active(a) and 1 in active(b), what="primaries at the top")
            since = len(judge.starts)
            await until(
                lambda: (
                    {"a", "b"}
                    <= {member for member, _, (_, hash_, _) in judge.starts[since:] if hash_ % 4 == 2}
                ),
                what="the queue without a primary to wander",
            )
            await assign(place, BALANCED)
            await until(lambda: len(active(a)) == len(active(b)) == 2, what="balance again")
        await load.all_seen(judge)
    assert not judge.inversions
    assert not judge.repeats


async def test_an_assignment_that_changes_while_a_member_joins_is_its_own(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at the record and its mailbox: nobody tells it."""

    async def ready(*_: object) -> None:
        await assign(place, STATIC)

    monkeypatch.setattr("lbg_sidecar.member.app_ready", ready)
    async with Member(place.settings("a", index=1), Judge().handler("a")) as a:
        await until(lambda: primary(a) == {1}, what="the primaries of Static")


async def test_a_leave_repeats_nothing_that_is_done_behind_a_key_that_waits(
    place: Place, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No successor is named, so none has the positions."""
    monkeypatch.setattr(acks, "SINGLE_ACK_AFTER_S", NEVER_S)
    judge = Judge()
    static = {"release_interval_s": NEVER_S}
    await assign(place, STATIC)

    async def fail(message: Message) -> Verdict | None:
        return retry(after_s=NEVER_S) if message.key == "key-0" else None

    async with AsyncExitStack() as stay:
        a = await stay.enter_async_context(
            Member(place.settings("a", index=0, **static), judge.handler("a", fail))
        )
        await load.publish(400)
        await until(lambda: len(judge.times) == 391, what="all but the key that waits")
        async with Member(place.settings("b", index=1, **static), judge.handler("b")) as b:
            await until(lambda: {q["status"] for q in b.state()["queues"]} == {"Unassigned"})
            await stay.aclose()
            await load.all_seen(judge)
    assert not judge.inversions
    assert a.state()["counts"]["forced"] == 0
    others = [name for _, key, name in judge.starts if key != "key-0"]
    assert len(others) == len(set(others)) == 390


async def test_a_message_published_twice_is_dropped_also_after_its_queue_has_moved(place: Place) -> None:
    judge = Judge()
    connection = await connect(place.url)
    channel = await connection.open_channel()
    headers = {"lbg-key": "k", "lbg-publisher": "p-1", "lbg-seq": 0, "lbg-ts": 1}

    def publish(seq: int) -> None:
        properties = BasicProperties(headers={**headers, "lbg-seq": seq}, delivery_mode=2)
        channel.publish(place.names.exchange, f"{place.spec.hash_prefix}.1.t", b"x", properties=properties)

    async with Member(place.settings("a"), judge.handler("a")) as a:
        publish(0)
        publish(1)
        publish(1)
        await until(lambda: a.state()["counts"]["repeats_dropped"] == 1)
        async with Member(place.settings("b"), judge.handler("b")) as b:
            await until(lambda: active(a) == set(), what="the only busy queue to move")
            publish(0)
            publish(2)
            await until(lambda: b.state()["counts"]["acked"] == 1)
            assert b.state()["counts"]["repeats_dropped"] == 1
    await connection.close()
    assert not judge.repeats


@pytest.mark.parametrize(
    ("place", "mode"),
    [("embedded", EXCLUSIVE), ("rabbitmq", EXCLUSIVE), ("rabbitmq", PARTITIONED)],
    indirect=True,
)
async def test_queues_leave_a_member_that_is_slower_than_the_other(place: Place, load: Load) -> None:
    judge = Judge()

    async def slow(message: Message) -> None:
        await asyncio.sleep(0.08)

    async with (
        Member(place.settings("a", concurrency=1), judge.handler("a", slow)) as a,
        Member(place.settings("b", concurrency=1), judge.handler("b")) as b,
    ):
        async with under_load(load, rate_hz=40):
            await until(lambda: len(active(a)) == len(active(b)) == 2, what="balance")
            await assign(place, BY_LOAD)
            await until(lambda: len(active(b)) > 2, what="a move by load")
        await load.all_seen(judge)
    assert not judge.inversions
    assert not judge.repeats
