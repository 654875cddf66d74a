"""Memory and disk alarms: RabbitMQ stops reading from connections that publish (connection.blocked), and says so.

A member publishes over one connection and does everything else over another one, so it goes on consuming.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.status_reports import collect_reports
from lbg_core.client import ConnectionSettings, Delivery, connect
from lbg_core.group import GroupSpec
from lbg_core.group.member_state import Identity
from lbg_sidecar import Member, Message, Verdict, drop
from lbg_sidecar.core.delivery import Attachment, InFlight
from lbg_sidecar.core.retransmit import RetransmitTimeouts
from lbg_sidecar.io.connection import MemberConnection
from lbg_sidecar.io.last_wills import LastWills
from lbg_sidecar.io.log_events import StateLogger
from lbg_sidecar.io.outbox import Outbox
from lbg_sidecar.io.posts import Posts
from testing.member.balance import active
from testing.member.group_load import Judge, Load
from testing.member.place import Place
from testing.rabbitmq.alarm import ALARMS, alarm
from testing.rabbitmq.driven_member import DrivenMember
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S, until


def talk_is_blocked(member: DrivenMember) -> bool:
    link = member.driver.link
    return link is not None and link.publish_connection.is_blocked


async def ready(place: Place) -> int:
    return sum([await place.count(place.names.queue(number)) for number in range(4)])


@pytest.mark.parametrize("kind", ALARMS)
async def test_members_go_on_consuming_during_an_alarm_and_their_beats_resume_after_it(
    rabbitmq: RabbitNode, place: Place, load: Load, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    judge = Judge()
    may_go_on = asyncio.Event()

    async def slow(message: Message) -> Verdict | None:
        await may_go_on.wait()
        return (
            drop("no good") if message.data == b"367" else None
        )  # the last of its key: nothing waits behind it

    async with (
        DrivenMember(place.settings("a", prefetch=8), judge.handler("a", slow)) as a,
        DrivenMember(place.settings("b", prefetch=8), judge.handler("b", slow)) as b,
    ):
        await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1])
        await load.publish(400)
        await load.publisher.flush()
        async with alarm(rabbitmq, kind):
            await until(lambda: talk_is_blocked(a) and talk_is_blocked(b), what="both to be blocked")
            may_go_on.set()
            await until(lambda: len(judge.times) == 400, what="the backlog, under the alarm")
            counts = [member.state()["counts"] for member in (a, b)]
            await until(lambda: sum(member.state()["counts"]["acked"] for member in (a, b)) == 399)
            assert await ready(place) == 0
            assert sum(count["dead_lettered"] for count in counts) == 0, (
                "a dead letter waits for the alarm's end"
            )
            assert a.state()["live"] == b.state()["live"] == [0, 1], "silence alone removes nobody"
        await until(lambda: sum(member.state()["counts"]["dead_lettered"] for member in (a, b)) == 1)
        assert await place.count(place.names.dead) == 1
    assert not judge.inversions
    assert not judge.repeats


async def test_a_member_that_starts_during_an_alarm_joins_and_takes_over(
    rabbitmq: RabbitNode, place: Place, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lbg.member")
    judge = Judge()
    may_go_on = asyncio.Event()

    async def slow(message: Message) -> None:
        await may_go_on.wait()

    async with DrivenMember(place.settings("a", prefetch=8), judge.handler("a", slow)) as a:
        await load.publish(400)
        await load.publisher.flush()
        async with alarm(rabbitmq, "memory"):
            await until(lambda: talk_is_blocked(a))
            async with asyncio.timeout(GUARD_S):
                b = await Member(place.settings("b", prefetch=8), judge.handler("b", slow)).__aenter__()
            try:
                assert b.index == 1
                may_go_on.set()
                async with asyncio.timeout(GUARD_S):
                    a.stop("leaves during the alarm")
                    await a.run()
                await until(lambda: len(judge.times) == 400, what="the backlog, under the alarm")
                assert active(b) == {0, 1, 2, 3}
                async with Member(place.settings("c"), judge.handler("c")) as c:
                    assert c.index == 0
                    assert c.state()["live"] == [0], "nobody can say anything"
            finally:
                await b.__aexit__(None, None, None)
    assert judge.members() == {"a", "b"}
    assert not judge.inversions
    assert not judge.repeats


async def test_members_that_met_during_an_alarm_know_each_other_and_share_after_it(
    rabbitmq: RabbitNode, place: Place, load: Load
) -> None:
    judge = Judge()
    async with alarm(rabbitmq, "disk"):
        a = await Member(place.settings("a"), judge.handler("a")).__aenter__()
        b = await Member(place.settings("b"), judge.handler("b")).__aenter__()
        assert (a.index, b.index) == (0, 1)
    try:
        await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1], what="them to hear each other")
        publishing = asyncio.create_task(load.publish(1000, rate_hz=400))
        await until(lambda: len(active(a)) == len(active(b)) == 2, what="balance")
        await publishing
        await load.all_seen(judge)
    finally:
        for member in (a, b):
            await member.__aexit__(None, None, None)
    assert not judge.inversions
    assert not judge.repeats


async def test_a_dead_letter_that_an_alarm_holds_up_for_longer_than_an_answer_takes_is_there_once(
    rabbitmq: RabbitNode, place: Place
) -> None:
    answer_s = 0.2
    talk = await connect(place.url)
    posting = await talk.open_channel()
    posts = Posts(posting, place.names.members, lambda *_: None)
    link = MemberConnection(
        talk,
        talk,
        place.names,
        0,
        queue_name=place.names.queue,
        posts=posts,
        last_wills=LastWills(
            talk,
            place.names,
            0,
            publish=posts.leave_will,
            on_will=lambda _: None,
            on_watched=lambda _: None,
            consumer_timeout_s=1800,
        ),
        states=StateLogger[int]("a", {}),
    )
    buried: list[InFlight] = []
    outgoing = Outbox(
        place.names,
        Identity(0, "a", ""),
        link,
        on_confirmed=buried.append,
        wall_us=lambda _: 0,
        patience=RetransmitTimeouts(answer_s=answer_s),
    )
    delivery = Delivery.__new__(Delivery)
    delivery.header, delivery.body, delivery.routing_key = b"\x00\x00", b"x", f"{place.spec.hash_prefix}.0"
    held = InFlight(Attachment(0, 1), 1, delivery=delivery)
    async with alarm(rabbitmq, "memory"):
        outgoing.dead_letter(held)
        await until(lambda: talk.is_blocked)
        # One that did not look at the alarm would have published it five times by then.
        await asyncio.sleep(5 * answer_s)
        assert not buried
    await until(lambda: buried)
    assert buried == [held]
    assert await place.count(place.names.dead) == 1
    outgoing.close()
    await talk.close()


async def test_members_are_shown_during_an_alarm(rabbitmq: RabbitNode, unique: str) -> None:
    """An observer asks members for their reports, and RabbitMQ reads nothing more from a connection that publishes."""
    settings = ConnectionSettings.parse(rabbitmq.amqp_url)
    admin, probe = LiveAdmin(settings), await connect(settings)
    channel = await probe.open_channel()

    def is_felt() -> bool:
        channel.publish("", "nowhere", b"")
        return probe.is_blocked

    spec = GroupSpec(unique, unique, hash_count=4, queue_count=2, queue_size_mb=1, client_username=unique)
    try:
        await create_group(admin, spec, with_user=False)
        async with alarm(rabbitmq, "disk"):
            await until(is_felt, what="the alarm")
            for _ in range(2):
                async with asyncio.timeout(GUARD_S):
                    await collect_reports(admin.amqp, [unique], seconds=0.5)
                    assert (await show_group(admin, unique)).queues
    finally:
        probe.abort()
        async with asyncio.timeout(GUARD_S):
            await admin.close()
