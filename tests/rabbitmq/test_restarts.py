"""A node that is restarted under load, in order and by SIGKILL: all wait, and nothing is lost or out of order."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from lbg_core.publisher import GroupPublisher, PublisherEvent, events
from lbg_sidecar import Member, Message
from testing.admin.group_on_broker import declare_group
from testing.aside import aside
from testing.member.group_load import Judge, Load, group_spec, under_load
from testing.member.place import Place
from testing.needs import repeated
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S, until

pytestmark = pytest.mark.rabbitmq


@pytest.fixture(scope="module")
def node(process: None) -> Iterator[RabbitNode]:
    """A node that may be taken down."""
    with RabbitNode(statistics_s=1) as node:
        yield node


@pytest.mark.parametrize("how", repeated(["SIGKILL", "SIGTERM"]))
async def test_a_node_that_is_restarted_under_load_loses_and_reorders_nothing(
    node: RabbitNode, unique: str, how: str
) -> None:
    place = Place("rabbitmq", node.amqp_url, group_spec(unique))
    await declare_group(place.url, place.spec)
    judge, told = Judge(), list[PublisherEvent]()

    async def work(message: Message) -> None:
        await asyncio.sleep(0.002)

    async with (
        GroupPublisher(place.url, group=unique, on_event=told.append) as publisher,
        Member(place.settings("a"), judge.handler("a", work)) as a,
        Member(place.settings("b"), judge.handler("b", work)) as b,
    ):
        load = Load(publisher, keys=40)
        async with under_load(load, rate_hz=500):
            await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1])
            await until(lambda n=load.published: load.published > n + 300)
            await aside(node.stop if how == "SIGTERM" else node.kill)
            await until(lambda: a.index is None and b.index is None, what="the members to notice")
            await aside(node.start)
            await until(lambda: a.state()["live"] == b.state()["live"] == [0, 1], what="both to be back")
        await load.all_seen(judge, timeout_s=GUARD_S)
        report = publisher.report()
        assert (report.confirmed, report.inverted) == (load.published, 0)
        states = [member.state() for member in (a, b)]
    assert not judge.inversions
    windows = sum(256 for state in states for _ in state["queues"])
    assert judge.repeats <= report.maybe_twice + windows
    assert any(isinstance(event, events.Disconnected) for event in told)
    assert any(isinstance(event, events.Unreachable) for event in told), "it says so while it waits"
