"""Requests on a message that is on its way elsewhere, judged by what the application was called with."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from lbg_core.admin.actions import Action, AppendEntry, Bind, DeclareQueue, Unbind, WriteRecord
from lbg_core.admin.dead_letters import Selection
from lbg_core.admin.errors import MessageNotSkipped
from lbg_core.admin.groups import create_group, enable_parking, show_group
from lbg_core.admin.key_fate import PlaceKind, find_key
from lbg_core.admin.key_move import beginning, key_move_announced
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi
from lbg_core.admin.member_requests import ADMINISTRATOR, Wanted, ask_members, peek_group, skip_message
from lbg_core.admin.parked_messages import administration
from lbg_core.admin.record import Record
from lbg_core.admin.repartition import repartition_group
from lbg_core.admin.snapshot import QueueStatus
from lbg_core.group import GroupSpec, Names, recounted
from lbg_core.group.key_moves import KeyMove
from lbg_core.group.members_protocol import Skip
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, retry
from testing.admin.cut_admin import KilledError
from testing.admin.place import Place
from testing.waiting import until

PASSWORD = "secret"
QUICK: dict[str, Any] = {"max_attempts": 2, "retry_first_s": 0.02, "retry_max_s": 0.05}
NAMES = Names("orders")


@dataclass
class App:
    """Fails on some bodies, and records calls by body, the last call's time, and keys of which two calls ran at once.
    While `goes` is not set, calls do not end."""

    failing: set[bytes] = field(default_factory=set)
    called: Counter[bytes] = field(default_factory=Counter)
    done: list[bytes] = field(default_factory=list)
    called_at: float = 0.0
    overlaps: list[str] = field(default_factory=list)
    goes: asyncio.Event = field(default_factory=asyncio.Event)
    _running: set[str] = field(default_factory=set)

    async def __call__(self, message: Message) -> Verdict | None:
        key, body = message.key or "", bytes(message.data)
        if key in self._running:
            self.overlaps.append(key)
        self._running.add(key)
        self.called[body] += 1
        self.called_at = asyncio.get_running_loop().time()
        try:
            await asyncio.sleep(0.005)
            await self.goes.wait()
        finally:
            self._running.discard(key)
        if body in self.failing:
            return retry("it is poison")
        self.done.append(body)
        return None

    async def until_still(self) -> None:
        """Until it has not been called for many times as long as a retry waits."""
        loop = asyncio.get_running_loop()
        await until(lambda: loop.time() - self.called_at > 1.0)


@dataclass
class Scene:
    app: App
    settings: MemberSettings
    publisher: GroupPublisher

    async def publish(self, *bodies: bytes) -> None:
        """Each has the part before `/` as its key."""
        for body in bodies:
            await self.publisher.publish(key=body.partition(b"/")[0].decode(), body=body, topic="t")
        await self.publisher.flush()


@asynccontextmanager
async def scene_on(
    place: Place,
    admin: LiveAdmin,
    spec: GroupSpec,
    *failing: bytes,
    has_parking: bool = False,
    **more: Any,
) -> AsyncIterator[Scene]:
    where = place.settings
    url = f"amqp://{spec.client_username}:{PASSWORD}@{where.host}:{where.port}/{where.vhost.strip('/')}"
    await create_group(admin, spec, password=PASSWORD)
    if has_parking:
        await enable_parking(admin, spec.name)
    app = App(set(failing))
    app.goes.set()
    settings = MemberSettings(broker=url, group=spec.name, name="m", rebalance_delay_s=0.5, **QUICK | more)
    async with GroupPublisher(url, group=spec.name) as publisher:
        yield Scene(app, settings, publisher)
    assert not app.overlaps
    assert len(app.done) == len(set(app.done)), "no connection was lost, so nothing is repeated"


async def id_of(admin: LiveAdmin, key: str) -> str:
    held = (await find_key(admin, "orders", key)).at(PlaceKind.MEMBER)
    assert held is not None
    return held.messages[0].id


async def ready(admin: LiveAdmin, queue: str) -> int:
    status = (await admin.observe("orders")).queues[queue]
    assert isinstance(status, QueueStatus)
    assert isinstance(status.ready, int)
    return status.ready


@pytest.mark.long
async def test_a_poisoned_message_whose_key_is_about_to_move_is_skipped_once(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    """A change is announced and its stream not read to the beginning: no call starts."""
    async with scene_on(place, admin, orders, b"a/0") as scene:
        app = scene.app
        async with Member(scene.settings, app) as member:
            await scene.publish(b"a/0", b"a/1", b"a/2", b"a/3")
            await until(lambda: member.state()["counts"]["poisoned"] == 1)
            move = KeyMove.between(4, 6, orders.hash_count)
            for action in beginning(orders, move, await admin.observe("orders")):
                if not isinstance(action, AppendEntry | WriteRecord):
                    await admin.perform(action)
            await admin.perform(key_move_announced("orders", move))
            await app.until_still()
            skipped = await skip_message(admin, "orders", await id_of(admin, "a"))
            assert skipped.attempts >= 2
            calls = app.called[b"a/0"]
            await repartition_group(admin, "orders", 6, timeout_s=60.0)
            await until(lambda: len(app.done) == 3)
        assert app.done == [b"a/1", b"a/2", b"a/3"]
        assert app.called[b"a/0"] == calls
        assert await ready(admin, NAMES.dead) == 1


@pytest.mark.long
async def test_a_message_that_is_being_parked_is_not_skipped(
    place: Place, admin: LiveAdmin, orders: GroupSpec
) -> None:
    """It was poisoned while there was no room for another parked key, and its copy is not confirmed: nothing leads to
    the parking queue for a while."""
    more: dict[str, Any] = {"when_exhausted": "park", "park_max_keys": 1}
    async with scene_on(place, admin, orders, b"a/0", b"b/0", has_parking=True, **more) as scene:
        app = scene.app
        async with Member(scene.settings, app) as member:
            await scene.publish(b"a/0")
            await until(lambda: member.state()["counts"]["parked"] == 1)
            await scene.publish(b"b/0", b"b/1", b"b/2")
            await until(lambda: member.state()["counts"]["poisoned"] == 1)
            app.goes.clear()
            called = app.called[b"b/0"]
            await until(lambda: app.called[b"b/0"] > called)
            assert await administration.discard(admin, "orders", Selection()) == 1
            topology = (await admin.observe("orders")).topology_of(orders)
            to_parking = tuple(one for one in topology.bindings if one.queue == NAMES.parking)
            await admin.perform(Unbind(NAMES.parking, to_parking))
            await until(lambda: not member.state()["parking"]["messages"])
            id_ = await id_of(admin, "b")
            app.goes.set()
            async with asyncio.timeout(60):
                while (await peek_group(admin, "orders", Wanted(id=id_))).messages[0].state == "poisoned":
                    pass
            skip = Skip(ADMINISTRATOR, "a1", id_)
            asked = await ask_members(admin.amqp, "orders", skip, to=0, is_last=lambda _: True)
            assert [getattr(one, "outcome", None) for one in asked[0]] == ["parking"]
            with pytest.raises(MessageNotSkipped, match=r"on its way from .* to the parking queue"):
                await skip_message(admin, "orders", id_)
            await admin.perform(Bind(NAMES.parking, to_parking))
            await until(lambda: member.state()["counts"]["parked"] == 4)
            app.failing.clear()
            await administration.release(admin, "orders", None, timeout_s=60.0)
            await until(lambda: len(app.done) == 3)
        assert app.done == [b"b/0", b"b/1", b"b/2"]
        assert await ready(admin, NAMES.dead) == 0


class KilledAt(LiveAdmin):
    """Dies at the first action of a kind, done or not; what would take changes back after it comes to nothing."""

    def __init__(self, place: Place, kind: type[Action], *, is_done: bool) -> None:
        super().__init__(place.settings, ManagementApi(place.management))
        self._kind = kind
        self._is_done = is_done
        self._is_dead = False

    async def perform(self, action: Action) -> None:
        if self._is_dead or isinstance(action, self._kind):
            if self._is_done and not self._is_dead:
                await super().perform(action)
            self._is_dead = True
            raise KilledError(str(action))
        await super().perform(action)


@pytest.mark.long
@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("kind", [AppendEntry, WriteRecord])
async def test_members_that_join_when_the_command_was_killed_make_calls_and_join_the_next_change(
    place: Place, admin: LiveAdmin, orders: GroupSpec, kind: type[Action], is_done: bool
) -> None:
    """Between the first entry of the stream and the record, before, and after."""
    async with scene_on(place, admin, orders) as scene:
        killed = KilledAt(place, kind, is_done=is_done)
        with pytest.raises(KilledError):
            await repartition_group(killed, "orders", 6, timeout_s=60.0)
        await killed.close()
        app = scene.app
        async with Member(scene.settings, app):
            first = [b"k%d/%d" % (key, number) for number in range(3) for key in range(8)]
            await scene.publish(*first)
            await until(lambda: len(app.done) == len(first), what="calls while no command runs")
            await repartition_group(admin, "orders", 6, timeout_s=60.0)
            second = [b"k%d/%d" % (key, number) for number in range(3, 6) for key in range(8)]
            await scene.publish(*second)
            await until(lambda: len(app.done) == len(first + second))
        assert set(app.done) == set(first + second)
        assert (await show_group(admin, "orders", listen_s=0.05)).problems == ()
        assert (await create_group(admin, recounted(orders, 6), password=PASSWORD)).changes == ()


@pytest.mark.long
@pytest.mark.parametrize("has_staging", [False, True])
async def test_a_stream_without_a_first_entry_stops_members_only_where_a_staging_queue_is_there(
    place: Place, admin: LiveAdmin, orders: GroupSpec, has_staging: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The record states a change whose stream was lost; the command goes on with it."""
    async with scene_on(place, admin, orders) as scene:
        move = KeyMove.between(4, 6, orders.hash_count)
        observed = await admin.observe("orders")
        for action in beginning(orders, move, observed):
            match action:
                case DeclareQueue(queue) if queue.name == NAMES.moves or has_staging:
                    await admin.perform(action)
                case Bind(queue) if queue == NAMES.moves:
                    await admin.perform(action)
        assert isinstance(observed.record, Record)
        await admin.perform(
            WriteRecord("orders", replace(observed.record, key_move=move.id), observed.record)
        )
        app, held = scene.app, "no call starts until `lbg group repartition orders --queues 6`"
        async with Member(scene.settings, app):
            await scene.publish(*(b"k%d/0" % key for key in range(8)))
            if has_staging:
                await until(lambda: any(held in line for line in caplog.messages))
                assert not app.called
            else:
                await until(lambda: len(app.done) == 8)
            await repartition_group(admin, "orders", 6, timeout_s=60.0)
            await scene.publish(*(b"k%d/1" % key for key in range(8)))
            await until(lambda: len(app.done) == 16)
        assert (await show_group(admin, "orders", listen_s=0.05)).problems == ()
