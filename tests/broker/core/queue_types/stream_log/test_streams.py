"""Streams in the core: what is on disk goes out, consumers far behind read pages, and retention leaves the last."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_broker.core import spool
from lbg_broker.core.effects import SpoolRecord
from lbg_broker.core.queue_types import stream_log
from lbg_broker.core.queue_types.stream_log import StreamLog, with_offset
from lbg_core.amqp import BasicProperties
from lbg_core.amqp.methods import BasicQos, BasicRecover, QueueDeclare, QueueDelete, QueueDeleteOk
from testing.broker_core.world import Client, World, numbered

STREAM = {"x-queue-type": "stream"}


def streaming(**arguments: Any) -> tuple[World, Client]:
    """A world with a stream "q", and a publisher with confirms."""
    world = World()
    publisher = world.client().confirms()
    publisher.queue(arguments=STREAM | {name.replace("_", "-"): value for name, value in arguments.items()})
    return world, publisher


def reading(world: World, offset: object = "first", *, prefetch: int = 1000) -> Client:
    client = world.client()
    client.consume(prefetch=prefetch, arguments={"x-stream-offset": offset})
    world.commit()
    return client


def offsets(client: Client) -> list[int]:
    return [delivery.headers["x-stream-offset"] for delivery in client.take()]


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_log, "WINDOW_MESSAGES", 4)
    monkeypatch.setattr(stream_log, "PAGE_MESSAGES", 3)


def test_nothing_goes_out_before_it_is_on_disk() -> None:
    world, publisher = streaming()
    reader = reading(world, "next")
    publisher.publish(b"0", b"1")
    assert reader.bodies() == []
    world.commit()
    assert reader.bodies() == [b"0", b"1"]


def test_what_was_not_on_disk_before_a_crash_leaves_its_offset_to_another() -> None:
    world, publisher = streaming()
    publisher.publish(b"0")
    world.commit()
    publisher.publish(b"lost")
    world.crash()
    publisher = world.client()
    publisher.publish(b"1")
    world.commit()
    reader = reading(world)
    assert [(delivery.body, delivery.headers["x-stream-offset"]) for delivery in reader.take()] == [
        (b"0", 0),
        (b"1", 1),
    ]


@pytest.mark.usefixtures("small_window")
def test_consumers_far_behind_read_pages_side_by_side() -> None:
    world, publisher = streaming()
    publisher.publish(*numbered(50))
    world.commit()
    readers = [reading(world, start, prefetch=7) for start in (0, 10, 20)]
    for start, reader in zip((0, 10, 20), readers, strict=True):
        seen: list[bytes] = []
        while taken := reader.take():
            seen += [delivery.body for delivery in taken]
            reader.ack(taken[-1].delivery_tag, multiple=True)
            world.commit()
        assert seen == list(numbered(50 - start, start=start))


@pytest.mark.usefixtures("small_window")
def test_a_consumer_that_leaves_while_its_page_is_read_keeps_no_other_from_theirs() -> None:
    world, publisher = streaming()
    publisher.publish(*numbered(30))
    world.commit()
    leaving, staying = world.client(), world.client()
    for client in (leaving, staying):
        client.consume(prefetch=100, arguments={"x-stream-offset": "first"})
    world.seal()
    leaving.lose()
    world.commit()
    assert staying.bodies() == list(numbered(30))


def test_the_memory_of_a_stream_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_log, "WINDOW_MESSAGES", 64)
    world, publisher = streaming()
    publisher.publish(*numbered(1000))
    world.commit()
    log = world.queue().spool
    assert isinstance(log, stream_log.StreamLog)
    assert log.in_memory_count == spool.share(64, attended=False)
    reading(world, "next")
    publisher.publish(*numbered(1000))
    world.commit()
    assert log.in_memory_count == 64


def test_unacknowledged_bodies_leave_memory_and_the_stream_keeps_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lbg_broker.core.state.UNSETTLED_BYTES", 10)
    world, publisher = streaming()
    reader = reading(world)
    publisher.publish(*numbered(5, size=100))
    world.commit()
    publisher.publish(b"more")
    world.commit()
    channel = world.broker.state.connections[reader.number].channels[1]
    assert any(message.hollow for _, message, _ in channel.unsettled.values())
    assert reading(world).bodies() == [*numbered(5, size=100), b"more"]
    reader.lose()
    assert world.queue().spool.outstanding_bytes == sum(len(body) for body in numbered(5, size=100)) + 4


@pytest.mark.parametrize("limit", [0, 1, 100, 1600])
def test_a_length_limit_keeps_the_latest_messages_and_at_least_one(limit: int) -> None:
    world, publisher = streaming(x_max_length_bytes=limit)
    for body in numbered(60, size=98):
        publisher.publish(body)
        world.commit()
    kept = offsets(reading(world))
    assert kept == list(range(kept[0], 60))
    assert len(kept) == max(limit // 102, 1)
    assert world.store.bodies(world.queue().spool.id) == list(numbered(60, size=98))[kept[0] :]
    assert world.queue().messages_ready == len(kept)


def test_segments_and_offsets_survive_a_restart() -> None:
    world, publisher = streaming(x_max_length_bytes=1600)
    for body in numbered(60, size=98):
        publisher.publish(body)
        world.commit()
    before = offsets(reading(world))
    world.crash()
    assert offsets(reading(world)) == before
    publisher = world.client()
    for body in numbered(5, size=98, start=60):
        publisher.publish(body)
        world.commit()
    after = offsets(reading(world))
    assert after == list(range(before[0] + 5, 65))


def test_the_last_confirmed_message_stays_until_a_later_one_is_on_disk() -> None:
    world, publisher = streaming(x_max_length_bytes=1)
    publisher.publish(b"first")
    world.commit()
    publisher.publish(b"second")
    assert reading_without_commit(world) == [b"first"]
    world.crash()
    assert reading(world).bodies() == [b"first"]


def reading_without_commit(world: World) -> list[bytes]:
    client = world.client()
    client.consume(prefetch=10, arguments={"x-stream-offset": "last"})
    return client.bodies()


def test_old_messages_are_deleted_and_the_last_one_stays() -> None:
    world, publisher = streaming(x_max_age="16m")
    for number in range(40):
        publisher.publish(b"%d" % number)
        world.commit()
        world.pass_time(60)
    kept = offsets(reading(world))
    assert kept == list(range(25, 40))
    world.pass_time(86_400)
    publisher.publish(b"40")
    world.commit()
    assert offsets(reading(world)) == [40]


def test_a_restart_makes_no_message_older() -> None:
    world, publisher = streaming(x_max_age="1h")
    publisher.publish(b"0")
    world.commit()
    world.crash()
    publisher = world.client()
    for number in range(1, 4):
        publisher.publish(b"%d" % number)
        world.commit()
    assert reading(world).bodies() == [b"0", b"1", b"2", b"3"]


def test_a_consumer_whose_place_was_deleted_goes_on_with_the_oldest_there_is() -> None:
    world, publisher = streaming(x_max_length_bytes=500)
    reader = reading(world, prefetch=1)
    for body in numbered(50, size=98):
        publisher.publish(body)
        world.commit()
    assert offsets(reader) == [0]
    reader.ack(1)
    assert offsets(reader) == [46]


def test_several_unconfirmed_publishes_are_one_segment() -> None:
    world, publisher = streaming(x_max_length_bytes=1)
    publisher.publish(*numbered(10))
    world.commit()
    assert reading(world).bodies() == list(numbered(10))
    publisher.publish(b"10")
    world.commit()
    assert reading(world).bodies() == [b"10"]


def test_dead_letters_go_into_a_stream() -> None:
    world, publisher = streaming()
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"}
    publisher.queue("dying", arguments=arguments)
    publisher.publish(b"0", key="dying")
    worker = world.client()
    worker.consume("dying", prefetch=1)
    worker.nack(1, requeue=False)
    world.commit()
    (letter,) = reading(world).take()
    assert letter.body == b"0"
    assert letter.headers["x-stream-offset"] == 0
    assert letter.headers["x-first-death-queue"] == "dying"


def test_a_deleted_stream_leaves_nothing() -> None:
    world, publisher = streaming()
    publisher.publish(b"0", b"1")
    world.commit()
    spool_id = world.queue().spool.id
    publisher.ask(QueueDelete("q"), QueueDeleteOk)
    assert world.store.bodies(spool_id) == []
    publisher.queue(arguments=STREAM)
    assert reading(world).bodies() == []


def test_basic_recover_is_not_implemented() -> None:
    world, publisher = streaming()
    publisher.publish(b"0")
    world.commit()
    reader = reading(world)
    reader.say(BasicRecover(True))
    assert reader.refusal == (
        540,
        "NOT_IMPLEMENTED - basic.recover not supported by stream queues queue 'q' in vhost '/'",
    )


@pytest.mark.parametrize("multiple", [False, True])
def test_a_refused_delivery_of_a_stream_leaves_those_of_other_queues(multiple: bool) -> None:
    world, publisher = streaming()
    publisher.queue("plain")
    publisher.publish(b"0", key="plain")
    publisher.publish(b"1")
    world.commit()
    reader = world.client()
    reader.say(BasicQos(0, 10, False))
    reader.consume("plain", tag="p", prefetch=10)
    reader.consume(tag="s", prefetch=10, arguments={"x-stream-offset": "first"})
    world.commit()
    assert reader.bodies() == [b"0", b"1"]
    reader.nack(2, multiple=multiple, requeue=False)
    assert reader.refusal is not None
    assert reader.refusal[0] == 540
    assert world.queue("plain").messages_ready == 1


def test_a_nack_of_another_queue_beside_a_stream_is_carried_out() -> None:
    world, publisher = streaming()
    publisher.queue("plain")
    publisher.publish(b"0", key="plain")
    publisher.publish(b"1")
    world.commit()
    reader = world.client()
    reader.consume("plain", tag="p", prefetch=10)
    reader.consume(tag="s", prefetch=10, arguments={"x-stream-offset": "first"})
    world.commit()
    reader.nack(1, multiple=True, requeue=False)
    assert reader.refusal is None
    assert world.queue("plain").messages_ready == 0


@pytest.mark.parametrize("digits", [20, 400, 5000])
def test_an_age_of_any_number_of_digits_ends_nobody_who_publishes(digits: int) -> None:
    world = World()
    world.client().queue(arguments=STREAM | {"x-max-age": "9" * digits + "Y"})
    for body in (b"0", b"1"):
        world.client().publish(body)
        world.commit()
    assert world.queue().messages_ready == 2


@pytest.mark.parametrize("age", ["", "5", "h", "-1h", "1.5h", "²h", "1w"])
def test_an_age_that_is_none_is_refused(age: str) -> None:
    client = World().client()
    client.say(QueueDeclare("q", durable=True, arguments=STREAM | {"x-max-age": age}))
    assert client.refusal is not None
    assert client.refusal[0] == 406


@pytest.mark.parametrize(
    "properties",
    [
        BasicProperties(),
        BasicProperties(content_type="text/plain", content_encoding="gzip", message_id="m"),
        BasicProperties(headers={"a": 1}, delivery_mode=2),
        BasicProperties(headers={"x-stream-offset": 5}),
        BasicProperties(headers={"a": {"x-stream-offset": 5}}, correlation_id="x-stream-offset"),
    ],
)
def test_the_offset_joins_the_headers(properties: BasicProperties) -> None:
    numbered_ = BasicProperties.decode(with_offset(properties.encode(), 7))
    properties.headers = {**(properties.headers or {}), "x-stream-offset": 7}
    assert numbered_ == properties


def test_the_offset_takes_the_place_of_a_publishers() -> None:
    without, with_one = (
        BasicProperties(headers=headers).encode() for headers in ({}, {"x-stream-offset": 5})
    )
    assert with_offset(with_one, 7) == with_offset(without, 7)


@pytest.mark.parametrize("offset", [True, 1.5, "yesterday"])
def test_an_offset_that_is_none_is_refused(offset: object) -> None:
    world, _ = streaming()
    refusal = reading(world, offset).refusal
    assert refusal is not None
    assert "give first, last, next or an offset" in refusal[1]


def test_segments_are_restored_also_if_the_message_that_began_the_last_one_is_not_on_disk() -> None:
    record = SpoolRecord(1, next_position=2, mark=0, messages=2, bytes=20, first=0)
    log = StreamLog.restored(record, touched=[])
    log.restore_segments([(0, 1, 10, 1.0, 1.0), (1, 1, 10, 2.0, 2.0), (2, 1, 10, 3.0, 3.0)])
    assert [(one.first, one.messages, one.size_bytes) for one in log.segments] == [
        *((0, 1, 10), (1, 1, 10)),
        (2, 0, 0),
    ]
