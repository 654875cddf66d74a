"""Members on real brokers: joining, leaving, crashing, and what the application sees of it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lbg_broker.client import connect
from lbg_broker.group import HEADER_QUEUE, HEADER_SEQ
from lbg_broker.journal import JournalReader
from lbg_broker.provisioning import GroupNotFound
from lbg_sidecar import Assignment, Member, MemberSettings, Message, SettingsError, Verdict, drop, retry
from lbg_sidecar.shell.outgoing import HEADER_ATTEMPTS, HEADER_REASON
from support.group_load import Judge, Load, load_on, under_load
from support.member_place import Place
from support.member_process import MemberProcess
from support.waiting import until


@pytest.fixture
async def load(place: Place) -> AsyncIterator[Load]:
    async with load_on(place.url, place.spec.name) as load:
        yield load


def active(member: Member) -> set[int]:
    return {queue["queue"] for queue in member.state()["queues"] if queue["active"]}


def primary(member: Member) -> set[int]:
    return {queue["queue"] for queue in member.state()["queues"] if queue["role"] == "primary"}


def in_balance(*members: Member) -> bool:
    return all(
        active(member) == primary(member) and member.state()["rebalance"] == "Ready" for member in members
    )


async def test_one_member_gets_everything_in_order_and_acknowledges_it(place: Place, load: Load) -> None:
    judge = Judge()
    async with Member(place.settings("a"), judge.handler("a")) as member:
        await load.publish(500)
        await load.all_seen(judge)
        assert member.index == 0
        assert member.state()["live"] == [0]
    assert not judge.inversions
    assert not judge.repeats
    for queue in range(4):
        assert await place.count(place.names.queue(queue)) == 0


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


async def test_members_that_join_at_once_have_unique_indexes_and_agree(place: Place) -> None:
    members = [Member(place.settings(f"m{n}"), Judge().handler("m")) for n in range(6)]
    await asyncio.gather(*(member.__aenter__() for member in members))
    try:
        everyone = list(range(6))
        assert sorted(member.index or 0 for member in members) == everyone
        await until(lambda: all(member.state()["live"] == everyone for member in members))
    finally:
        await asyncio.gather(*(member.__aexit__(None, None, None) for member in members))


async def test_the_lowest_index_that_is_free_is_taken(place: Place) -> None:
    async with (
        Member(place.settings("a"), Judge().handler("a")) as a,
        Member(place.settings("b"), Judge().handler("b")) as b,
    ):
        assert (a.index, b.index) == (0, 1)
        await a.__aexit__(None, None, None)
        async with Member(place.settings("c"), Judge().handler("c")) as c:
            assert c.index == 0


async def test_a_fixed_index_is_waited_for_until_it_is_free(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with Member(place.settings("a", index=2), Judge().handler("a")) as a:
        assert a.index == 2
        other = asyncio.create_task(Member(place.settings("b", index=2), Judge().handler("b")).__aenter__())
        await until(lambda: "index 2 belongs to another" in caplog.text)
        assert not other.done()
    b = await asyncio.wait_for(other, 20)
    assert b.index == 2
    await b.__aexit__(None, None, None)


async def test_a_group_that_is_not_there_is_one_clear_error(place: Place) -> None:
    member = Member(MemberSettings(broker=place.url, group="nobody"), Judge().handler("a"))
    with pytest.raises(GroupNotFound, match="nobody"):
        await member.__aenter__()


async def test_more_clients_than_queues_is_one_clear_error(place: Place) -> None:
    settings = place.settings("a", assignment=Assignment.STATIC, clients=9)
    with pytest.raises(SettingsError, match="clients is 9"):
        await Member(settings, Judge().handler("a")).__aenter__()


async def test_a_retry_keeps_its_key_waiting_and_no_other(place: Place, load: Load) -> None:
    judge = Judge()
    order: list[str | None] = []

    async def twice(message: Message) -> Verdict | None:
        order.append(message.key)
        return retry("busy", after_s=0.3) if message.key == "key-0" and message.attempt < 3 else None

    async with Member(place.settings("a"), judge.handler("a", twice)) as member:
        await load.publish(120)
        await until(lambda: member.state()["counts"]["acked"] == 120)
    first_of_all_others = len(set(order[: order.index("key-0", order.index("key-0") + 1)]))
    assert first_of_all_others == 40, "every other key got its turn while key-0 waited"
    assert not judge.inversions
    assert judge.repeats == 3 * 2


async def test_a_refused_message_is_a_dead_letter_with_its_reason_and_is_acknowledged(
    place: Place, load: Load
) -> None:
    judge = Judge()

    async def refuse(message: Message) -> Verdict | None:
        return drop("no such aircraft") if message.data == b"7" else None

    async with Member(place.settings("a"), judge.handler("a", refuse)) as member:
        await load.publish(50)
        await load.all_seen(judge)
        await until(lambda: member.state()["counts"]["dead_lettered"] == 1)
    connection = await connect(place.url)
    channel = await connection.open_channel()
    dead = await channel.basic_get(place.names.dead, no_ack=True)
    assert dead is not None
    assert bytes(dead.body) == b"7"
    assert dead.headers[HEADER_REASON] == "no such aircraft"
    assert dead.headers[HEADER_ATTEMPTS] == 1
    assert dead.headers[HEADER_SEQ] == 0
    assert dead.headers[HEADER_QUEUE] in range(4)
    assert dead.routing_key.endswith(".load")
    await connection.close()
    assert not judge.repeats


async def test_after_the_last_attempt_a_message_is_a_dead_letter(place: Place, load: Load) -> None:
    judge = Judge()

    async def fail(message: Message) -> Verdict | None:
        if message.data == b"3":
            raise ValueError("cannot be parsed")
        return None

    settings = place.settings("a", max_attempts=2, when_exhausted="dead-letter", retry_first_s=0.05)
    async with Member(settings, judge.handler("a", fail)) as member:
        await load.publish(10)
        await load.all_seen(judge)
        await until(lambda: member.state()["counts"]["dead_lettered"] == 1)
        assert member.state()["counts"]["retried"] == 2
    assert await place.count(place.names.dead) == 1


async def test_a_call_without_a_verdict_is_aborted_and_made_again(place: Place, load: Load) -> None:
    judge = Judge()

    async def hang_once(message: Message) -> None:
        if message.attempt == 1 and message.data == b"5":
            await asyncio.Event().wait()

    settings = place.settings("a", call_timeout_s=0.3, retry_first_s=0.05)
    async with Member(settings, judge.handler("a", hang_once)) as member:
        await load.publish(20)
        await until(lambda: member.state()["counts"]["acked"] == 20)
        assert member.state()["counts"]["timed_out"] == 1
    assert judge.repeats == 1


async def test_a_lost_connection_aborts_calls_and_the_member_comes_back_with_its_index(
    place: Place, load: Load
) -> None:
    judge = Judge()
    cancelled = []
    hanging = asyncio.Event()

    async def hang_once(message: Message) -> None:
        if not cancelled:
            hanging.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.id)
                raise

    async with Member(place.settings("a"), judge.handler("a", hang_once)) as member:
        await load.publish(1)
        await hanging.wait()
        before = member.state()["incarnation"]
        driver = member._driver
        assert driver is not None
        assert driver.link is not None
        driver.link.work.abort()
        await until(lambda: cancelled, timeout_s=1)
        await until(lambda: member.state()["counts"]["acked"] == 1)
        assert member.index == 0
        assert member.state()["incarnation"] != before


async def test_a_killed_member_is_missed_by_all_within_a_second_and_its_queues_go_on(
    place: Place, load: Load, tmp_path: Path
) -> None:
    judge = Judge()
    victim = MemberProcess("victim", tmp_path, **place.told())
    async with (
        Member(place.settings("a"), judge.handler("a")) as a,
        Member(place.settings("b"), judge.handler("b")) as b,
    ):
        await victim.start()
        try:
            index = await victim.joined()
            async with under_load(load):
                await until(lambda: in_balance(a, b), what="three members in balance")
                await until(lambda: len(active(a)) + len(active(b)) < 4, what="queues at the victim")
                at_ns = await victim.kill()
                loop = asyncio.get_running_loop()
                await until(lambda: index not in a.state()["live"] and index not in b.state()["live"])
                assert loop.time() - at_ns / 1e9 < 1.5
                await until(lambda: active(a) | active(b) == {0, 1, 2, 3}, what="every queue served again")
                await until(lambda: in_balance(a, b), what="two members in balance")
        finally:
            await victim.close()
        taken = {(call.hash, call.seq) for call in victim.calls()}
        await load._publisher.flush()
        await until(
            lambda: len(taken | {(hash_, seq) for _, hash_, seq in judge.times}) >= load.published,
            what="every message",
        )
    assert not judge.inversions
    assert not judge.repeats


async def test_a_member_that_is_asked_to_leave_exits_with_0_and_repeats_nothing(
    place: Place, load: Load, tmp_path: Path
) -> None:
    judge = Judge()
    leaver = MemberProcess("leaver", tmp_path, work_s=0.01, **place.told())
    async with Member(place.settings("a"), judge.handler("a")) as a:
        await leaver.start()
        try:
            await leaver.joined()
            async with under_load(load):
                await until(lambda: in_balance(a) and len(active(a)) == 2)
                leaver.signal(signal.SIGTERM)
                assert await leaver.ended() == 0
                await until(lambda: len(active(a)) == 4)
        finally:
            await leaver.close()
        theirs = [(call.hash, call.seq) for call in leaver.calls()]
        await load._publisher.flush()

        def ours() -> set[tuple[int, int]]:
            return {(hash_, seq) for _, hash_, seq in judge.times}

        await until(lambda: len({*theirs, *ours()}) >= load.published, what="every message")
    assert len(set(theirs)) == len(theirs)
    assert not set(theirs) & ours()
    assert not judge.repeats
    assert not judge.inversions


async def test_a_member_whose_application_hangs_leaves_within_its_grace_period(
    place: Place, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(message: Message) -> None:
        await asyncio.Event().wait()

    caplog.set_level(logging.INFO, "lbg.member")
    settings = place.settings("a", max_handoff_s=0.2, shutdown_grace_s=0.6)
    async with Member(settings, hang) as member:
        await load.publish(20)
        await until(lambda: member.state()["lanes"]["running"] == 16)
        async with asyncio.timeout(3):
            member.stop("test")
            await member.run()
        assert member.state()["counts"]["forced"] >= 16
    assert "messages were cut off at work and are delivered again" in caplog.text
    await until_ready(place, 20)


async def until_ready(place: Place, count: int) -> None:
    async with asyncio.timeout(10):
        while sum([await place.count(place.names.queue(n)) for n in range(4)]) != count:  # noqa: ASYNC110 (the broker tells nobody)
            await asyncio.sleep(0.05)


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


async def test_a_static_member_serves_its_own_queues_and_the_rest_wander(place: Place, load: Load) -> None:
    judge = Judge()
    static = {"assignment": Assignment.STATIC, "clients": 3, "release_interval_s": 0.4}
    async with (
        Member(place.settings("a", index=0, **static), judge.handler("a")) as a,
        Member(place.settings("b", index=1, **static), judge.handler("b")) as b,
    ):
        async with under_load(load):
            await until(lambda: {0, 3} <= active(a) and 1 in active(b), what="primaries at the top")
            since = len(judge.starts)
            await until(
                lambda: (
                    {"a", "b"}
                    <= {member for member, _, (_, hash_, _) in judge.starts[since:] if hash_ % 4 == 2}
                ),
                what="the queue without a primary to wander",
            )
        await load.all_seen(judge)
    assert not judge.inversions
    assert not judge.repeats


async def test_what_is_republished_is_confirmed_before_the_ack_and_waits_for_a_listener(
    place: Place, load: Load
) -> None:
    judge = Judge()
    async with Member(place.settings("a", republish=True), judge.handler("a")) as member:
        await load.publish(100)
        await load.all_seen(judge)
        await asyncio.sleep(0.2)
        assert member.state()["counts"]["acked"] == 0
        connection = await connect(place.url)
        channel = await connection.open_channel()
        await channel.queue_declare(place.names.validation, durable=True)
        await channel.queue_bind(place.names.validation, place.names.validate, "")
        await until(lambda: member.state()["counts"]["acked"] == 100)
        seen = []
        while (message := await channel.basic_get(place.names.validation, no_ack=True)) is not None:
            seen.append((message.headers["lbg-key"], message.headers[HEADER_SEQ], message.headers))
        await connection.close()
    assert len(seen) == 100
    for key in {key for key, _, _ in seen}:
        seqs = [seq for each, seq, _ in seen if each == key]
        assert seqs == sorted(seqs)
    headers = seen[0][2]
    assert headers["lbg-member"] == 0
    assert headers["lbg-member-name"] == "a"
    assert headers["lbg-redelivered"] is False
    assert headers["lbg-queue"] == headers["lbg-hash"] % 4
    assert headers["lbg-delivered-at"] > headers["lbg-ts"]
    assert not judge.repeats


async def test_every_delivery_leaves_a_record_in_the_journal(
    place: Place, load: Load, tmp_path: Path
) -> None:
    judge = Judge()

    async def some(message: Message) -> Verdict | None:
        return drop("odd") if message.data == b"7" else None

    async with Member(place.settings("a", journal=tmp_path / "journal"), judge.handler("a", some)) as member:
        await load.publish(60)
        await load.all_seen(judge)
        await until(lambda: member.state()["counts"]["acked"] == 59)
        await until(lambda: member.state()["counts"]["dead_lettered"] == 1)
    records = list(JournalReader(tmp_path / "journal"))
    assert len(records) == 60
    assert sorted(record.verdict for record in records) == ["ack"] * 59 + ["dead"]
    for record in records:
        assert record.published_at_us < record.delivered_at_us <= record.started_at_us
        assert record.started_at_us <= record.finished_at_us <= record.settled_at_us
        assert record.member_name == "a"


async def test_a_message_published_twice_is_dropped_also_after_its_queue_has_moved(place: Place) -> None:
    judge = Judge()
    connection = await connect(place.url)
    channel = await connection.open_channel()
    headers = {"lbg-key": "k", "lbg-publisher": "p-1", "lbg-seq": 0, "lbg-ts": 1}
    from lbg_broker.client import BasicProperties

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


async def test_a_member_that_was_stopped_for_long_neither_calls_nor_acknowledges_when_it_wakes(
    place: Place, load: Load, tmp_path: Path
) -> None:
    judge = Judge()
    url = place.url + ("&" if "?" in place.url else "?") + "heartbeat=1"
    frozen = MemberProcess("frozen", tmp_path, work_s=0.2, **place.told(broker=url, concurrency=2))
    await frozen.start()
    try:
        await frozen.joined()
        await load.publish(40)
        await until(lambda: len(list(frozen.calls())) >= 2)
        frozen.signal(signal.SIGSTOP)
        async with Member(place.settings("a"), judge.handler("a")):
            await load._publisher.flush()
            await until(lambda: len(judge.times) >= 30, what="the other member to get what was prefetched")
            await asyncio.sleep(0.3)
            before = len(list(frozen.calls()))
            frozen.signal(signal.SIGCONT)
            await until(lambda: "nothing ran here" in frozen.log(), what="the fence")
            assert len(list(frozen.calls())) == before
            await until(lambda: len({e.at_ns for e in frozen.events if e.kind == "live"}) >= 2)
            done_by_frozen = {(c.hash, c.seq) for c in frozen.calls()}
            await until(
                lambda: len(done_by_frozen | {(h, s) for _, h, s in judge.times}) == load.published,
                what="every message",
            )
    finally:
        await frozen.close()
    assert not judge.inversions
