"""Another number of queues for a group that is published to and consumed from all the while."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.progress import Progress, Stage, line_of
from lbg_core.admin.repartition import repartition_group
from lbg_core.client import (
    BasicProperties,
    ChannelClosed,
    ClientError,
    ConfirmingPublisher,
    ConnectionLost,
    Nacked,
    connect,
)
from lbg_core.group import GroupSpec, Names, hash_of, recounted, routing_key
from lbg_core.publisher import GroupPublisher, events
from lbg_sidecar import Member, MemberSettings
from testing.admin.place import Place
from testing.member.group_load import Judge, Load, under_load
from testing.waiting import GUARD_S, until

PASSWORD = "secret"


@dataclass
class Scene:
    """Two members and a publisher, all of them the group's own user."""

    admin: LiveAdmin
    judge: Judge
    load: Load
    members: list[Member]
    told: list[events.PublisherEvent]
    url: str


@asynccontextmanager
async def scene_on(place: Place, spec: GroupSpec) -> AsyncIterator[Scene]:
    admin = place.admin()
    await create_group(admin, spec, password=PASSWORD)
    where = place.settings
    url = f"amqp://{spec.client_username}:{PASSWORD}@{where.host}:{where.port}/{where.vhost.strip('/')}"
    judge, told = Judge(), []
    async with AsyncExitStack() as stack:
        stack.push_async_callback(admin.close)
        members = []
        for name in ("a", "b"):
            settings = MemberSettings(broker=url, group=spec.name, name=name, rebalance_delay_s=0.5)
            members.append(await stack.enter_async_context(Member(settings, judge.handler(name))))
        publisher = GroupPublisher(url, group=spec.name, on_event=told.append)
        await stack.enter_async_context(publisher)
        yield Scene(admin, judge, Load(publisher, keys=40), members, told, url)


class Foreign:
    """A publisher that is none of LBG's: it stops at the first word against it. `ended` says which. `begun` are the
    messages that it has published, whatever became of the last."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.begun = 0
        self.confirmed = 0
        self.ended: Exception | None = None

    async def publish(self, url: str, spec: GroupSpec) -> None:
        connection = await connect(url)
        publisher = await ConfirmingPublisher.open(connection)
        try:
            while True:
                headers = {"lbg-key": "k", "lbg-publisher": self.name, "lbg-seq": self.confirmed}
                hash_ = hash_of("k", spec.hash_count)
                self.begun += 1
                await publisher.publish(
                    Names(spec.name).exchange,
                    routing_key(spec.hash_prefix, hash_, ""),
                    b"",
                    properties=BasicProperties(headers=headers, delivery_mode=2),
                )
                self.confirmed += 1
                await asyncio.sleep(0.01)
        except (ClientError, OSError) as error:
            self.ended = error
        finally:
            await connection.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "mode"),
    [("embedded", "Exclusive"), ("embedded", "Partitioned"), ("rabbitmq", "Partitioned")],
    indirect=["place"],
)
async def test_nothing_is_lost_repeated_or_out_of_order_and_foreign_publishers_are_refused(
    place: Place, mode: str, unique: str
) -> None:
    delay = {"rebalance_delay_s": 0.5} if mode == "Partitioned" else {}
    spec = GroupSpec(
        "orders",
        "orders",
        hash_count=24,
        queue_count=4,
        queue_size_mb=10,
        client_username=unique,
        mode=mode,
        **delay,
    )
    async with scene_on(place, spec) as scene:
        judge, load = scene.judge, scene.load
        foreign = [Foreign("own-user"), Foreign("administrator")]
        urls = (scene.url, scene.url.replace(f"{spec.client_username}:{PASSWORD}", "guest:guest"))
        others = [asyncio.create_task(one.publish(url, spec)) for one, url in zip(foreign, urls, strict=True)]
        async with under_load(load):
            await until(lambda: len(judge.times) > 300, what="work")
            await until(lambda: all(one.confirmed for one in foreign), what="work of others")
            lines: list[str] = []
            begun: dict[str, int] = {}

            def tell(progress: Progress) -> None:
                lines.append(line_of(progress))
                if progress.stage is Stage.INGRESS_OFF:
                    assert not any(one.ended for one in foreign)
                if progress.stage is Stage.DRAINED:
                    begun.update({one.name: one.begun for one in foreign})

            joined = [one.state()["incarnation"] for one in scene.members]
            done = await repartition_group(
                scene.admin, "orders", 6, timeout_s=GUARD_S, offline=True, report=tell
            )
            before = len(judge.starts)
            await until(lambda: len(judge.starts) > before + 300, what="work after it")
        await until(lambda: all(other.done() for other in others), what="others to be refused")
        await asyncio.gather(*others)
        for one in foreign:
            assert one.confirmed <= begun[one.name], "the broker took what was published after it was drained"
        load.published += sum(one.confirmed for one in foreign)
        await load.all_seen(judge)
        assert done.now == 6
        assert done.is_settled, lines
        assert judge.inversions == []
        assert judge.repeats == 0
        assert all(isinstance(one.ended, ChannelClosed | ConnectionLost | Nacked) for one in foreign)
        ingress = (events.IngressClosed, events.IngressOpen)
        assert [type(one) for one in scene.told if isinstance(one, ingress)] == list(ingress)
        assert judge.members(since=before) == {"a", "b"}
        assert joined == [one.state()["incarnation"] for one in scene.members], "a member has joined again"
        shown = await show_group(scene.admin, "orders")
        assert shown.problems == ()
        assert shown.spec == recounted(spec, 6)


@pytest.mark.long
@pytest.mark.parametrize("place", ["embedded", "rabbitmq"], indirect=True)
async def test_members_take_fewer_queues_on_the_connection_that_they_have(
    place: Place, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Queues that are too many are deleted under their consumers."""
    spec = GroupSpec(
        "orders", "orders", hash_count=24, queue_count=5, queue_size_mb=10, client_username=unique
    )
    caplog.set_level("WARNING", logger="lbg.member")
    async with scene_on(place, spec) as scene:
        judge, load = scene.judge, scene.load
        joined = [one.state()["incarnation"] for one in scene.members]
        async with under_load(load):
            done = await repartition_group(scene.admin, "orders", 3, timeout_s=GUARD_S)
            assert done.is_settled
            before = len(judge.starts)
            await until(lambda: len(judge.starts) > before + 100, what="work after it")
        await load.all_seen(judge)
        assert judge.inversions == []
        assert judge.repeats == 0
        states = [one.state() for one in scene.members]
        assert [one["incarnation"] for one in states] == joined
        served = [queue["queue"] for one in states for queue in one["queues"] if queue["role"] == "primary"]
        assert sorted(served) == [0, 1, 2]
    assert caplog.messages == []


@pytest.mark.long
@pytest.mark.parametrize("place", ["embedded", "rabbitmq"], indirect=True)
async def test_partitions_change_online_and_nobody_is_refused(place: Place, unique: str) -> None:
    """The embedded broker moves the keys itself; on RabbitMQ the partitions are separate queues."""
    spec = GroupSpec(
        "orders",
        "orders",
        hash_count=24,
        queue_count=4,
        queue_size_mb=10,
        client_username=unique,
        mode="Partitioned",
        rebalance_delay_s=0.5,
    )
    async with scene_on(place, spec) as scene:
        judge, load = scene.judge, scene.load
        foreign = Foreign("administrator")
        url = scene.url.replace(f"{spec.client_username}:{PASSWORD}", "guest:guest")
        other = asyncio.create_task(foreign.publish(url, spec))
        async with under_load(load):
            await until(lambda: len(judge.times) > 300 and foreign.confirmed, what="work")
            for count in (6, 3):
                done = await repartition_group(scene.admin, "orders", count, timeout_s=GUARD_S)
                assert (done.now, done.is_changed, done.is_settled) == (count, True, True)
                before = len(judge.starts)
                await until(lambda before=before: len(judge.starts) > before + 100, what="work after it")
        assert foreign.ended is None
        other.cancel()
        await asyncio.gather(other, return_exceptions=True)
        load.published += foreign.confirmed
        await load.all_seen(judge)
        assert judge.inversions == []
        assert judge.repeats == 0
        assert not [one for one in scene.told if isinstance(one, events.IngressClosed)]
        assert judge.members(since=before) == {"a", "b"}
        shown = await show_group(scene.admin, "orders")
        assert shown.problems == ()
        assert shown.spec == recounted(spec, 3)


@pytest.mark.long
@pytest.mark.parametrize("place", ["embedded"], indirect=True)
async def test_a_member_that_missed_it_takes_the_new_number_when_it_connects_again(
    place: Place, unique: str
) -> None:
    spec = GroupSpec(
        "orders", "orders", hash_count=24, queue_count=4, queue_size_mb=10, client_username=unique
    )
    async with scene_on(place, spec) as scene:
        member = scene.members[0]
        connection = await connect(scene.url.replace(f"{unique}:{PASSWORD}", "guest:guest"))
        publisher = await ConfirmingPublisher.open(connection)
        record = recounted(spec, 6).to_record().encode()
        await publisher.publish("", Names("orders").config, record)
        member.drop_connection()
        await until(lambda: len(member.state().get("queues", ())) == 6, what="six queues")
        await connection.close()
