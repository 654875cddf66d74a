"""Parked keys on real brokers: parked over crashes and a repartition, and released in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from lbg_core.admin.actions import WriteRecord
from lbg_core.admin.dead_letters import Selection
from lbg_core.admin.groups import enable_parking
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.parked_messages import (
    administration,
    discard_parked,
    open_parked_stream,
    parked_messages,
    release_parked,
)
from lbg_core.admin.parked_messages.release import release_first
from lbg_core.admin.record import Record
from lbg_core.client import BasicProperties, ConfirmingPublisher, ConnectionSettings
from lbg_core.group import EXCLUSIVE
from lbg_core.group.parked_keys import ParkEntry, SettleEntry
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, Message, SettingsError, Verdict, retry
from testing.member.place import Place
from testing.waiting import GUARD_S, until

KEYS = 20
QUICK = {"max_attempts": 2, "retry_first_s": 0.02, "retry_max_s": 0.1, "when_exhausted": "park"}


class App:
    """Fails on some keys, and records what it processed, by key."""

    def __init__(self, *failing: str) -> None:
        self.failing = set(failing)
        self.done: dict[str, list[int]] = {}
        self.failed: set[int] = set()
        self.work_s = 0.0
        self.serves_only: str | None = None
        self.serves_all = asyncio.Event()

    async def __call__(self, message: Message) -> Verdict | None:
        if self.serves_only not in (None, message.key):
            await self.serves_all.wait()
        await asyncio.sleep(self.work_s)
        assert message.key is not None
        number = int(bytes(message.data))
        if message.key in self.failing:
            self.failed.add(number)
            return retry("it is poison")
        order = self.done.setdefault(message.key, [])
        if number not in order:  # a crash repeats what was in flight
            order.append(number)
        return None

    @property
    def count(self) -> int:
        return sum(map(len, self.done.values()))

    def check(self, published: dict[str, list[int]]) -> None:
        assert self.done == published


class Published:
    def __init__(self, publisher: GroupPublisher) -> None:
        self.by_key: dict[str, list[int]] = {}
        self.count = 0
        self._publisher = publisher

    async def publish(self, count: int) -> None:
        for _ in range(count):
            key = f"k{self.count % KEYS}"
            await self._publisher.publish(key=key, body=b"%d" % self.count, topic="t")
            self.by_key.setdefault(key, []).append(self.count)
            self.count += 1
        await self._publisher.flush()

    def of(self, *keys: str) -> int:
        return sum(len(self.by_key[key]) for key in keys)


@pytest.fixture
async def parking(place: Place) -> AsyncIterator[LiveAdmin]:
    admin = LiveAdmin(ConnectionSettings.parse(place.url))
    await enable_parking(admin, place.spec.name)
    yield admin
    await admin.close()


@pytest.fixture
async def published(place: Place) -> AsyncIterator[Published]:
    async with GroupPublisher(place.url, group=place.spec.name) as publisher:
        yield Published(publisher)


async def test_a_member_that_parks_needs_a_group_with_a_parking_queue(place: Place) -> None:
    with pytest.raises(SettingsError, match="lbg park enable"):
        async with Member(place.settings("a", when_exhausted="park"), App()):
            pass


async def test_a_poisoned_key_is_parked_and_released_in_order(
    place: Place, parking: LiveAdmin, published: Published
) -> None:
    app = App("k3")
    places = [ConnectionSettings.parse(place.url)]
    async with Member(place.settings("a", **QUICK), app) as member:
        await published.publish(400)
        await until(lambda: app.count == 400 - published.of("k3"))
        await until(lambda: member.state()["counts"]["parked"] == published.of("k3"))
        assert app.failed == {3}, "none behind the first one was delivered"
        assert await place.count(place.names.parking) == published.of("k3")
        async with open_parked_stream(places, place.spec.name) as stream:
            (key,) = stream.keys.parked()
            assert (key.key, key.messages, key.is_released) == ("k3", published.of("k3"), False)
            listed = (await parked_messages(stream, Selection(key="k3"), limit=1000)).letters
            assert len(listed) == published.of("k3")
            assert listed[0].reason == "it is poison"

            app.failing.clear()
            first = await release_first(stream, "k3")
            assert first is not None
            await until(lambda: app.done.get("k3") == [3])
            await published.publish(KEYS)
            result = await release_parked(stream, None, timeout_s=GUARD_S)
            assert result.done == {"k3"}
        await until(lambda: app.count == published.count)
    app.check(published.by_key)
    assert await place.count(place.names.parking) == 0


async def test_discarded_messages_are_gone_and_the_key_goes_on(
    place: Place, parking: LiveAdmin, published: Published
) -> None:
    app = App("k3")
    async with Member(place.settings("a", **QUICK), app) as member:
        await published.publish(100)
        await until(lambda: member.state()["counts"]["parked"] == 5)
        async with open_parked_stream([ConnectionSettings.parse(place.url)], place.spec.name) as stream:
            assert await discard_parked(stream, Selection(key="k3")) == 5
            await stream.catch_up()
            assert not len(stream.keys)
        app.failing.clear()
        await asyncio.sleep(0.5)
        await published.publish(KEYS)
        await until(lambda: app.done.get("k3") == [103])
    assert await place.count(place.names.parking) == 0


async def test_a_key_that_fails_again_is_reported_and_stays_parked(
    place: Place, parking: LiveAdmin, published: Published
) -> None:
    app = App("k3")
    async with Member(place.settings("a", **QUICK), app) as member:
        await published.publish(100)
        await until(lambda: member.state()["counts"]["parked"] == 5)
        async with open_parked_stream([ConnectionSettings.parse(place.url)], place.spec.name) as stream:
            result = await release_parked(stream, {"k3"}, timeout_s=GUARD_S)
            assert result.failed_again == {"k3"}
            app.failing.clear()
            await until(lambda: member.state()["counts"]["parked"] == 10)
            assert (await release_parked(stream, {"k3"}, timeout_s=GUARD_S)).done == {"k3"}
    app.check(published.by_key)


async def test_keys_stay_parked_while_members_crash_and_are_released_while_they_do(
    place: Place, parking: LiveAdmin, published: Published
) -> None:
    chance = random.Random(5)
    app = App("k3", "k7")
    async with AsyncExitStack() as members:
        all_members = [
            await members.enter_async_context(Member(place.settings(name, **QUICK), app)) for name in "abc"
        ]

        async def crash() -> None:
            while True:
                await asyncio.sleep(chance.uniform(0.2, 0.6))
                chance.choice(all_members).drop_connection()

        crashing = asyncio.create_task(crash())
        for _ in range(10):
            await published.publish(200)
            await asyncio.sleep(0.2)
        await until(lambda: app.count == published.count - published.of("k3", "k7"))
        assert "k3" not in app.done
        app.failing.clear()
        async with open_parked_stream([ConnectionSettings.parse(place.url)], place.spec.name) as stream:
            releasing = asyncio.create_task(release_parked(stream, None, timeout_s=GUARD_S))
            await published.publish(200)
            assert not (await releasing).failed_again
        crashing.cancel()
        async with open_parked_stream([ConnectionSettings.parse(place.url)], place.spec.name) as stream:
            await release_parked(stream, None, timeout_s=GUARD_S)
        await until(lambda: app.count == published.count)
    app.check(published.by_key)
    assert await place.count(place.names.parking) == 0, "also copies that crashes had left"
    assert place.spec.mode == EXCLUSIVE


async def test_a_release_passes_the_backlog_of_the_queue(
    place: Place, parking: LiveAdmin, published: Published
) -> None:
    """The backlog stays as it is: the calls of all other keys wait for the end of the release."""
    app = App("k3")
    queues = [place.names.queue(number) for number in range(place.spec.queue_count)]
    settings = place.settings("a", concurrency=2 * KEYS, prefetch=20, call_timeout_s=600.0, **QUICK)
    async with Member(settings, app) as member:
        await published.publish(100)
        await until(lambda: member.state()["counts"]["parked"] == 5)
        app.failing.clear()
        app.serves_only = "k3"
        await published.publish(1000)
        assert (await administration.release(parking, place.spec.name, ["k3"], timeout_s=GUARD_S)).done == {
            "k3"
        }
        assert app.done["k3"][:5] == published.by_key["k3"][:5]
        assert sum([await place.count(queue) for queue in queues]) > 500
        app.serves_all.set()
        await until(lambda: app.count == published.count)
    app.check(published.by_key)
    assert await place.count(place.names.parking) == 0


async def test_a_release_past_a_backlog_keeps_the_order_while_members_crash(
    place: Place, parking: LiveAdmin, published: Published
) -> None:
    chance = random.Random(7)
    app = App("k3", "k7")
    group = place.spec.name
    async with AsyncExitStack() as members:
        settings = [place.settings(name, concurrency=4, prefetch=20, **QUICK) for name in "abc"]
        all_members = [await members.enter_async_context(Member(one, app)) for one in settings]
        await published.publish(600)
        await until(lambda: app.count == 600 - published.of("k3", "k7"))
        app.failing.clear()
        app.work_s = 0.005

        async def crash() -> None:
            while True:
                await asyncio.sleep(chance.uniform(0.2, 0.6))
                chance.choice(all_members).drop_connection()

        await published.publish(1500)
        crashing = asyncio.create_task(crash())
        releasing = asyncio.create_task(administration.release(parking, group, None, timeout_s=GUARD_S))
        await published.publish(500)
        assert (await releasing).done == {"k3", "k7"}
        crashing.cancel()
        app.work_s = 0.0
        await until(lambda: app.count == published.count)
        await administration.discard(parking, group, Selection(key="nobody"))  # deletes what crashes left
    app.check(published.by_key)
    assert await place.count(place.names.parking) == 0


async def test_members_read_from_a_snapshot_on_and_from_the_first_entry_where_there_is_none(
    place: Place, parking: LiveAdmin, published: Published
) -> None:
    app = App("k3", "k7")
    group = place.spec.name
    async with Member(place.settings("a", **QUICK), app) as member:
        await published.publish(100)
        await until(lambda: member.state()["counts"]["parked"] == 10)
        async with open_parked_stream([ConnectionSettings.parse(place.url)], group) as stream:
            await stream.write(
                SettleEntry("k", ("p", 0, seq)) for seq in range(administration.COMPACTED_ENTRIES)
            )
        assert await administration.discard(parking, group, Selection(key="k7")) == 5
    app.failing.remove("k7")
    published.by_key["k7"].clear()
    async with open_parked_stream([ConnectionSettings.parse(place.url)], group) as stream:
        assert stream.read_count < 100
        assert [(one.key, one.messages) for one in stream.keys.parked()] == [("k3", 5)]
        assert stream.keys.is_settled(("p", 0, 77))
    async with Member(place.settings("b", **QUICK), app) as member:
        await published.publish(100)
        await until(lambda: member.state()["counts"]["parked"] == 5)
    record = (await parking.observe(group)).record
    assert isinstance(record, Record)
    for place_of_none in ("3:none", "999999:none"):
        await parking.perform(WriteRecord(group, replace(record, parked_from=place_of_none), record))
        async with Member(place.settings("c", **QUICK), app) as member:
            await published.publish(KEYS)
            await until(lambda: member.state()["counts"]["parked"] == 1)
    await parking.perform(WriteRecord(group, record, record))
    app.failing.clear()
    async with Member(place.settings("d", **QUICK), app):
        assert (await administration.release(parking, group, None, timeout_s=GUARD_S)).done == {"k3"}
        await until(lambda: app.count == published.count - 5)
    app.check(published.by_key)


async def test_copies_that_crashes_left_are_counted_and_deleted_and_their_late_entries_have_no_effect(
    place: Place, parking: LiveAdmin, published: Published
) -> None:
    app = App("k3")
    group = place.spec.name
    async with Member(place.settings("a", **QUICK), app) as member:
        await published.publish(100)
        await until(lambda: member.state()["counts"]["parked"] == 5)
        left = [ParkEntry("k1", ("p", 0, seq), 1, "cause", f"left{seq}") for seq in range(3)]
        async with open_parked_stream([ConnectionSettings.parse(place.url)], group) as stream:
            copies = await ConfirmingPublisher.open(stream.connection)

            async def copy_of(entry: ParkEntry) -> None:
                publisher, hash_, seq = entry.identity
                headers = {"lbg-key": entry.key, "lbg-publisher": publisher, "lbg-seq": seq}
                await copies.publish(
                    place.names.parking,
                    f"{place.spec.hash_prefix}.{hash_}.t",
                    b"x",
                    properties=BasicProperties(headers={**headers, "lbg-parked-copy": entry.copy}),
                    mandatory=True,
                )

            for entry in left:
                await copy_of(entry)
            await stream.write([SettleEntry("k1", left[0].identity), left[1]])  # done, parked, and neither
            listing = await administration.list_parked(parking, group)
            assert (listing.messages, listing.leftovers) == (6, 2)
            assert await administration.discard(parking, group, Selection(key="nobody")) == 0
            listing = await administration.list_parked(parking, group)
            assert (listing.messages, listing.leftovers) == (6, 0)
            await copy_of(left[1])
            await stream.write([left[2]])
            await stream.catch_up()
            assert [one.messages for one in stream.keys.parked() if one.key == "k1"] == [1]
            assert await administration.discard(parking, group, Selection(key="k1")) == 1
        app.failing.clear()
        assert (await administration.release(parking, group, None, timeout_s=GUARD_S)).done == {"k3"}
    app.check(published.by_key)
    assert await place.count(place.names.parking) == 0
