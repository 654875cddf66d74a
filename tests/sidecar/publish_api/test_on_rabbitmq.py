"""The endpoint on a real RabbitMQ, with the CloudEvents SDK for Python as its client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from lbg_core.client import Delivery, connect
from lbg_core.group import GroupSpec, Names
from lbg_core.group.names import binding_key
from testing.admin.group_on_broker import declare_group
from testing.aside import aside
from testing.rabbitmq.alarm import alarm
from testing.rabbitmq.message_size import messages_of_at_most
from testing.rabbitmq.node import RabbitNode
from testing.sidecar.publish_endpoint import BATCH, Endpoint, event, serving
from testing.waiting import GUARD_S, until


@pytest.fixture
async def spec(rabbit_vhost: str) -> GroupSpec:
    spec = GroupSpec(
        "orders", "orders", hash_count=4, queue_count=2, queue_size_mb=1, client_username="guest"
    )
    await declare_group(rabbit_vhost, spec)
    return spec


@pytest.fixture
async def endpoint(rabbit_vhost: str, spec: GroupSpec) -> AsyncIterator[Endpoint]:
    async with serving(rabbit_vhost) as endpoint:
        yield endpoint


def made(number: int, data: Any = None, **more: Any) -> CloudEvent:
    attributes = {"id": f"e{number}", "source": "/shop", "type": "order", "specversion": "1.0", **more}
    return CloudEvent({"partitionkey": "k", **attributes}, data if data is not None else {"n": number})


async def consumed(url: str, spec: GroupSpec, count: int) -> list[Delivery]:
    """The first `count` messages of the group's queues (`basic.get` is not for quorum queues of one consumer)."""
    found: list[Delivery] = []
    connection = await connect(url)
    for queue in range(spec.queue_count):
        channel = await connection.open_channel()
        await channel.consume(Names(spec.name).queue(queue), found.extend, no_ack=True)
    await until(lambda: len(found) >= count)
    await connection.close()
    return found


async def test_what_the_sdk_sends_arrives_whole_and_in_order_whatever_the_mode(
    endpoint: Endpoint, rabbit_vhost: str, spec: GroupSpec
) -> None:
    binary = to_binary_event(made(1, b"\x00\xff", datacontenttype="image/png", region='grün "1" %'))
    structured = to_structured_event(made(2, datacontenttype="application/json"))
    batch = b"[%s]" % b",".join(JSONFormat().write(made(number)) for number in range(3, 6))
    for body, headers in (
        (binary.body, binary.headers),
        (structured.body, structured.headers),
        (batch, BATCH),
        (binary.body, binary.headers),
    ):
        status, answer = await endpoint.post(body, headers)
        assert status == 200, answer
    assert answer["deduplicated"]
    found = await consumed(rabbit_vhost, spec, 5)
    assert [each.headers["cloudEvents:id"] for each in found] == ["e1", "e2", "e3", "e4", "e5"]
    assert bytes(found[0].body) == b"\x00\xff"
    assert found[0].properties.content_type == "image/png"
    assert found[0].headers["cloudEvents:region"] == 'grün "1" %'
    assert [json.loads(bytes(each.body)) for each in found[1:]] == [{"n": number} for number in range(2, 6)]


async def test_under_an_alarm_a_request_is_503_in_time_and_its_retries_join_the_one_event(
    endpoint: Endpoint, rabbitmq: RabbitNode, rabbit_vhost: str, spec: GroupSpec
) -> None:
    """RabbitMQ blocks a connection only when it publishes: opened before or during the alarm, it is the same."""
    await declare_group(rabbit_vhost, replace(spec, name="bills", hash_prefix="bills"))
    first = to_binary_event(made(1))
    assert (await endpoint.post(first.body, first.headers))[0] == 200
    second = to_binary_event(made(2))
    endpoint.answers_within(1.0)
    async with alarm(rabbitmq, "memory"):
        for group in ("orders", "bills"):
            async with endpoint.session.post(
                f"{endpoint.url}/v1/publish/{group}", data=second.body, headers=second.headers
            ) as answer:
                assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
                assert "may still be published" in (await answer.json())["detail"]
        again = asyncio.create_task(endpoint.post(second.body, second.headers))
        await until(lambda: endpoint.publishing.describe()["waiting"] == 1)
        assert endpoint.publishing.describe()["in_flight"] == 2
        assert (await again)[0] == 503
    await until(lambda: endpoint.publishing.describe()["in_flight"] == 0)
    endpoint.answers_within(GUARD_S)
    status, answer = await endpoint.post(second.body, second.headers)
    assert (status, answer["deduplicated"]) == (200, True)
    ids = [each.headers["cloudEvents:id"] for each in await consumed(rabbit_vhost, spec, 2)]
    assert ids == ["e1", "e2"]


async def test_a_login_that_may_not_publish_is_403_now_and_200_once_it_may(
    rabbitmq: RabbitNode, rabbit_vhost: str, spec: GroupSpec, unique: str
) -> None:
    vhost = rabbit_vhost.rpartition("/")[2]
    await aside(rabbitmq.ask, "PUT", f"/api/users/{unique}", '{"password": "p", "tags": ""}')

    async def allow(write: str) -> None:
        patterns = json.dumps({"configure": "", "write": write, "read": ".*"})
        await aside(rabbitmq.ask, "PUT", f"/api/permissions/{vhost}/{unique}", patterns)

    await allow("")
    async with serving(rabbit_vhost.replace("guest:guest", f"{unique}:p")) as endpoint:
        for _ in range(2):
            status, problem = await endpoint.post("x")
            assert status == 403, problem
            assert Names("orders").exchange in problem["detail"]
            assert ":p@" not in problem["detail"]
        await allow(".*")
        assert (await endpoint.post("x"))[0] == 200


async def test_an_event_whose_binding_is_missing_is_kept_with_the_unrouted(
    endpoint: Endpoint, rabbit_vhost: str, spec: GroupSpec
) -> None:
    _, known = await endpoint.post("x", query="?key=k")
    connection = await connect(rabbit_vhost)
    channel = await connection.open_channel()
    names, hash_ = Names("orders"), known["hash"]
    await channel.queue_unbind(
        names.queue(hash_ % spec.queue_count), names.exchange, binding_key(spec.hash_prefix, hash_)
    )
    status, answer = await endpoint.post("y", query="?key=k")
    assert (status, answer["seq"]) == (200, 1)
    await until(lambda: endpoint.publishing.describe()["unrouted"] == {"orders": 1})
    unrouted = await channel.basic_get(names.unrouted)
    await connection.close()
    assert unrouted is not None
    assert bytes(unrouted.body) == b"y"


async def test_an_event_over_the_nodes_limit_is_refused_and_the_next_ones_before_they_are_sent(
    rabbitmq: RabbitNode, rabbit_vhost: str, spec: GroupSpec
) -> None:
    """RabbitMQ announces no limit: the first such event ends the channel, and what was under way is to be retried."""
    with messages_of_at_most(rabbitmq, 70_000):
        async with serving(rabbit_vhost) as endpoint:
            assert (await endpoint.post(b"x" * 70_000))[0] == 200
            status, problem = await endpoint.post(b"x" * 70_001)
            assert status == 413
            assert "message size 70001 is larger than max size 70000" in problem["detail"]
            status, problem = await endpoint.batch([event(1), event(2, data="x" * 70_001)])
            assert (status, problem["index"]) == (413, 1)
            assert (await endpoint.post(b"y" * 70_000))[0] == 200
    assert [len(each.body) for each in await consumed(rabbit_vhost, spec, 2)] == [70_000] * 2
