"""An application that cannot take messages for a while: its member holds no queue meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from lbg_core.group import balanced_primaries
from lbg_sidecar import Member, Message
from lbg_sidecar.app.callable import handler_channel
from lbg_sidecar.app.channel import AppChannel, Calls
from testing.member.group_load import Judge, Load, under_load
from testing.member.place import Place
from testing.member.world import Chances, World
from testing.member.world.situations import fine
from testing.waiting import GUARD_S, until


class Moody(AppChannel):
    """A channel to a function, that says when it is ready."""

    def __init__(self, channel: AppChannel, *, ready: bool) -> None:
        self._channel = channel
        self._ready = ready
        self.calls: Calls | None = None

    async def start(self, calls: Calls) -> None:
        self.calls = calls
        if not self._ready:
            calls.ready(False, "it starts")
        await self._channel.start(calls)

    def wake(self) -> None:
        self._channel.wake()

    def abort(self, messages: Collection[Message]) -> None:
        self._channel.abort(messages)

    async def stop(self, grace_s: float) -> None:
        await self._channel.stop(grace_s)

    def ready(self, is_ready: bool, why: str = "") -> None:
        assert self.calls is not None
        self.calls.ready(is_ready, why)


def moody(judge: Judge, name: str, *, ready: bool = True) -> Moody:
    return Moody(handler_channel(judge.handler(name), concurrency=8), ready=ready)


def active(member: Member) -> int:
    return sum(queue["active"] for queue in member.state().get("queues", []))


async def test_nothing_is_consumed_before_the_application_is_ready_and_the_log_says_why_in_one_line(
    place: Place, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Judge()
    app = moody(judge, "a", ready=False)
    entering = asyncio.create_task(Member(place.settings("a"), app).__aenter__())
    await load.publish(40)
    await until(lambda: app.calls is not None)
    await asyncio.sleep(0.3)
    assert not entering.done()
    assert not judge.starts
    for _ in range(100):
        app.ready(False, "http://app/ cannot be reached: Connection refused")
    assert [message for message in caplog.messages if "not ready" in message] == [
        "a: the application is not ready: http://app/ cannot be reached: Connection refused"
    ]
    app.ready(True)
    async with asyncio.timeout(GUARD_S):
        member = await entering
    await load.all_seen(judge)
    await member.__aexit__(None, None, None)


async def test_who_is_not_ready_hands_over_and_takes_its_share_back(place: Place, load: Load) -> None:
    judge = Judge()
    app = moody(judge, "a")
    async with (
        Member(place.settings("a"), app) as a,
        Member(place.settings("b"), judge.handler("b")) as b,
    ):
        async with under_load(load):
            await until(lambda: active(a) == active(b) == 2)
            app.ready(False, "its database is down")
            await until(lambda: active(b) == 4)
            assert a.state()["app"]["why"] == "its database is down"
            assert b.state()["live"] == [1]
            since = len(judge.starts)
            await until(lambda: len(judge.starts) > since + 50)
            assert judge.members(since=since) == {"b"}
            app.ready(True)
            await until(lambda: active(a) == active(b) == 2)
        await load.all_seen(judge)
    assert not judge.inversions
    assert not judge.repeats, "an application that ends its calls repeats nothing"


async def test_a_member_whose_application_is_not_ready_can_be_stopped(place: Place) -> None:
    app = moody(Judge(), "a", ready=False)
    member = Member(place.settings("a"), app)
    entering = asyncio.create_task(member.__aenter__())
    await until(lambda: app.calls is not None)
    member.stop("SIGTERM")
    async with asyncio.timeout(GUARD_S):
        await entering
        await member.run()


def test_calls_that_do_not_end_hold_the_queues_for_no_longer_than_a_handoff_may_take() -> None:
    world = World(3, balancing={"max_handoff_s": 1.0})
    sick, well = world.join(), world.join()
    world.chances = Chances(call_s=0.01)
    for step in range(400):
        world.at(step * 0.02, lambda h=step % 8: world.publish(f"key{h}", hash_=h))
    world.run(7)
    world.chances = Chances(slow=1.0, slow_s=60.0)
    world.run(0.2)
    assert sick.calls
    sick.app_ready(False)
    world.run(1.5)
    assert sick.stood_down
    assert set(world.served_by().values()) == {well.index}
    world.chances = Chances()
    sick.app_ready(True)
    world.run(8)
    assert world.served_by() == balanced_primaries(4, {0, 1})
    fine(world, after_s=60)  # the calls that the other one made meanwhile are slow, too


def test_a_connection_lost_while_standing_down_ends_it() -> None:
    world = World(4)
    sick, _ = world.join(), world.join()
    world.run(8)
    world.publish("k", hash_=0)
    world.chances = Chances(slow=1.0, slow_s=60.0)
    world.run(0.1)
    sick.app_ready(False)
    world.drop_connection(sick)
    world.run(0.3)
    assert sick.stood_down


def test_a_member_that_stands_down_can_be_told_to_leave_for_good() -> None:
    world = World(5)
    sick, well = world.join(), world.join()
    world.run(8)
    sick.app_ready(False)
    sick.stop()
    world.run(5)
    assert sick.exited
    assert set(world.served_by().values()) == {well.index}
