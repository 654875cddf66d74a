"""Policies that change a group's limits while messages flow: what RabbitMQ then does, and who notices.

A policy is in force as soon as it is set, on queues that exist. `lbg group create` and `lbg group show` refuse and show
the ones that lose messages (lbg_core.admin.policies); here is why each of them is on that list.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from lbg_core.client import Delivery, connect
from lbg_core.publisher import GroupPublisher, PublisherEvent, events
from lbg_sidecar import Member
from testing.aside import aside
from testing.member.group_load import Judge, Load
from testing.member.place import Place
from testing.rabbitmq.installation import NodeFailedError
from testing.rabbitmq.node import RabbitNode
from testing.waiting import GUARD_S, until, until_answer


@asynccontextmanager
async def policy(
    node: RabbitNode, place: Place, *, of_operator: bool = False, **definition: Any
) -> AsyncIterator[None]:
    """In force on the group's queues inside the block. Names have their dashes as underscores."""
    kind, vhost = "operator-policies" if of_operator else "policies", place.url.rsplit("/", 1)[1]
    path = f"/api/{kind}/{vhost}/under-us"
    body = {
        "pattern": "^lbg\\.",
        "definition": {name.replace("_", "-"): value for name, value in definition.items()},
        "apply-to": "queues",
    }
    await aside(node.ask, "PUT", path, json.dumps(body))
    try:
        await in_force(node, place, of_operator=of_operator)
        yield
    finally:
        await aside(node.ask, "DELETE", path)


async def in_force(node: RabbitNode, place: Place, *, of_operator: bool) -> None:
    """RabbitMQ tells a queue's process of its policy a moment after it has taken it."""
    vhost, kind = place.url.rsplit("/", 1)[1], "get_operator_policy" if of_operator else "get_policy"
    listed = f'Q <- rabbit_amqqueue:list(<<"{vhost}">>), amqqueue:{kind}(Q) =/= undefined'
    under = f'[Q || {listed}, re:run(element(4, amqqueue:get_name(Q)), "[.]q[.]") =/= nomatch]'

    async def count() -> int:
        return int(await aside(node.evaluate, f"length({under})"))

    await until_answer(count, lambda queues: queues >= place.spec.queue_count)
    await asyncio.sleep(0.5)


async def ready(place: Place) -> int:
    return sum([await place.count(place.names.queue(number)) for number in range(4)])


@pytest.mark.parametrize("of_operator", [False, True])
@pytest.mark.parametrize("limit", [{"max_length": 20}, {"max_length_bytes": 80}])
async def test_a_lower_length_limit_refuses_and_drops_nothing(
    rabbitmq: RabbitNode, place: Place, limit: dict[str, int], of_operator: bool
) -> None:
    """The group's own overflow, reject-publish, holds for a limit that a policy brings."""
    told: list[PublisherEvent] = []
    judge = Judge()
    async with GroupPublisher(place.url, group=place.spec.name, on_event=told.append) as publisher:
        load = Load(publisher, keys=40)
        await load.publish(160)
        await publisher.flush()
        async with policy(rabbitmq, place, of_operator=of_operator, **limit):
            assert await ready(place) == 160, "what is above the new limit stays"
            publishing = asyncio.create_task(load.publish(400))
            await until(
                lambda: any(isinstance(event, events.QueueFull) for event in told), what="a full queue"
            )
            async with Member(place.settings("a"), judge.handler("a")):
                await publishing
                await load.all_seen(judge, timeout_s=GUARD_S)
        report = publisher.report()
    assert report.refused > 0
    assert report.confirmed == load.published == 560
    assert len(judge.inversions) <= report.inverted <= report.accepted_after_gap


async def test_an_overflow_policy_of_drop_head_loses_messages_without_a_word(
    rabbitmq: RabbitNode, place: Place, load: Load
) -> None:
    """A policy's overflow goes before the queue's own: so such a policy is on the list of those to refuse."""
    async with policy(rabbitmq, place, max_length=10, overflow="drop-head"):
        await load.publish(400)
        await load.publisher.flush()
        assert load.publisher.report().confirmed == 400, "every one of them was confirmed"
        assert await ready(place) == 40


@pytest.mark.parametrize("of_operator", [False, True])
async def test_a_message_ttl_policy_loses_messages_without_a_word(
    rabbitmq: RabbitNode, place: Place, load: Load, of_operator: bool
) -> None:
    """Those that were published under it; one that was there before keeps what is behind it from expiring."""
    async with policy(rabbitmq, place, message_ttl=1, of_operator=of_operator):
        await load.publish(100)
        await load.publisher.flush()
        await until_answer(lambda: ready(place), lambda messages: not messages)
    assert load.publisher.report().confirmed == 100


@pytest.mark.parametrize("of_operator", [False, True])
async def test_a_delivery_limit_policy_loses_what_was_handed_over_more_often(
    rabbitmq: RabbitNode, place: Place, load: Load, of_operator: bool
) -> None:
    """On 4.0 too, though the group's queues ask for no limit there (-1): the lower one of the two is in force."""
    await load.publish(40)
    await load.publisher.flush()
    before = await place.count(place.names.queue(0))
    assert before > 0
    connection = await connect(place.url)
    async with policy(rabbitmq, place, delivery_limit=3, of_operator=of_operator):
        handovers = 0
        while await place.count(place.names.queue(0)):
            channel, came = await connection.open_channel(), list[Delivery]()
            await channel.consume(place.names.queue(0), came.extend, prefetch_count=before)
            await until(lambda got=came: len(got) == before, what=f"delivery {handovers + 1}")
            await channel.close()
            handovers += 1
            await asyncio.sleep(0.1)
        assert handovers == 4, "given back four times, and then gone"
    assert await place.count(place.names.dead) == 0
    await connection.close()


DELAYS_SINCE = (4, 3, 1)
"""4.3.0 has it for queues that declare it, and not for policies."""


async def test_since_4_3_a_delayed_retry_policy_lets_go_first_what_stands_behind_what_came_back(
    rabbitmq: RabbitNode, place: Place, load: Load
) -> None:
    """So it is on the list of those to refuse. Before, there is none such."""
    if rabbitmq.version < DELAYS_SINCE:
        with pytest.raises(NodeFailedError, match="answered 400"):
            async with policy(rabbitmq, place, delayed_retry_type="all"):
                pass
        return
    await load.publish(40)
    await load.publisher.flush()
    count = await place.count(place.names.queue(0))
    assert count > 2
    async with policy(rabbitmq, place, delayed_retry_type="all", delayed_retry_min=2000):
        connection = await connect(place.url)
        channel, before = await connection.open_channel(), list[Delivery]()
        await channel.consume(place.names.queue(0), before.extend, prefetch_count=1)
        await until(lambda: before, what="the first delivery")
        await channel.close()
        channel, after = await connection.open_channel(), list[Delivery]()
        await channel.consume(place.names.queue(0), after.extend, prefetch_count=count)
        await until(lambda: len(after) == count, what="all of them")
        assert [bytes(one.body) for one in after].index(bytes(before[0].body)) == count - 1
        await connection.close()
