"""A cluster of three nodes: where leaders and connections are, and a disk alarm on one node."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.management import ManagementSettings
from lbg_core.client import ConnectionSettings
from lbg_core.group import Names
from lbg_core.publisher import GroupPublisher, PublisherEvent, events
from lbg_sidecar import Member, MemberSettings
from lbg_sidecar.process.settings import configure
from testing.admin.group_on_broker import declare_group
from testing.admin.place import Place
from testing.aside import aside
from testing.member.group_load import Judge, Load, group_spec, under_load
from testing.rabbitmq.alarm import alarm
from testing.rabbitmq.cluster import RabbitCluster
from testing.rabbitmq.node import NodeFailedError
from testing.waiting import until, until_answer

pytestmark = [pytest.mark.rabbitmq, pytest.mark.cluster]

QUEUES = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[RabbitCluster]:
    with RabbitCluster() as cluster:
        yield cluster


def leaders(cluster: RabbitCluster, group: str) -> list[int] | None:
    """Quorum queues of the group that each node leads: those of its messages, dead letters, unrouted ones, the record.

    None while they cannot be asked, or one has no leader.
    """
    names = Names(group)
    queues = (*map(names.queue, range(QUEUES)), names.dead, names.unrouted, names.config)
    try:
        there = Counter(cluster.leader_of(queue).name for queue in queues)
    except NodeFailedError:
        return None
    return [there[node.name] for node in cluster.nodes]


async def test_leaders_are_spread_over_the_nodes_at_creation_and_again_by_a_rebalance_after_a_node_was_away(
    cluster: RabbitCluster, unique: str
) -> None:
    """The administrator is connected to the first node, and holds a lock, which counts as a leader there."""
    first = cluster.nodes[0]
    place = Place(ConnectionSettings.parse(first.amqp_url), ManagementSettings.parse(first.management_url))
    async with place.administered() as admin:
        await create_group(admin, group_spec(unique, queues=QUEUES), with_user=False)
        found = await until_answer(lambda: aside(leaders, cluster, unique))
        assert found is not None
        assert sum(found) == QUEUES + 3
        assert min(found) >= 2, found
        shown = (await show_group(admin, unique)).leaders
        assert list(shown) == sorted(node.name for node in cluster.nodes)
        assert sum(shown.values()) == QUEUES

    await aside(first.kill)
    await until_answer(
        lambda: aside(leaders, cluster, unique), lambda found: found is not None and found[0] == 0
    )
    await aside(first.start)
    await aside(cluster.wait_whole)

    def rebalanced() -> list[int] | None:
        """Again where a transfer of a leader did not succeed."""
        try:
            cluster.rebalance()
        except NodeFailedError:
            return None
        return leaders(cluster, unique)

    await until_answer(lambda: aside(rebalanced), lambda found: found == [3, 3, 3], every_s=1)


async def test_sidecars_with_the_same_addresses_are_spread_over_the_nodes(
    cluster: RabbitCluster, unique: str
) -> None:
    """By chance: that one node of three has none of 40 is less likely than one in a million."""
    await declare_group(cluster.urls[0], group_spec(unique, queues=QUEUES))
    variables = {"LBG_BROKER": ",".join(cluster.urls), "LBG_GROUP": unique, "LBG_COMMAND": "true"}
    judge = Judge()
    async with AsyncExitStack() as clients:
        for number in range(8):
            settings = configure(variables | {"LBG_NAME": f"m{number}"})
            await clients.enter_async_context(Member(settings.member, judge.handler(f"m{number}")))
        for _ in range(32):
            await clients.enter_async_context(GroupPublisher(configure(variables).publisher, group=unique))

        def listed() -> list[tuple[str, str]]:
            """Name of each client, and its node, as RabbitMQ has them."""
            columns = "columns=node,client_properties.connection_name"
            rows = cluster.nodes[0].ask("GET", f"/api/connections?{columns}")
            named = [(one.get("client_properties", {}).get("connection_name", ""), one) for one in rows]
            return [(name, one["node"]) for name, one in named if name.startswith("lbg ")]

        found = await until_answer(lambda: aside(listed), lambda rows: len(rows) == 8 * 2 + 32)
    assert {node for _, node in found} == {node.name for node in cluster.nodes}
    of_members = {one for one in found if one[0].startswith("lbg member")}
    assert len(of_members) == 8, "both connections of a member are at one node"


def confirmed(loads: list[Load]) -> list[int]:
    return [load.publisher.confirmed_count for load in loads]


def are_stopped(told: dict[int, list[PublisherEvent]]) -> bool:
    return all(any(isinstance(one, events.Blocked) for one in of_one) for of_one in told.values())


async def test_a_disk_alarm_on_one_node_stops_publishers_at_all_nodes_and_loses_and_reorders_nothing(
    cluster: RabbitCluster, unique: str
) -> None:
    """Members at all nodes go on with what is there."""
    await declare_group(cluster.urls[0], group_spec(unique, queues=QUEUES))
    judge = Judge()
    told: dict[int, list[PublisherEvent]] = {node: [] for node in range(3)}
    async with AsyncExitStack() as clients:
        loads = [
            Load(
                await clients.enter_async_context(
                    GroupPublisher(url, group=unique, on_event=told[node].append)
                ),
                keys=12,
            )
            for node, url in enumerate(cluster.urls)
        ]
        for node, url in enumerate(cluster.urls):
            settings = MemberSettings(broker=url, group=unique, name=f"m{node}", rebalance_delay_s=0.5)
            await clients.enter_async_context(Member(settings, judge.handler(f"m{node}")))
        async with AsyncExitStack() as feeding:
            for load in loads:
                await feeding.enter_async_context(under_load(load, rate_hz=100))
            await until(lambda: judge.members(since=100) == {"m0", "m1", "m2"}, what="all to serve queues")
            async with alarm(cluster.nodes[1], "disk"):
                await until(lambda: are_stopped(told), what="publishers at all nodes to be stopped")
                await asyncio.sleep(1)  # for answers that are on the way
                before = confirmed(loads)
                await until(lambda: len(judge.times) >= sum(before), what="what was confirmed")
                await asyncio.sleep(1)
                assert confirmed(loads) == before
            await until(
                lambda: all(now > then + 100 for now, then in zip(confirmed(loads), before, strict=True)),
                what="publishers at all nodes to go on",
            )
        for load in loads:
            await load.publisher.flush()
        published = sum(load.published for load in loads)
        await until(lambda: len(judge.times) >= published, what="every message")
        reports = [load.publisher.report() for load in loads]
    assert [(report.confirmed, report.inverted) for report in reports] == [
        (load.published, 0) for load in loads
    ]
    assert len(judge.times) == published
    assert (judge.inversions, judge.repeats) == ([], 0)
