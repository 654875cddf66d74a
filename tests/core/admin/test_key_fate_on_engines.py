"""The fate of a key, on both engines: its messages in every place where they can be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from lbg_core.admin.groups import create_group, enable_parking
from lbg_core.admin.key_fate import KeyFate, KeyPlace, PlaceKind, Unread, find_key, places_text
from lbg_core.admin.key_lane import Gap, Moved, Visit
from lbg_core.admin.key_move import beginning
from lbg_core.admin.live import LiveAdmin
from lbg_core.client import BasicProperties, ConfirmingPublisher, ConnectionSettings, connect
from lbg_core.group import GroupSpec, Names, hash_of
from lbg_core.group.held_messages import Ending
from lbg_core.group.key_moves import KeyMove
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, drop, retry
from lbg_sidecar.core.finished import CHARS_MAX
from testing.admin.place import Place
from testing.member.balance import active, primary
from testing.waiting import until

PASSWORD = "secret"
NAMES = Names("orders")


@dataclass
class App:
    """Drops what begins with `drop`, and fails on what begins with `bad`, so often as it says; while `goes` is not set
    calls do not end."""

    goes: asyncio.Event = field(default_factory=asyncio.Event)
    failed: dict[bytes, int] = field(default_factory=dict)
    called: list[bytes] = field(default_factory=list)

    async def __call__(self, message: Message) -> Verdict | None:
        body = bytes(message.data)
        self.called.append(body)
        await self.goes.wait()
        if body.startswith(b"drop"):
            return drop("no such account")
        if body.startswith(b"bad"):
            times = self.failed[body] = self.failed.get(body, 0) + 1
            return retry("it is poison") if times <= int(body[3:4] or b"9") else None
        return None


@dataclass
class Scene:
    admin: LiveAdmin
    url: str
    app: App

    async def publish(self, *bodies: bytes, key: str = "a") -> None:
        async with GroupPublisher(self.url, group="orders") as publisher:
            for body in bodies:
                await publisher.publish(key=key, body=body, topic="t")

    def member(self, name: str = "m", **more: Any) -> Member:
        settings = MemberSettings(
            broker=self.url,
            group="orders",
            name=name,
            rebalance_delay_s=0.2,
            **{"max_attempts": 3, "retry_first_s": 0.02, "retry_max_s": 0.05} | more,
        )
        return Member(settings, self.app)

    async def fate(self, key: str = "a") -> KeyFate:
        return await find_key(self.admin, "orders", key)


@asynccontextmanager
async def scene_on(place: Place, admin: LiveAdmin, spec: GroupSpec) -> AsyncIterator[Scene]:
    where = place.settings
    url = f"amqp://{spec.client_username}:{PASSWORD}@{where.host}:{where.port}/{where.vhost.strip('/')}"
    await create_group(admin, spec, password=PASSWORD)
    await enable_parking(admin, "orders")
    app = App()
    app.goes.set()
    yield Scene(admin, url, app)


def at(fate: KeyFate, kind: PlaceKind) -> KeyPlace:
    found = fate.at(kind)
    assert found is not None
    return found


def bodies(place: KeyPlace) -> list[str | None]:
    return [one.body for one in place.messages]


@pytest.mark.long
async def test_a_key_is_found_in_each_of_its_places(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    async with scene_on(place, admin, orders) as scene:
        number = hash_of("a", orders.hash_count) % orders.queue_count
        empty = await scene.fate()
        assert (places_text(empty), empty.unknown) == ("no message of this key waits", [])
        assert (empty.queue, empty.count) == (number, 0)

        app = scene.app
        async with scene.member(when_exhausted="park") as member:
            await scene.publish(b"drop0", b"bad9", b"behind", b"drop1")
            await until(lambda: member.state()["counts"]["parked"] == 3)
            await until(lambda: member.state()["counts"]["dead_lettered"] == 1)
            app.goes.clear()
            other = next(one for one in map(str, range(99)) if hash_of(one, 8) == hash_of("a", 8))
            await scene.publish(b"held0", b"held1", key=other)
            await until(lambda: b"held0" in app.called)
            fate = await scene.fate()
            assert (at(fate, PlaceKind.PARKED).count, at(fate, PlaceKind.DEAD).count) == (3, 1)
            assert bodies(at(fate, PlaceKind.PARKED)) == ["bad9", "behind", "drop1"]
            assert bodies(at(fate, PlaceKind.DEAD)) == ["drop0"]
            assert at(fate, PlaceKind.MEMBER).count == 0
            assert places_text(fate) == "4 messages of this key: 3 parked, 1 dead letter"
            held = at(await scene.fate(other), PlaceKind.MEMBER)
            assert (held.name, held.count, bodies(held)) == ("m", 2, ["held0", "held1"])
            assert [(one.state, one.key) for one in held.messages] == [("running", other), ("waiting", other)]
            few = await find_key(admin, "orders", other, limit=1)
            assert places_text(few) == "2 messages of this key: 2 at member m (the first 1 of them shown)"
            parked = await find_key(admin, "orders", "a", limit=1)
            assert places_text(parked) == places_text(fate), "the member remembers the others"
            app.goes.set()
            await until(lambda: member.state()["counts"]["acked"] == 2)
            assert places_text(await scene.fate(other)) == "no message of this key waits"

        await scene.publish(b"waits0", b"waits1", key=other)
        fate = await scene.fate(other)
        (queue,) = [one for one in fate.places if one.kind is PlaceKind.QUEUE]
        assert queue.name == NAMES.queue(number)
        if fate.unknown:
            assert (queue.unread, queue.left, queue.count) == (Unread.NOT_SHOWN, 2, 0)
            assert places_text(fate) == (
                f"unknown whether messages of this key wait, because in {queue.name}: it has 2 messages of "
                "this or other keys, and RabbitMQ shows none of a queue"
            )
        else:
            assert bodies(queue) == ["waits0", "waits1"]
            assert places_text(fate) == f"2 messages of this key: 2 in {queue.name}"


@pytest.mark.long
async def test_unrouted_messages_and_staging_queues_are_places(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    async with scene_on(place, admin, orders) as scene:
        connection = await connect(place.settings)
        publisher = await ConfirmingPublisher.open(connection)
        for routing_key in ("other.1.t", "orders.99.t"):
            properties = BasicProperties(headers={"lbg-key": "a"}, delivery_mode=2)
            publisher.publish_soon(NAMES.exchange, routing_key, b"astray", properties=properties)
        await publisher.flush()
        await connection.close()
        assert bodies(at(await scene.fate(), PlaceKind.UNROUTED)) == ["astray", "astray"]

        move = KeyMove.between(4, 6, orders.hash_count)
        key = next(one for one in map(str, range(99)) if move.moves(hash_of(one, orders.hash_count)))
        for action in beginning(orders, move, await admin.observe("orders")):
            await admin.perform(action)
        names = [one.name for one in (await scene.fate(key)).places if one.kind is PlaceKind.QUEUE]
        expected = move.queues_of(hash_of(key, orders.hash_count))
        assert (len(expected), names[:3]) == (3, [NAMES.queue(one) for one in expected])


@pytest.mark.long
async def test_what_could_not_be_read_is_named_with_the_cause(
    place: Place, admin: LiveAdmin, orders: GroupSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene_on(place, admin, orders) as scene:
        async with scene.member() as member:
            await scene.publish(b"drop0")
            await until(lambda: member.state()["counts"]["dead_lettered"] == 1)
            monkeypatch.setattr("lbg_sidecar.core.requests.Requests.receive", lambda *_: None)
            fate = await scene.fate()
        assert [(one.kind, one.name, one.unread) for one in fate.unknown] == [
            (PlaceKind.MEMBER, "m", Unread.SILENT)
        ]
        assert places_text(fate).startswith(
            "1 message of this key: 1 dead letter, perhaps more, because at member m:"
        )

        own = ConnectionSettings.parse(scene.url)
        with_group_login = LiveAdmin(own)
        try:
            await scene.publish(b"waits")
            fate = await find_key(with_group_login, "orders", "a")
        finally:
            await with_group_login.close()
        causes = {one.kind: one.unread for one in fate.unknown}

        assert causes.keys() == {PlaceKind.QUEUE, PlaceKind.DEAD}
        assert set(causes.values()) <= {Unread.DENIED, Unread.NOT_SHOWN}
        assert "only an administrator may read them" in places_text(fate)


@pytest.mark.long
async def test_the_lane_of_a_key_has_all_that_became_of_it(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    """Processed, retried twice, moved to another member, a dead letter, given back with a call that ran when a member
    lost its connection and delivered again, and parked."""
    keys = {hash_of(one, orders.hash_count) % orders.queue_count: one for one in map(str, range(99))}
    async with (
        scene_on(place, admin, orders) as scene,
        GroupPublisher(scene.url, group="orders") as publisher,
    ):
        app = scene.app

        async def publish(*bodies: bytes) -> None:
            for body in bodies:
                await publisher.publish(key=body.partition(b"/")[2].decode(), body=body, topic="t")
            await publisher.flush()

        async with scene.member("m1", when_exhausted="park") as first:
            await publish(
                *(b"%s/%s" % (what, key.encode()) for key in keys.values() for what in (b"plain", b"bad2"))
            )
            await until(lambda: first.state()["counts"]["acked"] == 8)
            async with scene.member("m2", when_exhausted="park") as second:
                members = (first, second)
                await until(lambda: len(primary(second)) == 2, what="two queues to be the second member's")
                number = min(primary(second))
                await until(lambda: number not in active(first), what="the move")
                key = keys[number].encode()
                await publish(b"drop/" + key, b"after/" + key)
                await until(lambda: second.state()["counts"]["acked"] == 1)
                app.goes.clear()
                await publish(b"held/" + key)
                await until(lambda: b"held/" + key in app.called)
                second.drop_connection()
                await until(lambda: app.called.count(b"held/" + key) == 2)
                app.goes.set()
                await until(lambda: first.state()["counts"]["acked"] == 9)
                await publish(b"bad9/" + key)
                await until(lambda: sum(one.state()["counts"]["parked"] for one in members) == 1)
                await until(lambda: second.state()["connected"])
                fate = await scene.fate(key.decode())

    steps = [one for one in fate.lane.steps if isinstance(one, Visit)]
    assert [(one.word, one.member, one.attempts) for one in steps[:-1]] == [
        (Ending.FINISHED, "m1", 1),
        (Ending.FINISHED, "m1", 3),
        (Ending.DEAD, "m2", 1),
        (Ending.FINISHED, "m2", 1),
        (Ending.RELEASED, "m2", 1),
        (Ending.FINISHED, "m1", 1),
    ]
    assert (steps[-1].word, steps[-1].attempts) == (Ending.PARKED, 3)
    assert [one.redelivered for one in steps[:6]] == [False] * 5 + [True]
    assert [one.seq for one in steps[:6]] == [0, 1, 2, 3, 4, 4]
    assert len({one.publisher for one in steps}) == 1
    plain, retried = steps[:2]
    assert plain.published_at_us <= plain.received_us <= plain.first_call_us == plain.last_call_us
    assert retried.first_call_us < retried.last_call_us <= retried.last_end_us
    moves = [(one.former, one.member) for one in fate.lane.steps if isinstance(one, Moved)]
    assert moves[:2] == [("m1", "m2"), ("m2", "m1")]
    assert not [one for one in fate.lane.steps if isinstance(one, Gap)]
    assert [one.member for one in fate.lane.memories] == ["m1", "m2"]
    assert sum(one.kept for one in fate.lane.memories) >= 13
    assert all(0 < one.since_us < plain.published_at_us or one.member == "m2" for one in fate.lane.memories)
    assert places_text(fate) == "2 messages of this key: 1 parked, 1 dead letter"


@pytest.mark.long
async def test_long_names_of_publishers_let_a_member_remember_fewer_messages(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    count, name = 12, "n" * 100_000
    async with scene_on(place, admin, orders) as scene, scene.member() as member:
        connection = await connect(place.settings)
        publisher = await ConfirmingPublisher.open(connection)
        for number in range(count):
            headers = {"lbg-key": "a", "lbg-publisher": f"{name}{number}", "lbg-seq": 0}
            properties = BasicProperties(headers=headers, delivery_mode=2)
            hash_ = hash_of("a", orders.hash_count)
            publisher.publish_soon(NAMES.exchange, f"orders.{hash_}.t", b"", properties=properties)
            await publisher.flush()
        await connection.close()
        await until(lambda: member.state()["counts"]["acked"] == count)
        (memory,) = (await scene.fate()).lane.memories
        assert memory.kept < CHARS_MAX // len(name) < count
