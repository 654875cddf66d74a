"""Parked keys of a group whose number of queues changes: judged by what the application recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest

from lbg_core.admin.errors import ConsumptionIsPaused, IngressIsPaused, KeysMove
from lbg_core.admin.groups import create_group, enable_parking, show_group
from lbg_core.admin.ingress import pause_ingress
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.member_requests import pause_group
from lbg_core.admin.parked_messages import administration
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.record import Record
from lbg_core.admin.repartition import repartition_group
from lbg_core.group import GroupSpec, hash_of
from lbg_core.group.key_moves import KeyMove
from lbg_core.publisher import GroupPublisher
from lbg_sidecar import Member, MemberSettings, Message, Verdict, retry
from testing.admin.moving_member import until_held_up
from testing.admin.place import Place
from testing.waiting import GUARD_S, until, until_answer

KEYS = [f"k{number}" for number in range(20)]
PASSWORD = "secret"
QUICK = {"max_attempts": 2, "retry_first_s": 0.02, "retry_max_s": 0.1, "when_exhausted": "park"}


@dataclass
class App:
    """Fails on some keys, and records the numbers that it processed, by key, each when it came first. While `goes` is
    not set it begins no call."""

    failing: set[str] = field(default_factory=set)
    done: dict[str, list[int]] = field(default_factory=dict)
    goes: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, message: Message) -> Verdict | None:
        await self.goes.wait()
        assert message.key is not None
        if message.key in self.failing:
            return retry("it is poison")
        numbers, number = self.done.setdefault(message.key, []), int(bytes(message.data))
        if number not in numbers:
            numbers.append(number)
        return None


@dataclass
class Scene:
    """Two members, and a publisher that does not stop until `finish`."""

    admin: LiveAdmin
    app: App
    settings: MemberSettings
    publisher: GroupPublisher
    members: AsyncExitStack
    published: dict[str, list[int]] = field(default_factory=dict)

    async def start_members(self, names: str) -> None:
        for name in names:
            await self.members.enter_async_context(Member(replace(self.settings, name=name), self.app))

    async def restart_members(self, **more: int) -> None:
        await self.members.aclose()
        self.settings = replace(self.settings, **more)
        await self.start_members("cd")

    async def publish(self) -> None:
        number = 0
        while True:
            key = KEYS[number % len(KEYS)]
            await self.publisher.publish(key=key, body=b"%d" % number, topic="t")
            self.published.setdefault(key, []).append(number)
            number += 1
            await asyncio.sleep(0.02)

    async def parked(self) -> dict[str, int]:
        listing = await administration.list_parked(self.admin, "orders")
        return {one.key: one.messages for one in listing.keys}

    async def is_moving(self) -> bool:
        record = (await self.admin.observe("orders")).record
        return isinstance(record, Record) and bool(record.key_move)


@asynccontextmanager
async def scene_on(place: Place, spec: GroupSpec, *failing: str, **more: int) -> AsyncIterator[Scene]:
    where = place.settings
    url = f"amqp://{spec.client_username}:{PASSWORD}@{where.host}:{where.port}/{where.vhost.strip('/')}"
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(place.administered())
        await create_group(admin, spec, password=PASSWORD)
        await enable_parking(admin, spec.name)
        app = App(set(failing))
        app.goes.set()
        settings = MemberSettings(broker=url, group=spec.name, rebalance_delay_s=0.5, **QUICK, **more)
        publisher = await stack.enter_async_context(GroupPublisher(url, group=spec.name))
        members = await stack.enter_async_context(AsyncExitStack())
        scene = Scene(admin, app, settings, publisher, members)
        await scene.start_members("ab")
        publishing = asyncio.create_task(scene.publish())
        try:
            yield scene
        finally:
            publishing.cancel()
            with suppress(asyncio.CancelledError):
                await publishing
        await scene.publisher.flush()
        await until(lambda: app.done == scene.published, what="all messages, each key's in order")


def spec_of(username: str) -> GroupSpec:
    return GroupSpec(
        "orders", "orders", hash_count=24, queue_count=4, queue_size_mb=10, client_username=username
    )


def moving_keys(spec: GroupSpec, new: int) -> list[str]:
    """Keys that get another queue."""
    move = KeyMove.between(spec.queue_count, new, spec.hash_count)
    return [key for key in KEYS if move.moves(hash_of(key, spec.hash_count))]


async def until_parked(scene: Scene, *keys: str) -> None:
    async def are_parked() -> bool:
        return not set(keys) - (await scene.parked()).keys()

    await until_answer(are_parked)


@pytest.mark.parametrize("place", ["rabbitmq"], indirect=True)
async def test_keys_that_are_released_around_changes_keep_their_order(place: Place, unique: str) -> None:
    """A release is refused while keys move. One that was killed before a change is completed after it."""
    spec = spec_of(unique)
    first, second = moving_keys(spec, 6)[:2]
    async with scene_on(place, spec, first, second) as scene:
        app, admin = scene.app, scene.admin
        await until_parked(scene, first, second)
        app.failing.clear()
        app.goes.clear()
        changing = asyncio.create_task(repartition_group(admin, "orders", 6, timeout_s=GUARD_S))
        async with place.administered() as other:
            await until_answer(scene.is_moving)
            for refused in (
                administration.release(other, "orders", None, timeout_s=GUARD_S),
                administration.replay_first(other, "orders", first),
            ):
                with pytest.raises(KeysMove, match="--queues 6` finishes that"):
                    await refused
            app.goes.set()
            await changing

            app.goes.clear()
            releasing = asyncio.create_task(administration.release(other, "orders", None, timeout_s=GUARD_S))
            await asyncio.sleep(1.5)
            assert not releasing.done(), "no member has processed anything"
            releasing.cancel()
            with suppress(asyncio.CancelledError):
                await releasing
        app.goes.set()
        assert (await repartition_group(admin, "orders", 3, timeout_s=GUARD_S)).now == 3
        assert (await administration.release(admin, "orders", None, timeout_s=GUARD_S)).left == set()


@pytest.mark.long
@pytest.mark.parametrize("place", ["embedded"], indirect=True)
async def test_a_full_parking_queue_that_holds_up_a_change_is_named_with_the_remedy(
    place: Place, unique: str
) -> None:
    spec = spec_of(unique)
    parked, blocked = moving_keys(spec, 6)[:2]
    async with scene_on(place, spec, parked, park_max_keys=1) as scene:
        app, admin = scene.app, scene.admin
        await until_parked(scene, parked)
        app.failing.add(blocked)
        await until_held_up(admin, 6, Kind.MESSAGES_POISONED, Kind.PARKING_FULL, Kind.QUEUES_CHANGE)
        causes = (await show_group(admin, "orders")).change_held_up
        assert [one for one in causes if one.kind is Kind.PARKING_FULL]
        await scene.restart_members(park_max_keys=10)
        await repartition_group(admin, "orders", 6, timeout_s=GUARD_S)
        assert (await show_group(admin, "orders")).change_held_up == ()
        await until_parked(scene, blocked)
        app.failing.clear()
        assert (await administration.release(admin, "orders", None, timeout_s=GUARD_S)).left == set()


@pytest.mark.long
@pytest.mark.parametrize("place", ["embedded"], indirect=True)
async def test_a_release_is_refused_during_a_pause(place: Place, unique: str) -> None:
    async with scene_on(place, spec_of(unique), "k3") as scene:
        await until_parked(scene, "k3")
        await pause_ingress(scene.admin, "orders", is_paused=True)
        scene.app.failing.clear()
        for refused in (
            administration.release(scene.admin, "orders", ["k3"], timeout_s=GUARD_S),
            administration.replay_first(scene.admin, "orders", "k3"),
        ):
            with pytest.raises(IngressIsPaused, match="`lbg group resume orders --ingress`"):
                await refused
        await pause_ingress(scene.admin, "orders", is_paused=False)
        await pause_group(scene.admin, "orders")
        with pytest.raises(ConsumptionIsPaused, match="stays parked: `lbg group resume orders`"):
            await administration.release(scene.admin, "orders", ["k3"], timeout_s=GUARD_S)
        assert not any(
            one.is_released for one in (await administration.list_parked(scene.admin, "orders")).keys
        )
        await pause_group(scene.admin, "orders", is_paused=False)
        assert (await administration.release(scene.admin, "orders", ["k3"], timeout_s=GUARD_S)).done == {"k3"}
