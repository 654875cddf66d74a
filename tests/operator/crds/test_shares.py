"""Partitions and sessions per member, for gauges."""

from __future__ import annotations

from lbg_core.admin.describe import Description
from lbg_core.admin.groups import show_group
from lbg_operator.status.status import seen_of
from testing.admin.fake_admin import FakeAdmin
from testing.admin.native_groups import made


async def shown(admin: FakeAdmin) -> Description:
    return await show_group(admin, "orders")


async def test_partitions_are_counted_by_status() -> None:
    counts = (await shown(await made("Partitioned"))).service_counts

    assert counts == {"Ready": 1, "Paused": 0, "Unassigned": 1, "Unbound": 0}


async def test_partitions_that_nobody_could_see_are_not_counted() -> None:
    admin = await made("Partitioned")
    admin.amqp_only = True

    assert (await shown(admin)).service_counts is None


async def test_stranded_sessions_are_counted_where_there_are_sessions() -> None:
    sessions, groups = await made("Sessions"), await made("MessageGroups")

    stranded = (await shown(sessions)).sessions
    assert stranded is not None
    assert [one.session for one in stranded.stranded] == ["m2"]
    assert (await shown(groups)).sessions is None
    assert (await shown(sessions)).service_counts is None
    sessions.amqp_only = True
    assert (await shown(sessions)).sessions is None


async def test_a_status_has_a_partition_for_each_queue_of_the_manifest() -> None:
    seen = seen_of(await shown(await made("Partitioned")))

    assert seen["rebalance"] == "HoldDown"
    assert seen["queues"] == [
        {"queue": 0, "status": "Ready", "ready": 7, "unacked": 2},
        {"queue": 1, "status": "Unassigned", "ready": 4, "unacked": 0},
    ]


async def test_where_all_members_consume_one_queue_each_is_active() -> None:
    admin = await made("MessageGroups")
    admin.beats = [
        {"index": index, "name": f"m{index}", "incarnation": "a", "rebalance": "Ready"}
        | {"queues": [], "counts": {}}
        for index in (0, 1)
    ]

    seen = seen_of(await shown(admin))

    assert (seen["memberCount"], seen["activeCount"], seen["queues"]) == (2, 2, [])
    assert seen["members"][1] == {"index": 1, "name": "m1", "queues": []}


async def test_a_status_has_each_session_by_name() -> None:
    seen = seen_of(await shown(await made("Sessions")))

    assert [one["session"] for one in seen["sessions"]] == sorted(one["session"] for one in seen["sessions"])
    assert {"session": "m2", "state": "stranded", "messages": 28} in seen["sessions"]
