"""Output of `show` for groups of one queue, and for partitions that members share."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.describe import Description
from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.group import Engine, GroupSpec
from testing.admin.fake_admin import FakeAdmin
from testing.admin.native_groups import MESSAGE_GROUPS, PARTITIONS, SESSIONS, made, spec_in
from testing.admin.problem_lines import problem_lines

BEAT: dict[str, Any] = {
    "v": 1,
    "index": 1,
    "name": "m1",
    "incarnation": "af",
    "rebalance": "Ready",
    "queues": [],
    "counts": {},
}


async def shown(admin: FakeAdmin, *beats: dict[str, Any]) -> Description:
    admin.beats = list(beats)
    return await show_group(admin, "orders")


async def test_partitions_are_told_as_the_broker_says_with_the_members_that_have_them() -> None:
    description = await shown(await made("Partitioned"), BEAT)

    told = description.to_json()

    assert told["rebalance_status"] == "HoldDown"
    assert told["partitions"] == [
        {
            "partition": 0,
            "status": "Ready",
            "member": "m1",
            "consumer_tag": "lbg.orders.member.1",
            "ready": 7,
            "unacked": 2,
        },
        {
            "partition": 1,
            "status": "Unassigned",
            "member": None,
            "consumer_tag": None,
            "ready": 4,
            "unacked": 0,
        },
    ]
    assert (told["ingress"], told["handoffs"]) == (True, PARTITIONS["handoffs"])
    assert [queue["name"] for queue in told["queues"]] == ["lbg.orders.q"]
    assert (told["ready"], told["unacked"]) == (11, 2)
    assert (description.rebalance, description.unserved) == ("HoldDown", [1])
    json.dumps(told)


async def test_a_partition_that_a_foreign_consumer_has_is_served() -> None:
    foreign = {**PARTITIONS, "partitions": [{**PARTITIONS["partitions"][0], "consumer_tag": "ctag1"}]}

    description = await shown(await made("Partitioned", said=foreign))

    (line,) = description.services
    assert (line.status, line.member, line.consumer) == ("Ready", None, "ctag1")
    assert description.unserved == []


async def test_a_partition_whose_consumer_is_gone_is_nobodys_though_the_broker_remembers_whose_it_was() -> (
    None
):
    gone = {**PARTITIONS, "partitions": [{**PARTITIONS["partitions"][0], "status": "Unbound"}]}

    description = await shown(await made("Partitioned", said=gone), BEAT)

    (line,) = description.services
    assert (line.status, line.member, line.consumer) == ("Unbound", None, None)
    assert description.unserved == [0]


async def test_a_partition_in_a_status_of_a_newer_broker_is_in_an_unknown_one() -> None:
    newer = {**PARTITIONS, "partitions": [{**PARTITIONS["partitions"][0], "status": "Draining"}]}

    description = await shown(await made("Partitioned", said=newer), BEAT)

    (line,) = description.reported_services
    assert (line.status, line.member, line.bindings) == ("Unknown", None, ())
    assert description.unserved == [0]
    assert description.to_json()["partitions"][0]["status"] == "Unknown"


@pytest.mark.parametrize("mode", ["Partitioned", "MessageGroups", "Sessions"])
async def test_where_no_member_counts_sequence_numbers_the_line_says_so(mode: str) -> None:
    text = (await shown(await made(mode), BEAT)).sequences_text
    assert text.startswith(f"gaps and order are not audited in mode {mode}")


async def test_message_groups_are_counted() -> None:
    description = await shown(await made("MessageGroups"))

    assert description.to_json()["message_groups"] == MESSAGE_GROUPS["message_groups"]
    assert "partitions" not in description.to_json()
    assert description.unserved == []


async def test_sessions_are_told_with_what_strands_them() -> None:
    description = await shown(await made("Sessions"))

    told = description.to_json()

    assert (told["closed"], told["pool"]) == (False, 12)
    assert told["sessions"] == SESSIONS["sessions"]


@pytest.mark.parametrize("mode", ["MessageGroups", "Sessions"])
async def test_one_queue_without_a_consumer_is_not_served(mode: str) -> None:
    assert (await shown(await made(mode, consumers=0))).unserved == [0]


async def test_without_the_management_api_partitions_are_unknown_and_not_missing() -> None:
    admin = await made("Partitioned")
    admin.amqp_only = True

    description = await shown(admin)

    assert description.services is UNKNOWN
    assert description.to_json()["partitions"] == "unknown"


async def on_rabbitmq() -> FakeAdmin:
    admin = FakeAdmin(engine=Engine.parse("RabbitMQ", "4.0.5"))
    await create_group(admin, spec_in("Partitioned"))
    for number in (0, 1):
        queue = f"lbg.orders.q.{number}"
        admin.queues[queue] = replace(admin.queues[queue], ready=number, unacked=3, consumers=1, native=None)
    return admin


def _serving(number: int, *, active: bool, status: str = "Ready") -> dict[str, Any]:
    return {
        "queue": number,
        "role": "primary",
        "active": active,
        "status": status,
        "in_flight": 0,
        "delivered": 0,
    }


async def test_on_rabbitmq_partitions_are_told_as_members_say() -> None:
    beat = {
        **BEAT,
        "rebalance": "Rebalancing",
        "queues": [_serving(0, active=True, status="Paused"), _serving(1, active=False)],
    }

    description = await shown(await on_rabbitmq(), beat)

    told = description.to_json()
    assert told["rebalance_status"] == "Rebalancing"
    assert told["partitions"] == [
        {"partition": 0, "status": "Paused", "member": "m1", "consumer_tag": None, "ready": 0, "unacked": 3},
        {
            "partition": 1,
            "status": "Unassigned",
            "member": None,
            "consumer_tag": None,
            "ready": 1,
            "unacked": 3,
        },
    ]
    assert "ingress" not in told


async def test_on_rabbitmq_partitions_without_members_are_unbound() -> None:
    told = (await shown(await on_rabbitmq())).to_json()

    assert told["rebalance_status"] == "Unknown"
    assert [one["status"] for one in told["partitions"]] == ["Unbound", "Unbound"]


async def test_mode_exclusive_says_nothing_of_partitions() -> None:
    admin = FakeAdmin()
    await create_group(
        admin,
        GroupSpec("orders", "orders", hash_count=4, queue_count=2, queue_size_mb=1, client_username="app"),
    )

    assert "partitions" not in (await shown(admin)).to_json()


async def test_a_poisoned_message_is_in_the_one_queue_there_is() -> None:
    poisoned = {**_serving(0, active=True), "progress": "Blocked", "poisoned": 1, "poisoned_keys": ["k"]}

    description = await shown(await made("MessageGroups"), {**BEAT, "queues": [poisoned]})

    assert problem_lines(description) == [
        "lbg.orders.q has 1 poisoned message at m1, which blocks later messages of its key; keys: 'k'"
    ]
