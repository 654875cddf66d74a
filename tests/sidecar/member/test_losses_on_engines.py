"""Members on real brokers: connections lost, processes killed and frozen, and members that leave."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from pathlib import Path

import pytest

from lbg_core.client import ConnectionSettings
from lbg_core.journal import JournalReader
from lbg_sidecar import Member, Message
from lbgroup.validate.collector import CollectingSettings, Collector
from testing.member.balance import active, in_balance
from testing.member.group_load import Judge, Load, under_load
from testing.member.place import Place
from testing.member.process import MemberProcess
from testing.pipeline.reference import judge as judge_journal
from testing.waiting import GUARD_S, until, until_answer


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
        member.drop_connection()
        await until(lambda: cancelled)
        await until(lambda: member.state()["counts"]["acked"] == 1)
        assert member.index == 0
        assert member.state()["incarnation"] != before


async def test_a_call_that_goes_on_after_a_lost_connection_is_an_overlap_for_both_validators(
    place: Place, load: Load, tmp_path: Path
) -> None:
    began, go_on = threading.Event(), threading.Event()
    begun: list[str] = []

    def cannot_be_aborted(message: Message) -> None:
        began.set()
        go_on.wait(30)

    async def note(message: Message) -> None:
        begun.append(message.id)

    watched = {"republish": True, "journal": tmp_path}
    collecting = Collector(CollectingSettings(place.spec.name), on_findings=lambda found: None)
    validating = asyncio.create_task(collecting.run([ConnectionSettings.parse(place.url)]))
    async with Member(place.settings("a", **watched), cannot_be_aborted) as a:
        await load.publish(1)
        await until(began.is_set)
        async with Member(place.settings("b", **watched), note) as b:
            await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1])
            await until(lambda: [one["status"] for one in b.state()["queues"]] == 4 * ["Unassigned"])
            a.drop_connection()
            await until(lambda: begun, what="the message at the other member")
            await until(lambda: a.state()["connected"], what="the first member back")
            go_on.set()
            await until(lambda: collecting.validation.overlaps.count, what="the overlap")
    collecting.stop()
    await validating
    report = collecting.validation.report(place.spec.name, None)
    assert (report["overlaps"], report["delivered"], report["ok"]) == (1, 1, False)
    records = list(JournalReader(tmp_path))
    (judged,) = judge_journal(records).values()
    (told,) = [one for one in judged.offences if one.kind == "overlap"]
    (overlap,) = report["overlapping"]
    assert (told.publisher, told.hash, told.seq) == (overlap["publisher"], overlap["hash"], overlap["seq"])


async def test_a_killed_member_is_missed_by_all_and_its_queues_go_on(
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
                await victim.kill()
                await until(lambda: index not in a.state()["live"] and index not in b.state()["live"])
                await until(lambda: active(a) | active(b) == {0, 1, 2, 3}, what="every queue served again")
                await until(lambda: in_balance(a, b), what="two members in balance")
        finally:
            await victim.close()
        taken = {(call.hash, call.seq) for call in victim.calls()}
        await load.publisher.flush()
        await until(
            lambda: len(taken | {(hash_, seq) for _, hash_, seq in judge.times}) >= load.published,
            what="every message",
        )
    assert not judge.inversions
    assert not judge.repeats


async def test_what_a_killed_member_has_acknowledged_is_in_its_journal(
    place: Place, load: Load, tmp_path: Path
) -> None:
    def seen() -> set[tuple[int, int]]:
        return {(hash_, seq) for _, hash_, seq in judge.times}

    judge = Judge()
    victim = MemberProcess("victim", tmp_path, **place.told(journal=str(tmp_path / "journal")))
    await victim.start()
    try:
        await victim.joined()
        await load.publish(200)
        await until(lambda: len(list(victim.calls())) >= 100, what="half of it")
    finally:
        await victim.kill()
    taken = {(call.hash, call.seq) for call in victim.calls()}
    async with Member(place.settings("a", journal=tmp_path / "journal"), judge.handler("a")):
        await load.publish(50)
        await until(lambda: len(taken | seen()) == load.published, what="every message")
    acked = {(one.hash_, one.seq) for one in JournalReader(tmp_path / "journal") if one.verdict == "ack"}
    assert acked == taken | seen()


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
        await load.publisher.flush()

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
        async with asyncio.timeout(GUARD_S):
            member.stop("test")
            await member.run()
        assert member.state()["counts"]["forced"] >= 16
    assert "running calls were aborted, their messages are delivered again" in caplog.text
    await until_ready(place, 20)


async def until_ready(place: Place, count: int) -> None:
    async def ready() -> int:
        return sum([await place.count(place.names.queue(number)) for number in range(4)])

    await until_answer(ready, lambda messages: messages == count)


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
            await load.publisher.flush()
            await until(lambda: len(judge.times) >= 30, what="the other member to get what was prefetched")
            await asyncio.sleep(0.3)
            before = len(list(frozen.calls()))
            frozen.signal(signal.SIGCONT)
            await until(lambda: "this process was stopped" in frozen.log(), what="the fence")
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
