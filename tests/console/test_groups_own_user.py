"""On RabbitMQ the user of a group has no management API: what AMQP shows is shown, and the rest is named."""

from __future__ import annotations

import pytest

from lbg_core.admin.groups import create_group
from lbg_core.admin.management import ManagementSettings
from lbg_core.client import ConnectionSettings
from lbg_core.group import GroupSpec
from testing.admin.place import Place
from testing.console import client_of, console_of, live_member
from testing.rabbitmq.node import RabbitNode
from testing.waiting import until
from tests.console.conftest import PASSWORD

pytestmark = [pytest.mark.process, pytest.mark.rabbitmq]


async def test_a_groups_own_user_sees_members_queues_and_moves(
    rabbitmq: RabbitNode, rabbit_vhost: str, unique: str
) -> None:
    place = Place(ConnectionSettings.parse(rabbit_vhost), ManagementSettings.parse(rabbitmq.management_url))
    spec = GroupSpec(unique, unique, hash_count=8, queue_count=2, queue_size_mb=10, client_username=unique)
    async with place.administered() as admin:
        await create_group(admin, spec, password=PASSWORD)
    login = {"username": unique, "password": PASSWORD}
    async with (
        console_of(place, groups=(unique,), **login) as console,
        client_of(console) as client,
        live_member(place, spec, 0),
    ):
        await until(lambda: unique in console.survey.groups, what="the survey")
        assert (await client.sign_in(**login)).status == 303
        async with client.events(f"/groups/{unique}/events") as events:
            async with live_member(place, spec, 1) as member:
                group = await events.next("group", lambda data: len(data.get("members") or ()) == 2)
                await member.connection.close()
            crash = await events.next("change", lambda data: data["kind"] == "crashed")
            assert crash["member"] == "m1"
            assert (await client.act(f"/groups/{unique}/acts/pause-ingress")).status == 303
            acted = await events.next("group", lambda data: data["acts"] and data["acts"][0]["text"])
    assert [row["number"] for row in group["services"]] == [0, 1]
    assert [row["member"] for row in group["services"]] == ["m0", "m0"]
    assert (group["ready"], group["problems"]) == (0, [])
    assert group["survey"]["is_partial"]
    assert "permissions" in group["survey"]["missing"]
    assert PASSWORD not in group["survey"]["missing"]
    assert acted["acts"][0]["state"] == "failed"
