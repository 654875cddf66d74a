"""`lbg group peek` and `lbg group key`: messages where they are, shown and not taken."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from lbg_core.admin import connect_admin
from lbg_core.admin.member_requests import PeekResult
from lbg_core.group import Names, hash_of
from lbg_core.group.held_messages import HeldState
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, retry
from testing.command_line import Lbg, Said, Where
from testing.waiting import until

BODIES = [b"a0", b"\xff\x00", b"a2", b"a3", b"a4"]


async def publish(broker: Where, group: str, bodies: list[bytes] = BODIES, key: str = "a") -> None:
    async with GroupPublisher(broker.broker, group=group) as publisher:
        for body in bodies:
            await publisher.publish(key=key, body=body, topic="t")


def queue_number(key: str) -> int:
    return hash_of(key, 20) % 2


async def peeked(broker: Where, group: str, **wanted: Any) -> PeekResult:
    async with connect_admin(broker.broker, broker.management) as admin:
        return await admin.peek_group(group, **wanted)


def test_a_peek_takes_nothing_and_changes_neither_order_nor_redelivered_flags(
    broker: Where, group: str
) -> None:
    seen: list[tuple[bytes, bool]] = []
    release = asyncio.Event()

    async def handle(message: Message) -> None:
        seen.append((message.data, message.redelivered))
        await release.wait()

    async def run() -> PeekResult:
        settings = MemberSettings(
            broker=broker.broker, group=group, name="m", prefetch=2, rebalance_delay_s=0.2
        )
        async with Member(settings, handle) as member:
            await publish(broker, group)
            await until(lambda: len(seen) == 1)
            found = await peeked(broker, group, limit=100)
            assert (await peeked(broker, group, limit=100)) == found
            release.set()
            await until(lambda: member.state()["counts"]["acked"] == len(BODIES))
        return found

    found = asyncio.run(run())
    assert seen == [(body, False) for body in BODIES]
    held = [(one.state, one.member, one.body, one.body_base64, one.redelivered) for one in found.messages]
    assert held[:2] == [("running", "m", "a0", None, False), ("waiting", "m", None, "/wA=", False)]
    assert (found.held, found.silent) == (2, ())
    name = Names(group).queue(queue_number("a"))
    if found.is_rabbitmq:
        assert (held[2:], found.unread) == ([], {name: 3})
    else:
        assert [one[:3] for one in held[2:]] == [
            (HeldState.READY, None, body.decode()) for body in BODIES[2:]
        ]
        assert found.unread == {}


def test_messages_are_found_by_queue_and_id(lbg: Lbg, broker: Where, group: str) -> None:
    async def fail(message: Message) -> Verdict:
        return retry("no such account")

    other = next(key for key in map(str, range(100)) if queue_number(key) != queue_number("a"))

    async def run() -> list[PeekResult]:
        settings = MemberSettings(
            broker=broker.broker, group=group, name="m", max_attempts=1, rebalance_delay_s=0.2
        )
        async with Member(settings, fail) as member:
            await publish(broker, group)
            await publish(broker, group, [b"other"], key=other)
            await until(lambda: member.state()["counts"]["poisoned"] == 2)
            found = await peeked(broker, group, queue=queue_number(other))
            by_queue = await peeked(broker, group, queue=queue_number("a"), limit=2)
            by_id = await peeked(broker, group, id=by_queue.messages[1].id)
            return [found, by_queue, by_id]

    of_other, by_queue, by_id = asyncio.run(run())
    (one,) = of_other.messages
    assert (one.key, one.state, one.reason, one.attempts) == (other, "poisoned", "no such account", 1)
    assert [one.state for one in by_queue.messages] == ["poisoned", "waiting"]
    assert by_queue.held == 5
    assert by_id.messages == by_queue.messages[1:]


def test_the_command_shows_what_waits_without_a_member_or_says_why_not(
    lbg: Lbg, broker: Where, group: str
) -> None:
    asyncio.run(publish(broker, group))
    name = Names(group).queue(queue_number("a"))
    said = lbg("group", "peek", group, "--limit", "2", "--body-bytes", "1", *broker.options)
    assert said.status == 0, said.err
    shown = json.loads(lbg("group", "peek", group, "--json", *broker.options).out)
    if "RabbitMQ" in said.err:
        assert said.out == ""
        assert f"! 5 messages wait in {name}: RabbitMQ refuses to show messages" in said.err
        assert (shown["messages"], shown["unread"]) == ([], {name: 5})
    else:
        first, body, second, binary = said.out.splitlines()
        assert ("  ready  key a  queue " in first, body) == (True, "  body of 2 bytes: a … and 1 byte more")
        assert ("  ready  key a  queue " in second, binary) == (
            True,
            "  body of 2 bytes: base64 /w== … and 1 byte more",
        )
        assert f"! 3 more messages wait in {name}" in said.err
        assert [one["body_bytes"] for one in shown["messages"]] == [2] * 5
        one = lbg("group", "peek", group, "--id", shown["messages"][3]["id"], *broker.options)
        assert one.out.splitlines()[1:] == ["  body of 2 bytes: a3"]
    missing = lbg("group", "peek", group, "--id", "p-1-1", *broker.options)
    assert missing.status == 1
    assert f"`lbg dead list {group}` has the dead letters" in missing.last_line
    beyond = lbg("group", "peek", group, "--queue", "2", *broker.options)
    assert (beyond.status, "must be below 2" in beyond.last_line) == (2, True)


def test_the_fate_of_a_key_is_a_table_with_how_far_back_it_reaches(
    lbg: Lbg, broker: Where, group: str
) -> None:
    release = asyncio.Event()

    async def handle(message: Message) -> None:
        if message.data == b"last":
            await release.wait()

    async def run() -> tuple[Said, Said]:
        settings = MemberSettings(broker=broker.broker, group=group, name="m", rebalance_delay_s=0.2)
        async with Member(settings, handle) as member:
            await publish(broker, group, [b"first", b"last"])
            await until(lambda: member.state()["counts"]["acked"] == 1)
            text = await asyncio.to_thread(lbg, "group", "key", group, "a", "--bodies", *broker.options)
            document = await asyncio.to_thread(lbg, "group", "key", group, "a", "--json", *broker.options)
            release.set()
        return text, document

    text, document = asyncio.run(run())
    assert text.status == 0, text.err
    title, publisher, header, first, last, history, places, message, body = text.out.splitlines()
    assert title == f"key a of group {group}: hash {hash_of('a', 20)}, queue {queue_number('a')}"
    assert publisher.startswith("publisher publisher-")
    assert header.split() == [
        "TIME",
        "SEQ",
        "PUBLISHED",
        "QUEUE",
        "MEMBER",
        "WAITED",
        "TRIES",
        "LAST",
        "CALL",
    ]
    assert first.endswith("finished")
    assert last.endswith("RUNS")
    assert "history: the last messages of all keys at m 1 since " in history
    assert places == "1 message of this key: 1 at member m"
    assert "  running  key a  queue " in message
    assert body == "  body of 4 bytes: last"
    shown = json.loads(document.out)
    assert (shown["count"], shown["is_complete"]) == (1, True)
    assert [(one["seq"], one["word"]) for one in shown["steps"]] == [(0, "finished"), (1, "running")]
    assert [(one["member"], one["kept"]) for one in shown["remembered"]] == [("m", 1)]
