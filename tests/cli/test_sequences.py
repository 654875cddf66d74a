"""The line about sequence numbers, on both engines: of a message that no queue took, and of one that somebody took."""

from __future__ import annotations

import asyncio
import json

from lbg_core.client import BasicProperties, ConfirmingPublisher, connect
from lbg_core.group import HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ, Names, hash_of
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict
from testing.command_line import Lbg, Said, Where
from testing.waiting import until

KEY = "a"


async def done(message: Message) -> Verdict | None:
    return None


def sequences_in(shown: Said) -> str:
    return next(line for line in shown.out.splitlines() if " stream" in line and "out of order" in line)


def test_a_message_that_no_queue_took_is_missing_until_it_is_replayed(
    lbg: Lbg, broker: Where, group: str
) -> None:
    names = Names(group)
    hash_ = hash_of(KEY, 20)
    binding = (names.queue(hash_ % 2), names.exchange, f"{group}.{hash_}.#")

    async def said(*command: str) -> Said:
        return await asyncio.to_thread(lbg, *command, *broker.options)

    async def run() -> None:
        connection = await connect(broker.broker)
        channel = await connection.open_channel()
        settings = MemberSettings(broker=broker.broker, group=group, name="m", rebalance_delay_s=0.2)

        async def unrouted() -> int:
            return (await channel.queue_declare(names.unrouted, passive=True)).message_count

        async with (
            Member(settings, done) as member,
            GroupPublisher(broker.broker, group=group) as publisher,
        ):
            await publisher.publish(key=KEY, body=b"0", topic="t")
            await until(lambda: member.state()["counts"]["acked"] == 1)
            # RabbitMQ routes by what it had for a moment after its answers.
            await channel.queue_unbind(*binding)
            while not await unrouted():
                await publisher.publish(key=KEY, body=b"1", topic="t")
            await channel.queue_bind(*binding)
            while (count := await unrouted()) != member.state()["sequences"]["missing"]:
                await publisher.publish(key=KEY, body=b"2", topic="t")
                await asyncio.sleep(0.2)
            shown = await said("group", "show", group)
            noun = "message" if count == 1 else "messages"
            assert f"{count} {noun} missing in 1 of 1 stream since " in sequences_in(shown)
            (problem,) = (line for line in shown.out.splitlines() if "perhaps among" in line)
            assert f"`lbg unrouted list {group}`" in problem
            document = json.loads((await said("group", "show", group, "--json")).out)
            assert document["sequences"]["missing"] == count
            assert {one["kind"] for one in document["problems"]} >= {"GapUnrouted", "Unrouted"}
            assert sequences_in(await said("top", group, "--once")) == sequences_in(shown)
            replay = ("unrouted", "replay", group, "--broker", broker.broker)
            assert (await asyncio.to_thread(lbg, *replay)).status == 0
            await until(lambda: member.state()["sequences"]["missing"] == 0)
            line = sequences_in(await said("group", "show", group))
            assert f"no gap open in 1 stream, {count} out of order" in line
        await connection.close()

    asyncio.run(run())


def test_a_message_that_somebody_took_before_the_member_came_is_unknown(
    lbg: Lbg, broker: Where, group: str
) -> None:
    queue = Names(group).queue(hash_of(KEY, 20) % 2)

    async def run() -> None:
        async with GroupPublisher(broker.broker, group=group) as publisher:
            for number in range(12):
                await publisher.publish(key=KEY, body=b"%d" % number, topic="t")
        taken: list[int] = []
        connection = await connect(broker.broker)
        channel = await connection.open_channel()
        await channel.consume(queue, lambda deliveries: taken.extend(one.delivery_tag for one in deliveries))
        await until(lambda: len(taken) == 12)
        channel.ack(taken[3])
        await channel.close()
        await connection.close()
        settings = MemberSettings(broker=broker.broker, group=group, name="m", rebalance_delay_s=0.2)
        async with Member(settings, done) as member:
            await until(lambda: member.state()["counts"]["acked"] == 11)
            await until(lambda: member.state()["sequences"]["unknown_streams"] == 1)
            line = sequences_in(await asyncio.to_thread(lbg, "group", "show", group, *broker.options))
        assert "no gap open in 1 stream, 0 out of order, 11 again since " in line
        assert line.count("1 stream unknown before ") == 1

    asyncio.run(run())


def test_planted_faults_of_a_foreign_publisher_are_counted_and_nothing_else(
    lbg: Lbg, broker: Where, group: str
) -> None:
    hash_ = hash_of(KEY, 20)
    exchange, routing_key = Names(group).exchange, f"{group}.{hash_}.t"

    async def run() -> None:
        connection = await connect(broker.broker)
        publisher = await ConfirmingPublisher.open(connection)

        async def publish(*numbers: int, key: str = KEY) -> None:
            for number in numbers:
                headers = {HEADER_KEY: key, HEADER_PUBLISHER: "foreign", HEADER_SEQ: number}
                properties = BasicProperties(headers=headers, delivery_mode=2)
                publisher.publish_soon(exchange, routing_key, b"", properties=properties)
            await publisher.flush()

        settings = MemberSettings(broker=broker.broker, group=group, name="m", rebalance_delay_s=0.2)
        async with Member(settings, done) as member:

            def counts() -> list[int]:
                sequences = member.state()["sequences"]
                return [sequences[name] for name in ("missed", "late", "missing", "out_of_order")]

            await publish(*range(10), 12, 13)
            await until(lambda: counts() == [2, 0, 2, 0])
            await publish(10, key="other")
            await until(lambda: counts() == [2, 1, 1, 0])
            await publish(11, 13, 14, 12)
            await until(lambda: counts() == [2, 2, 0, 1])
            await publish(16)
            await until(lambda: counts() == [3, 2, 1, 1])
            line = sequences_in(await asyncio.to_thread(lbg, "group", "show", group, *broker.options))
        assert line.startswith("  1 message missing in 1 of 1 stream since ")
        assert line.endswith(" UTC, 1 out of order")
        await connection.close()

    asyncio.run(run())
