"""Another number of queues for a group that is published to and consumed from all the while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from lbg_broker.group import GroupSpec
from lbg_broker.provisioning.live import LiveAdmin
from lbg_broker.provisioning.provisioner import create_group, show_group
from lbg_broker.provisioning.repartition.procedure import repartition_group
from lbg_broker.publishing import GroupPublisher, events
from lbg_sidecar import Member, MemberSettings
from support.group_load import Judge, Load, under_load
from support.provisioning_place import Place
from support.waiting import until

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


@pytest.fixture(params=["Exclusive", "Partitioned"])
def spec(request: pytest.FixtureRequest, unique: str) -> GroupSpec:
    """Users belong to the whole node, so their names must differ from test to test."""
    delay = {"rebalance_delay_s": 0.5} if request.param == "Partitioned" else {}
    return GroupSpec(
        "orders",
        "orders",
        hash_count=24,
        queue_count=4,
        queue_size_mb=10,
        client_username=unique,
        mode=request.param,
        **delay,
    )


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


async def test_nothing_is_lost_repeated_or_out_of_order(place: Place, spec: GroupSpec) -> None:
    async with scene_on(place, spec) as scene:
        judge, load = scene.judge, scene.load
        async with under_load(load):
            await until(lambda: len(judge.times) > 300, what="work")
            lines: list[str] = []
            done = await repartition_group(scene.admin, "orders", 6, timeout_s=30.0, tell=lines.append)
            before = len(judge.times)
            await until(lambda: len(judge.times) > before + 300, what="work after it")
        await load.all_seen(judge)
        assert done.now == 6
        assert done.is_settled, lines
        assert judge.inversions == []
        assert judge.repeats == 0
        assert [
            type(one) for one in scene.told if isinstance(one, events.IngressClosed | events.IngressOpen)
        ] == [
            events.IngressClosed,
            events.IngressOpen,
        ]
        assert judge.members(since=before) == {"a", "b"}
        assert {member.spec.queue_count for member in scene.members if member.spec} <= {6, 4}
        shown = await show_group(scene.admin, "orders")
        assert shown.problems == ()
        assert shown.spec is not None
        assert shown.spec.queue_count == 6
