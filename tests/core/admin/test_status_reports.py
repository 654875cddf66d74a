"""Status reports with a part of the queues: a queue that a member does not report has no consumer of this member."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.actions import Announce
from lbg_core.admin.describe import Description
from lbg_core.admin.errors import Busy
from lbg_core.admin.groups import create_group, show_group
from lbg_core.admin.lag import in_flight, in_flight_of_one_queue
from lbg_core.admin.member_requests import pause_group
from lbg_core.admin.record import CONSUMPTION
from lbg_core.admin.rows import members_of
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.admin.status_reports import CollectedReports
from lbg_core.group import GroupSpec
from lbg_core.group.members_protocol import Beat, Pause
from lbgroup.group.show import description_lines
from testing.admin.fake_admin import FakeAdmin
from testing.admin.reports import beat_body, beat_of
from testing.virtual_time import in_virtual_time

ORDERS = GroupSpec(
    "orders", "orders", hash_count=8, queue_count=3, queue_size_mb=10, client_username="orders-app"
)
SERVES = {"role": "primary", "active": True, "status": "Ready", "in_flight": 2}
IS_DUE = {"role": "primary", "active": False, "status": "Unbound"}
WAITS = {"role": "secondary", "active": False, "status": "Unassigned"}
INFINITE = json.loads("1e999")
NOTHING = {"role": "secondary", "active": False, "status": "Unbound"}


def test_a_message_that_names_its_version_twice_is_passed_over() -> None:
    reports = CollectedReports("orders")
    reports.append(b'{"v":1,"v":99,"type":"beat","sender":[1,"x","i"]}')
    assert reports.beats == []


def report(index: int, queues: Mapping[int, Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "index": index,
        "name": f"m{index}",
        "incarnation": "af",
        "rebalance": "Ready",
        "queues": [
            {"queue": number, "in_flight": 0, "delivered": 0, **one} for number, one in queues.items()
        ],
        "counts": {},
        **fields,
    }


def members(reports: list[dict[str, Any]]) -> tuple[Beat, ...]:
    return members_of(map(beat_of, reports))


async def shown(*reports: dict[str, Any]) -> Description:
    admin = FakeAdmin()
    await create_group(admin, ORDERS)
    for number in range(ORDERS.queue_count):
        name = f"lbg.orders.q.{number}"
        admin.queues[name] = replace(admin.queues[name], consumers=1)
    admin.beats = list(reports)
    return await show_group(admin, "orders")


def statuses(description: Description) -> list[str]:
    assert description.services is not UNKNOWN
    return [row.status for row in description.services]


async def test_a_queue_that_no_member_reports_is_unbound_and_one_that_nobody_serves_yet_unassigned() -> None:
    description = await shown(report(0, {0: SERVES}), report(1, {1: WAITS}))
    assert statuses(description) == ["Ready", "Unassigned", "Unbound"]
    assert description.unserved == [1, 2]
    assert description.service_counts == {"Ready": 1, "Paused": 0, "Unassigned": 1, "Unbound": 1}


async def test_a_queue_that_its_member_has_no_consumer_on_is_unbound() -> None:
    description = await shown(report(0, {0: SERVES, 1: IS_DUE}), report(1, {2: WAITS}))
    assert statuses(description) == ["Ready", "Unbound", "Unassigned"]
    ((member, queue),) = description.reported_services[1].bindings
    assert (member.name, queue.role, queue.status) == ("m0", "primary", "Unbound")


async def test_a_queue_has_the_bindings_of_those_that_report_it() -> None:
    description = await shown(report(0, {0: SERVES, 1: WAITS}), report(1, {1: SERVES}), report(2, {}))
    assert [
        [(member.name, one.active) for member, one in row.bindings] for row in description.reported_services
    ] == [[("m0", True)], [("m0", False), ("m1", True)], []]


async def test_a_queue_without_a_consumer_is_reported_while_it_stalls() -> None:
    """The member that watches it opens another channel for it."""
    description = await shown(report(0, {0: SERVES, 1: {**NOTHING, "progress": "Stalled"}}))
    ((_, queue),) = description.reported_services[1].bindings
    assert queue.progress == "Stalled"


@pytest.mark.parametrize(
    "fields",
    [
        {"index": []},
        {"index": INFINITE},
        {"counts": {"acked": INFINITE}},
        {"oldest_us": INFINITE},
        {"queues": 5},
    ],
)
def test_a_report_that_is_none_hides_no_other(fields: dict[str, Any]) -> None:
    reports = CollectedReports("orders")
    for one in (report(0, {0: SERVES}), report(1, {}) | fields):
        reports.append(beat_body(one))
    assert [beat.name for beat in reports.beats] == ["m0"]


async def test_a_member_that_reports_no_queue_is_live_and_stands_by() -> None:
    description = await shown(*(report(index, {index: SERVES}) for index in range(3)), report(3, {}))
    assert description.members is not UNKNOWN
    assert [member.name for member in description.members] == ["m0", "m1", "m2", "m3"]
    assert description.standing_by == ["m3"]
    assert description.work_of_members == {"m0": 1, "m1": 1, "m2": 1, "m3": 0}
    assert description.served_by[3] == []
    assert description.active_count == 3
    lines = list(description_lines(description))
    assert "m3 is standing by: 3 queues, 3 members at work" in lines
    assert next(line for line in lines if line.startswith("m3 ")).split() == [
        *("m3", "3", "Ready", "-", "-", "0", *["unknown"] * 4)
    ]
    assert description.problems == ()


@pytest.mark.parametrize(
    ("reports", "is_settled"),
    [
        ([report(0, {0: SERVES, 1: SERVES}), report(1, {2: SERVES, 0: WAITS})], True),
        ([report(0, {0: SERVES, 1: SERVES})], False),
        ([report(0, {0: SERVES, 1: SERVES}), report(1, {0: SERVES})], False),
        ([report(0, {0: SERVES, 1: SERVES}), report(1, {2: SERVES}, rebalance="HoldDown")], False),
    ],
    ids=["settled", "a queue of nobody", "two of one queue and none of another", "a member that waits"],
)
async def test_queues_are_settled_when_each_is_the_primary_of_one_member(
    reports: list[dict[str, Any]], is_settled: bool
) -> None:
    assert (await shown(*reports)).is_settled is is_settled


def test_messages_in_flight_are_known_when_every_consumer_reports_the_queue() -> None:
    reported = members([report(0, {0: SERVES, 1: WAITS}), report(1, {1: SERVES}), report(2, {})])
    assert in_flight(reported, {0: 1, 1: 2, 2: 0}) == 4
    assert in_flight(reported, {0: 2, 1: 2, 2: 0}) is UNKNOWN, (
        "one that reports nothing of queue 0 consumes it"
    )
    assert in_flight(reported, {0: 1, 1: 2, 2: 1}) is UNKNOWN


def test_a_member_without_a_consumer_does_not_answer_for_a_consumer() -> None:
    reported = members([report(0, {0: SERVES}), report(1, {0: IS_DUE})])
    assert in_flight(reported, {0: 1}) == 2
    assert in_flight(reported, {0: 2}) is UNKNOWN


def test_messages_of_a_consumer_that_is_being_closed_are_in_flight() -> None:
    reported = members([report(0, {0: {**NOTHING, "in_flight": 5}})])
    assert in_flight(reported, {0: 1}) == 5


def test_a_member_without_messages_of_the_one_queue_is_one_of_its_consumers() -> None:
    reported = members([report(0, {0: SERVES}), report(1, {})])
    assert in_flight_of_one_queue(reported, 2) == 2
    assert in_flight_of_one_queue(reported, 3) is UNKNOWN


@in_virtual_time
async def test_a_pause_that_waits_for_members_and_a_resume_leave_them_as_the_record_states() -> None:
    """The pause announced itself once more behind the resume, and members stayed paused in a group that is not."""

    class Slow(FakeAdmin):
        async def listen(self, group: str, *, seconds: float) -> Sequence[Beat]:
            await asyncio.sleep(seconds)
            return await super().listen(group, seconds=seconds)

    admin = Slow()
    await create_group(admin, ORDERS)
    admin.beats = [report(0, {})]
    pausing = asyncio.create_task(pause_group(admin, "orders"))
    await asyncio.sleep(1.0)
    with suppress(Busy):
        await pause_group(admin, "orders", is_paused=False)
    assert await pausing == ("m0",)
    said = [one.message for one in admin.performed if isinstance(one, Announce)]
    assert isinstance(said[-1], Pause)
    assert said[-1].consumption == (admin.paused["orders"] == {CONSUMPTION})
