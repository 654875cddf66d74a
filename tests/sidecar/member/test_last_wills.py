"""Last wills on real brokers: who learns of a killed member in a group without messages, and what a will survives."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from lbg_core.client import ChannelClosed, ClientConnection, Delivery, connect
from lbg_core.group import last_will_of
from lbg_core.group.members_protocol import Ping
from lbg_core.group.message_codec import decode
from lbg_sidecar import Member, Message
from lbg_sidecar.core.timings import Timings
from lbg_sidecar.io import last_wills
from lbg_sidecar.io.last_wills import LastWills
from testing.member.place import Place
from testing.member.process import MemberProcess
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S, until, until_answer

NEVER_S = 10 * GUARD_S
PAIRS = 16
AND_LEFT_S = 1.0
"""A member leaves its will as soon as it has joined. RabbitMQ does not say whether it is left."""


async def nothing(message: Message) -> None:
    raise AssertionError("a group without messages")


@dataclass
class WillsOfOne:
    """`came`: whose wills came. `watched`: those that it would receive, one after the other."""

    connection: ClientConnection
    wills: LastWills = field(init=False)
    published: int = 0
    came: list[int] = field(default_factory=list)
    watched: list[int | None] = field(default_factory=list)


@asynccontextmanager
async def member_of(
    place: Place, index: int, *, consumer_timeout_s: float = 1800.0
) -> AsyncIterator[WillsOfOne]:
    one = WillsOfOne(await connect(place.url))
    try:
        publishing = await one.connection.open_channel()

        def publish(key: str) -> None:
            publishing.publish(place.names.members, key, b"")
            one.published += 1

        one.wills = LastWills(
            one.connection,
            place.names,
            index,
            publish=publish,
            on_will=one.came.append,
            on_watched=one.watched.append,
            consumer_timeout_s=consumer_timeout_s,
        )
        yield one
        one.wills.close()
    finally:
        await one.connection.close()


async def counts_of(place: Place, index: int) -> tuple[int, int] | None:
    """Messages that wait in the queue of its will, and consumers; None if there is no queue."""
    connection = await connect(place.url)
    try:
        channel = await connection.open_channel()
        answer = await channel.queue_declare(last_will_of(place.names, index)[0].name, passive=True)
        return answer.message_count, answer.consumer_count
    except ChannelClosed:
        return None
    finally:
        await connection.close()


@dataclass
class Wills:
    """All last wills of this process's members. `tell_of_will`: what is called when a will comes."""

    made: list[LastWills] = field(default_factory=list)
    tell_of_will: list[Callable[[int], None]] = field(default_factory=list)


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Wills:
    """Members ping nobody of their own accord."""
    timings = Timings(ping_s=NEVER_S, digest_s=NEVER_S, quiet_s=0.1)
    timings = replace(timings, settled_ping_s=NEVER_S, settled_digest_s=NEVER_S)
    timings = replace(timings, settled_unwatched_ping_s=NEVER_S)
    monkeypatch.setattr("lbg_sidecar.io.startup.Timings", lambda: timings)
    noted = Wills()

    class Noted(LastWills):
        def __init__(self, *args: Any, on_will: Callable[[int], None], **settings: Any) -> None:
            super().__init__(*args, on_will=on_will, **settings)
            noted.made.append(self)
            noted.tell_of_will.append(on_will)

    monkeypatch.setattr("lbg_sidecar.io.connection.LastWills", Noted)
    return noted


async def test_a_member_killed_in_a_group_without_messages_is_missed_without_a_ping_of_the_ring(
    place: Place, tmp_path: Path, noted: Wills
) -> None:
    victim = MemberProcess("victim", tmp_path, **place.told())
    async with Member(place.settings("a"), nothing) as a, Member(place.settings("b"), nothing) as b:
        await victim.start()
        try:
            index = await victim.joined()
            await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1, 2], what="three members")
            await until(lambda: index in [one.watched for one in noted.made], what="a watcher")
            await asyncio.sleep(AND_LEFT_S)
            await victim.kill()
            await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1], what="two members")
        finally:
            await victim.close()


async def test_a_member_whose_will_came_is_pinged_again_because_its_mailbox_may_be_deleted_later(
    place: Place, noted: Wills
) -> None:
    pings: list[Ping] = []

    def count(deliveries: list[Delivery]) -> None:
        messages = [decode(delivery.body) for delivery in deliveries]
        pings.extend(message for message in messages if isinstance(message, Ping))

    async with Member(place.settings("a"), nothing) as a, Member(place.settings("b"), nothing) as b:
        await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1], what="two members")
        await until(lambda: [one.watched for one in noted.made] == [1, 0], what="two watchers")
        connection = await connect(place.url)
        try:
            channel = await connection.open_channel()
            queue = (await channel.queue_declare(exclusive=True)).queue
            await channel.queue_bind(queue, place.names.members, "1")
            await channel.consume(queue, count, no_ack=True)
            noted.tell_of_will[0](1)
            await until(lambda: len(pings) > 2, what="further pings")
        finally:
            await connection.close()


async def test_the_will_comes_when_its_member_is_cut_off_and_only_to_the_one_that_awaits_it(
    place: Place,
) -> None:
    async with (
        member_of(place, 0) as gone,
        member_of(place, 1) as next_,
        member_of(place, 2) as other,
    ):
        await until(lambda: gone.wills.is_left and next_.wills.is_left, what="wills")
        next_.wills.watch(0)
        other.wills.watch(1)
        await until(lambda: next_.wills.watched == 0 and other.wills.watched == 1, what="watchers")
        gone.connection.abort()
        await until(lambda: next_.came == [0], what="the will of member 0")
        assert other.came == []
        next_.wills.watch(None)
        await until_answer(
            lambda: counts_of(place, 0), lambda counts: counts is None
        )  # with its last consumer


async def test_a_will_is_replaced_before_the_consumer_timeout_without_an_alarm(place: Place) -> None:
    async with member_of(place, 0, consumer_timeout_s=0.2) as gone, member_of(place, 1) as next_:
        await until(lambda: gone.wills.is_left, what="its will")
        next_.wills.watch(0)
        await until(lambda: gone.published > 10 and next_.wills.watched == 0)
        so_far = gone.published
        await until(lambda: gone.published > so_far + 10)
        assert next_.came == []
        gone.connection.abort()
        await until(lambda: next_.came, what="the will")
        assert set(next_.came) == {0}  # twice if it was being replaced


async def test_a_watcher_in_the_place_of_a_live_member_steps_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_wills, "AGAIN_S", NEVER_S)
    monkeypatch.setattr(last_wills, "STEP_BACK_S", 1.0)
    async with member_of(place, 1) as next_:
        next_.wills.watch(0)  # not there yet, or of a version without wills
        await until(lambda: next_.wills.watched == 0)
        async with member_of(place, 0) as gone:
            await until(lambda: next_.came == [0], what="a will in the wrong place")
            await until(lambda: gone.wills.is_left and next_.wills.watched == 0, what="both in their places")
            next_.came.clear()
            gone.connection.abort()
            await until(lambda: next_.came == [0], what="the will")


async def test_a_queue_that_an_administrator_deletes_is_made_anew_at_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members that nobody watches are the only consumers of their queues, which go when they open another channel: some
    of many meet theirs as it goes."""
    monkeypatch.setattr(last_wills, "AGAIN_S", NEVER_S)
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(member_of(place, 2 * PAIRS))
        members = [await stack.enter_async_context(member_of(place, index)) for index in range(2 * PAIRS)]
        pairs = list(zip(members[::2], members[1::2], strict=True))
        for number, (gone, next_) in enumerate(pairs):
            await until(lambda gone=gone: gone.wills.is_left)
            next_.wills.watch(2 * number)
        await until(lambda: all(next_.watched and next_.wills.is_left for _, next_ in pairs))
        so_far = [gone.published for gone, _ in pairs]
        channel = await admin.connection.open_channel()
        for number in range(PAIRS):
            await channel.queue_delete(last_will_of(place.names, 2 * number)[0].name)
        for number, (gone, next_) in enumerate(pairs):
            before = so_far[number]
            await until(
                lambda gone=gone, before=before: gone.published > before and gone.wills.is_left,
                what=f"will {number} again",
            )
            await until(
                lambda next_=next_: next_.watched[-1] is not None and len(next_.watched) > 1,
                what=f"consumer {number}",
            )
            next_.came.clear()  # one that was the first consumer in the queue received the will
        for gone, _ in pairs:
            gone.connection.abort()
        for number, (_, next_) in enumerate(pairs):
            await until(lambda next_=next_: next_.came, what=f"will {number}")


@asynccontextmanager
async def channels_held_up(node: RabbitNode, vhost: str, consumers: int) -> AsyncIterator[None]:
    """RabbitMQ's processes of the channels in a virtual host that have so many consumers do nothing for a while."""
    held_up = await asyncio.to_thread(
        node.evaluate,
        f"[begin sys:suspend(P), pid_to_list(P) end || P <- rabbit_channel:list(), "
        f"(catch rabbit_channel:info(P, [vhost, consumer_count])) =:= "
        f'[{{vhost, <<"{vhost}">>}}, {{consumer_count, {consumers}}}]]',
    )
    processes = re.findall(r"<[0-9.]+>", held_up)
    try:
        assert processes, held_up
        yield
    finally:
        for process in processes:
            await asyncio.to_thread(node.evaluate, f'sys:resume(list_to_pid("{process}"))')


@pytest.mark.parametrize("place", ["rabbitmq"], indirect=True)
async def test_a_watcher_that_rabbitmq_is_late_to_tell_of_the_end_of_a_queue_consumes_the_new_one(
    place: Place, rabbitmq: RabbitNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_wills, "AGAIN_S", NEVER_S)
    vhost = place.url.rpartition("/")[2]
    async with member_of(place, 0) as gone, member_of(place, 1) as next_, member_of(place, 2) as admin:
        channel = await admin.connection.open_channel()
        await until(lambda: gone.wills.is_left and next_.wills.is_left, what="wills")
        next_.wills.watch(0)
        admin.wills.watch(1)
        await until(lambda: next_.watched == [0] and admin.watched == [1], what="watchers")
        async with channels_held_up(rabbitmq, vhost, 2):
            so_far = gone.published
            await channel.queue_delete(last_will_of(place.names, 0)[0].name)
            await until(lambda: gone.published > so_far and gone.wills.is_left, what="its will again")
        await until(lambda: next_.watched == [0, None, 0], what="the watcher again")
        assert gone.wills.is_left
        assert next_.came == []
        gone.connection.abort()
        await until(lambda: next_.came == [0], what="the will")


async def test_a_will_that_the_broker_refused_to_keep_is_left_soon_after(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_wills, "AGAIN_S", NEVER_S)
    queue = last_will_of(place.names, 0)[0].name
    async with member_of(place, 1) as admin:
        channel = await admin.connection.open_channel()
        await channel.queue_declare(queue, durable=True)  # 406 for who declares it otherwise
        async with member_of(place, 0) as one:
            await asyncio.sleep(2 * last_wills.REFUSED_S)
            assert not one.wills.is_left
            await channel.queue_delete(queue)
            await until(lambda: one.wills.is_left, what="its will")


async def test_a_member_that_cannot_watch_another_leaves_its_own_will_and_watches_as_soon_as_it_can(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_wills, "AGAIN_S", NEVER_S)
    other_queue = last_will_of(place.names, 0)[0].name
    async with member_of(place, 1) as one, member_of(place, 2) as admin:
        channel = await admin.connection.open_channel()
        await channel.queue_declare(other_queue, durable=True)  # 406 for who declares it otherwise
        await until(lambda: one.wills.is_left)
        so_far = one.published
        one.wills.watch(0)
        await until(
            lambda: one.published > so_far and one.wills.is_left, what="its own will, on another channel"
        )
        assert one.wills.watched is None
        await channel.queue_delete(other_queue)
        await until(lambda: one.wills.watched == 0 and one.wills.is_left, what="the watch")


async def test_it_is_reported_whose_will_would_come(place: Place) -> None:
    async with member_of(place, 0) as one:
        one.wills.watch(1)
        await until(lambda: one.watched == [1], what="a watched will")
        one.wills.watch(2)
        await until(lambda: one.watched == [1, None, 2], what="another one")
        one.wills.watch(None)
        await until(lambda: one.watched == [1, None, 2, None], what="none")


async def test_a_will_that_cannot_come_any_more_is_not_reported_as_watched(place: Place) -> None:
    async with member_of(place, 0) as one:
        one.wills.watch(1)
        await until(lambda: one.watched == [1], what="a watched will")
        connection = await connect(place.url)
        try:
            channel = await connection.open_channel()
            await channel.queue_delete(last_will_of(place.names, 1)[0].name)
        finally:
            await connection.close()
        await until(lambda: one.watched[:3] == [1, None, 1], what="the will of a queue that was made anew")
