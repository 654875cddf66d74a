"""Messages of other publishers whose headers leave no room in a frame, where LBG or the broker adds some.

The application's own record and the queues' counts judge.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace

import pika
import pika.exceptions
import pytest

from lbg_core.admin.dead_letters import ReplayResult, Selection, open_dead_queue, replay
from lbg_core.admin.groups import enable_parking
from lbg_core.admin.live import LiveAdmin
from lbg_core.amqp.field_table import DEPTH_MAX
from lbg_core.client import ConnectionSettings
from lbg_core.group import SESSIONS
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, Message, Verdict, drop
from testing.broker.embedded import EmbeddedBroker
from testing.member.large_headers import App, publish
from testing.member.mode_place import place_in
from testing.member.place import Place
from testing.waiting import until


def take_and_leave(place: Place, count: int) -> list[bytes]:
    """Bodies for a client that has all messages, and ends: RabbitMQ adds the number of deliveries to their headers."""
    with pika.BlockingConnection(pika.URLParameters(place.url)) as connection:
        channel = connection.channel()
        taken: list[bytes] = []
        for number in range(place.spec.queue_count):
            channel.basic_consume(place.names.queue(number), lambda *message: taken.append(message[3]))
        while len(taken) < count:
            connection.process_data_events(time_limit=1)
    return taken


async def test_a_member_processes_a_message_that_fills_a_frame_and_was_delivered_before(place: Place) -> None:
    app = App()
    messages = (("a", "large"), ("b", "1"), ("a", "2"))
    await asyncio.to_thread(publish, place.url, place.spec, *messages, left_bytes=0)
    await asyncio.to_thread(take_and_leave, place, len(messages))
    async with Member(place.settings("a"), app):
        await until(lambda: len(app.done) == 3)
    assert sorted(app.done) == ["1", "2", "large"]


def publish_nested(place: Place) -> list[str]:
    """Bodies of the messages that the broker takes; the first has headers that are nested deeply."""
    nested: dict[str, object] = {}
    for _ in range(2 * DEPTH_MAX):
        nested = {"in": nested}
    stamp = {"lbg-key": "a", "lbg-publisher": "theirs"}
    taken = []
    for number, headers in enumerate(({"nested": nested}, {})):
        with (
            suppress(pika.exceptions.AMQPError),
            pika.BlockingConnection(pika.URLParameters(place.url)) as one,
        ):
            channel = one.channel()
            channel.confirm_delivery()
            properties = pika.BasicProperties(headers=headers | stamp | {"lbg-seq": number}, delivery_mode=2)
            key, body = f"{place.spec.hash_prefix}.1.t", str(number)
            channel.basic_publish(place.names.exchange, key, body.encode(), properties, mandatory=True)
            taken.append(body)
    return taken


async def test_headers_that_are_nested_too_deeply_stop_no_member(place: Place) -> None:
    ids: list[str] = []
    app = App(refused="0")

    async def handle(message: Message) -> Verdict | None:
        assert message.headers.get("nested") is None
        ids.append(message.id)
        return await app(message)

    taken = await asyncio.to_thread(publish_nested, place)
    assert taken == (["1"] if place.engine == "embedded" else ["0", "1"])
    async with Member(place.settings("a"), handle) as member:
        await until(lambda: member.state()["counts"]["acked"] == 1)
        assert member.state()["counts"]["dead_lettered"] == len(taken) - 1
    assert ids == [f"theirs-1-{body}" for body in taken]


async def test_a_consumer_with_smaller_frames_gets_larger_headers(place: Place) -> None:
    await asyncio.to_thread(publish, place.url, place.spec, ("a", "large"), left_bytes=0)
    smaller = replace(place, url=f"{place.url}?frame_max=8192")
    assert await asyncio.to_thread(take_and_leave, smaller, 1) == [b"large"]


async def test_a_dead_letter_that_no_frame_of_its_member_takes_waits_and_holds_up_no_other(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async def refuse(_message: Message) -> Verdict:
        return drop("no")

    smaller = replace(place, url=f"{place.url}?frame_max=8192")
    async with Member(smaller.settings("a", shutdown_grace_s=0.1), refuse) as member:
        messages = (("a", "large"), ("a", "1"), ("b", "2"))
        await asyncio.to_thread(publish, place.url, place.spec, *messages, left_bytes=0)
        await until(lambda: member.state()["counts"]["dead_lettered"] == 1)
        await until(lambda: "cannot be published" in caplog.text)
    assert await place.count(place.names.dead) == 1
    waiting = [await place.count(place.names.queue(number)) for number in range(place.spec.queue_count)]
    assert sum(waiting) == 2
    assert caplog.text.count("cannot be published") == 1


async def test_a_message_that_fills_a_frame_is_numbered_in_its_session(
    embedded: EmbeddedBroker, unique: str
) -> None:
    place = await place_in(SESSIONS, embedded, unique)
    app = App(refused="large")
    async with Member(place.settings("a", rebalance_delay_s=None), app):
        await asyncio.to_thread(
            publish, place.url, place.spec, ("a", "large"), ("a", "1"), ("b", "2"), left_bytes=20
        )
        await until(lambda: len(app.done) == 2)
    assert await place.count(place.names.dead) == 1


async def test_a_message_that_cannot_be_parked_is_a_dead_letter_and_its_key_goes_on(place: Place) -> None:
    admin = LiveAdmin(ConnectionSettings.parse(place.url))
    await enable_parking(admin, place.spec.name)
    await admin.close()
    app = App(failing="large")
    parks = {"max_attempts": 2, "retry_first_s": 0.02, "retry_max_s": 0.1, "when_exhausted": "park"}
    async with Member(place.settings("a", **parks), app):
        await asyncio.to_thread(
            publish, place.url, place.spec, ("a", "large"), ("a", "1"), ("b", "2"), left_bytes=20
        )
        await until(lambda: len(app.done) == 2)
    assert app.begun.count("large") == 2
    assert await place.count(place.names.dead) == 1
    assert await place.count(place.names.parking) == 0


async def test_a_later_message_of_a_parked_key_that_cannot_be_parked_is_a_dead_letter(place: Place) -> None:
    admin = LiveAdmin(ConnectionSettings.parse(place.url))
    await enable_parking(admin, place.spec.name)
    await admin.close()
    app = App(failing="poison")
    parks = {"max_attempts": 2, "retry_first_s": 0.02, "retry_max_s": 0.1, "when_exhausted": "park"}
    async with (
        Member(place.settings("a", **parks), app) as member,
        GroupPublisher(place.url, group=place.spec.name) as ours,
    ):
        await ours.publish(key="a", body=b"poison", topic="t")
        await until(lambda: member.state()["counts"]["parked"] == 1)
        await asyncio.to_thread(
            publish, place.url, place.spec, ("a", "large"), ("a", "1"), ("b", "2"), left_bytes=20
        )
        await until(lambda: member.state()["counts"]["parked"] == 2 and app.done == ["2"])
        await until(lambda: member.state()["counts"]["dead_lettered"] == 1)
    assert set(app.begun) == {"poison", "2"}
    assert await place.count(place.names.dead) == 1
    assert await place.count(place.names.parking) == 2


async def test_a_dead_letter_that_fills_a_frame_is_replayed_and_processed(place: Place) -> None:
    app = App(refused="large")
    async with Member(place.settings("a"), app) as member:
        await asyncio.to_thread(publish, place.url, place.spec, ("a", "large"), ("b", "1"), left_bytes=20)
        await until(lambda: member.state()["counts"]["dead_lettered"] == 1)
        app.refused = ""
        done = ReplayResult()
        async with open_dead_queue([ConnectionSettings.parse(place.url)], place.spec.name) as queue:
            await replay(queue, Selection(), done)
        await until(lambda: sorted(app.done) == ["1", "large"])
    assert done.done == 1
    assert await place.count(place.names.dead) == 0
