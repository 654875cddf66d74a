from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from lbg_broker import Server
from lbg_core.admin.errors import GroupNotFound, RecordUnavailable
from lbg_core.amqp import BasicProperties
from lbg_core.client import AuthenticationError, ConfirmingPublisher, ConnectError, connect
from lbg_core.group import GroupSpec, Names, PublishedRecord, SpecError, hash_of, queue_of
from lbg_core.journal import JournalReader
from lbg_core.publisher import (
    GroupGone,
    GroupPublisher,
    Identity,
    MessageTooLarge,
    PublisherClosed,
    PublishingSettings,
    Unroutable,
    events,
)
from testing.admin.group_on_broker import Drain, declare_group
from testing.broker.embedded import EmbeddedBroker, free_port, in_process

SPEC = GroupSpec("orders", "orders", hash_count=16, queue_count=4, queue_size_mb=1, client_username="guest")
NAMES = Names("orders")


def url_of(server: Server) -> str:
    return f"amqp://guest:guest@127.0.0.1:{server.port}/"


def queue_of_key(key: str) -> int:
    return queue_of(hash_of(key, SPEC.hash_count), SPEC.queue_count)


async def eventually(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come")


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    async with in_process(tmp_path / "broker") as server:
        await declare_group(url_of(server), SPEC)
        yield url_of(server)


async def test_messages_arrive_in_order_per_key_with_their_headers(url: str) -> None:
    async with GroupPublisher(url, group="orders", identity=Identity("p", "0a", 1)) as publisher:
        for number in range(1000):
            key = None if number % 10 == 0 else f"k{number % 7}"
            await publisher.publish(key=key, body=b"%d" % number, topic="flight")
        await publisher.flush()
        report = publisher.report()
    assert (report.publisher, report.published, report.confirmed, report.without_key) == (
        "p-0a",
        1000,
        1000,
        100,
    )
    async with Drain(url, SPEC) as drain:
        await drain.until(lambda: len(drain.seen) == 1000)
    assert drain.inversions() == []
    assert sum(report.next_seq.values()) == 1000
    assert {each.hash: 0 for each in drain.seen} == dict.fromkeys(report.next_seq, 0)
    for each in drain.seen:
        assert each.queue == each.hash % 4
        assert each.publisher == "p-0a"
        assert each.seq < report.next_seq[each.hash]
        assert each.ts > 1_600_000_000_000_000


async def test_leaving_the_block_flushes_and_an_error_in_it_does_not_wait(url: str) -> None:
    async with GroupPublisher(url, group="orders") as publisher:
        await publisher.publish(key="a", body=b"1")
    assert publisher.report().confirmed == 1
    with pytest.raises(PublisherClosed):
        await publisher.publish(key="a", body=b"2")
    failing = GroupPublisher(url, group="orders", settings=PublishingSettings(one_per_key=True))

    async def fail() -> None:
        async with failing:
            for _ in range(10):
                await failing.publish(key="a", body=b"1")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert failing.report().confirmed < 10
    with pytest.raises(PublisherClosed):
        await failing.flush()


async def test_a_message_that_cannot_be_used_is_refused_and_leaves_no_gap(url: str) -> None:
    async with GroupPublisher(url, group="orders") as publisher:
        with pytest.raises(SpecError, match="topic"):
            await publisher.publish(key="a", body=b"", topic="x" * 300)
        for key in ("x" * 20_000, "\ud800", float("inf"), float("nan")):
            with pytest.raises(SpecError, match="key"):
                await publisher.publish(key=key, body=b"")
        await publisher.publish(key="a", body=b"")
    assert list(publisher.report().next_seq.values()) == [1]


async def test_a_key_that_is_no_text_is_that_of_its_text(url: str) -> None:
    keys = ["0", 0, 0.0, "1", 1, 1.0, b"1", True, "", None, b""]
    async with Drain(url, SPEC) as drain:
        async with GroupPublisher(url, group="orders") as publisher:
            for key in keys:
                await publisher.publish(key=key, body=b"")
        await drain.until(lambda: len(drain.seen) == len(keys))
    seen = Counter((each.key, each.queue) for each in drain.seen if each.key is not None)
    assert seen == {(key, queue_of_key(key)): n for key, n in {"0": 3, "1": 4, "true": 1}.items()}
    assert publisher.report().without_key == 3


@pytest.mark.long
async def test_a_full_queue_is_waited_for_in_order_while_others_go_on(url: str) -> None:
    told: list[events.PublisherEvent] = []
    settings = PublishingSettings(window_messages=64, backoff_max_s=0.02)
    body = bytes(20_000)
    async with GroupPublisher(url, group="orders", settings=settings, on_event=told.append) as publisher:
        for number in range(120):
            await publisher.publish(key="same", body=b"%d" % number + body)
        for number in range(200):
            await publisher.publish(key=f"other{number}", body=b"small")
        elsewhere = sum(queue_of_key(f"other{number}") != queue_of_key("same") for number in range(200))
        await eventually(lambda: publisher.report().confirmed == 49 + elsewhere)
        assert elsewhere > 50
        assert publisher.report().refused > 0
        async with Drain(url, SPEC, delay_s=0.001, prefetch_count=5) as drain:
            await publisher.flush()
            await drain.until(lambda: len(drain.seen) == 320)
        report = publisher.report()
    assert (report.confirmed, report.maybe_twice, report.accepted_after_gap) == (320, 0, 0)
    assert drain.inversions() == []
    assert len(drain.distinct()) == 320
    (queue,) = {each.queue for each in drain.seen if each.key == "same"}
    # Said again each time it is full again while the consumer makes room.
    full = {str(event) for event in told if isinstance(event, events.QueueFull)}
    assert full == {f"queue lbg.orders.q.{queue} is full; its messages wait in order"}
    assert [event for event in told if isinstance(event, events.QueueTaking)] != []


@pytest.mark.long
async def test_back_pressure_holds_a_producer_that_is_faster_than_the_broker(url: str) -> None:
    settings = PublishingSettings(read_ahead_bytes=100_000, backoff_max_s=0.02)
    async with GroupPublisher(url, group="orders", settings=settings) as publisher:
        accepted = 0

        async def produce() -> None:
            nonlocal accepted
            for number in range(200):
                await publisher.publish(key="same", body=b"%d" % number + bytes(20_000))
                accepted += 1

        producing = asyncio.create_task(produce())
        await asyncio.wait({producing}, timeout=0.3)
        assert not producing.done()
        assert accepted < 60, "1 MB in the queue and 0.1 MB in memory"
        async with Drain(url, SPEC) as drain:
            await producing
            await publisher.flush()
            await drain.until(lambda: len(drain.seen) == 200)
    assert drain.inversions() == []


async def test_a_missing_group_says_how_to_make_it(url: str) -> None:
    with pytest.raises(GroupNotFound, match="lbg group create nope"):
        async with GroupPublisher(url, group="nope"):
            pass


@pytest.mark.long
async def test_a_refused_login_is_told_at_once_and_no_broker_after_a_time(url: str) -> None:
    with pytest.raises(AuthenticationError):
        async with GroupPublisher(url.replace("guest:guest", "guest:wrong"), group="orders"):
            pass
    told: list[events.PublisherEvent] = []
    nowhere = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    settings = PublishingSettings(first_connection_s=1.0)
    with pytest.raises(ConnectError, match="guest@127"):
        async with GroupPublisher(nowhere, group="orders", settings=settings, on_event=told.append):
            pass
    assert "trying again within" in str(told[0])


@pytest.mark.long
async def test_a_record_that_is_not_read_in_time_is_not_said_to_be_a_missing_connection(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: object) -> GroupSpec:
        return await asyncio.Future[GroupSpec]()

    monkeypatch.setattr("lbg_core.publisher.publisher.read_spec", never)
    settings = PublishingSettings(first_connection_s=1.0)
    with pytest.raises(ConnectError, match="did not send the record of group 'orders' in time"):
        async with GroupPublisher(url, group="orders", settings=settings):
            pass


@pytest.mark.long
async def test_a_record_that_cannot_be_read_is_the_reason_that_is_told(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(_: object, group: str) -> GroupSpec:
        raise RecordUnavailable(group, cause="its node is down")

    monkeypatch.setattr("lbg_core.publisher.publisher.read_spec", unavailable)
    settings = PublishingSettings(first_connection_s=1.0)
    with pytest.raises(ConnectError, match=r"lbg.orders.config.*its node is down"):
        async with GroupPublisher(url, group="orders", settings=settings):
            pass


async def test_several_addresses_are_tried_in_turn(url: str) -> None:
    nowhere = f"amqp://guest:guest@127.0.0.1:{free_port()}/"
    async with GroupPublisher([nowhere, url], group="orders") as publisher:
        await publisher.publish(key="a", body=b"")
    assert publisher.report().confirmed == 1


async def test_a_group_deleted_meanwhile_is_an_error_that_says_so(url: str) -> None:
    connection = await connect(url)
    channel = await connection.open_channel()

    async def go_on_without_it() -> None:
        async with GroupPublisher(url, group="orders") as publisher:
            await publisher.publish(key="a", body=b"")
            await publisher.flush()
            await channel.exchange_delete(NAMES.exchange)
            await publisher.publish(key="a", body=b"")
            with pytest.raises(GroupGone, match="was deleted"):
                await publisher.flush()
            with pytest.raises(GroupGone):
                await publisher.publish(key="a", body=b"")

    with pytest.raises(GroupGone):
        await go_on_without_it()
    await connection.close()


async def test_a_returned_message_is_an_error_that_names_the_routing_key(url: str) -> None:
    connection = await connect(url)
    channel = await connection.open_channel()
    await channel.queue_delete(NAMES.unrouted)
    for hash_ in range(16):
        await channel.queue_unbind(NAMES.queue(hash_ % 4), NAMES.exchange, f"orders.{hash_}.#")
    publisher = GroupPublisher(url, group="orders")
    with pytest.raises(Unroutable, match=r"orders\.\d+\.flight"):
        async with publisher:
            await publisher.publish(key="a", body=b"", topic="flight")
    assert publisher.report().confirmed == 0
    await connection.close()


async def test_a_journal_has_a_record_of_every_confirmed_message(url: str, tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    async with GroupPublisher(url, group="orders", journal=directory) as publisher:
        for number in range(500):
            await publisher.publish(key=f"k{number % 9}", body=b"x")
    records = list(JournalReader(directory))
    assert len({(record.hash_, record.seq) for record in records}) == len(records) == 500
    for record in records:
        assert record.publisher == publisher.identity.publisher
        assert record.queue == record.hash_ % 4
        assert isinstance(record, PublishedRecord)
        assert record.confirmed_at_us >= record.published_at_us
        assert record.resends == 0
        assert (record.group, record.body_bytes) == ("orders", 1)


@pytest.mark.process
async def test_a_connection_cut_again_and_again_loses_nothing_and_counts_what_may_be_twice(
    tmp_path: Path,
) -> None:
    told: list[events.PublisherEvent] = []
    with EmbeddedBroker(tmp_path / "broker") as broker:
        await declare_group(broker.url, SPEC)
        async with GroupPublisher(broker.url, group="orders", on_event=told.append) as publisher:
            for number in range(1500):
                await publisher.publish(key=f"k{number % 50}", body=b"%d" % number)
                if number % 700 == 650:
                    connections = publisher.report().connections
                    await asyncio.to_thread(broker.kill)
                    await asyncio.to_thread(broker.start)
                    await eventually(lambda before=connections: publisher.report().connections > before)
            await publisher.flush()
            report = publisher.report()
        assert report.confirmed == 1500
        assert report.connections == 3
        async with Drain(broker.url, SPEC) as drain:
            await drain.until(lambda: len(drain.distinct()) == 1500)
            await asyncio.sleep(0.1)
    assert drain.inversions() == []
    assert not drain.bodies_differ()
    times = Counter((each.publisher, each.hash, each.seq) for each in drain.seen)
    assert sum(count > 1 for count in times.values()) <= report.maybe_twice
    assert len(drain.seen) - 1500 <= report.resends, "some were on their way at more than one cut"
    assert [event for event in told if isinstance(event, events.Disconnected)] != []


@pytest.mark.process
async def test_a_group_made_anew_with_other_attributes_ends_the_publisher(tmp_path: Path) -> None:
    other = GroupSpec(
        "orders", "orders", hash_count=8, queue_count=4, queue_size_mb=1, client_username="guest"
    )
    with EmbeddedBroker(tmp_path / "broker") as broker:
        await declare_group(broker.url, SPEC)

        async def outlive() -> None:
            async with GroupPublisher(broker.url, group="orders") as publisher:
                connection = await connect(broker.url)
                channel = await connection.open_channel()
                await channel.queue_purge(NAMES.config)
                recording = await ConfirmingPublisher.open(connection)
                properties = BasicProperties(delivery_mode=2)
                await recording.publish("", NAMES.config, other.to_record().encode(), properties=properties)
                await connection.close()
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
                for _ in range(2000):
                    await publisher.publish(key="a", body=b"")
                    await asyncio.sleep(0.01)

        with pytest.raises(GroupGone, match="made anew"):
            await outlive()


@pytest.mark.process
async def test_a_broker_that_falls_silent_is_left_and_its_late_work_reorders_nothing(tmp_path: Path) -> None:
    """Messages written before the silence are carried out after it, beside those sent again."""
    told: list[events.PublisherEvent] = []
    with EmbeddedBroker(tmp_path / "broker") as broker:
        await declare_group(broker.url, SPEC)
        async with GroupPublisher(
            broker.url + "?heartbeat=1", group="orders", on_event=told.append
        ) as publisher:
            for number in range(3000):
                await publisher.publish(key=f"k{number % 50}", body=b"%d" % number)
                if number == 1500:
                    broker.freeze()
            await eventually(lambda: any(isinstance(event, events.Disconnected) for event in told))
            broker.thaw()
            await publisher.flush()
            report = publisher.report()
        async with Drain(broker.url, SPEC) as drain:
            await drain.until(lambda: len(drain.distinct()) == 3000)
            await asyncio.sleep(0.1)
    assert report.maybe_twice > 0
    assert drain.inversions() == []
    assert not drain.bodies_differ()
    assert 0 <= len(drain.seen) - 3000 <= report.maybe_twice
    print(f"{len(drain.seen) - 3000} repeated of {report.maybe_twice} that may be")


@pytest.mark.long
async def test_a_message_over_the_brokers_limit_is_not_accepted_and_the_publisher_goes_on(
    tmp_path: Path,
) -> None:
    async with in_process(tmp_path / "broker", message_max_bytes=70_000) as server:
        await declare_group(url_of(server), SPEC)
        async with (
            GroupPublisher(url_of(server), group="orders") as publisher,
            Drain(url_of(server), SPEC) as drain,
        ):
            await publisher.publish(key="k", body=b"a" * 70_000)
            with pytest.raises(
                MessageTooLarge, match="message size 70001: must be at most 70000, the broker's"
            ):
                await publisher.publish(key="k", body=b"b" * 70_001)
            await publisher.publish(key="k", body=b"c")
            await publisher.flush()
            assert publisher.report().confirmed == 2
            await drain.until(lambda: len(drain.seen) == 2)


async def test_a_limit_of_the_publishers_own_is_kept_too(url: str) -> None:
    async with GroupPublisher(
        url, group="orders", settings=PublishingSettings(max_message_bytes=10)
    ) as publisher:
        await publisher.publish(key="k", body=b"a" * 10)
        with pytest.raises(MessageTooLarge, match="at most 10"):
            await publisher.publish(key="k", body=b"a" * 11)
