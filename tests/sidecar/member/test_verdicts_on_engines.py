"""Members on real brokers: what becomes of a message after its call: retried, refused, sent on, journalled."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lbg_core.client import BasicProperties, connect
from lbg_core.group import HEADER_ATTEMPTS, HEADER_QUEUE, HEADER_REASON, HEADER_SEQ
from lbg_core.journal import JournalReader
from lbg_sidecar import Member, Message, Verdict, drop, retry
from testing.member.group_load import Judge, Load
from testing.member.place import Place
from testing.waiting import until


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


async def test_a_dead_letter_whose_headers_leave_no_room_in_a_frame_goes_as_it_came_and_holds_up_no_other(
    place: Place,
) -> None:
    async def refuse(message: Message) -> Verdict:
        return drop("no")

    large = {"lbg-key": "k", "x": "x" * 130_950}
    connection = await connect(place.url)
    channel = await connection.open_channel()
    async with Member(place.settings("a"), refuse) as member:
        for headers in (large, {"lbg-key": "k"}):
            properties = BasicProperties(headers=headers, delivery_mode=2)
            channel.publish(place.names.exchange, f"{place.spec.hash_prefix}.1", b"", properties=properties)
        await until(lambda: member.state()["counts"]["dead_lettered"] == 2)
    first, second = [await channel.basic_get(place.names.dead, no_ack=True) for _ in range(2)]
    await connection.close()
    assert first is not None
    assert second is not None
    assert {name: first.headers[name] for name in large} == large
    assert (first.headers.get(HEADER_REASON), second.headers.get(HEADER_REASON)) == (None, "no")


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
        assert (record.member_name, record.group, record.mode) == ("a", place.names.group, None)
    assert sum(record.body_bytes for record in records) == sum(len(str(number)) for number in range(60))
