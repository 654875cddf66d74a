"""Members that a repartition waits for before it opens ingress, and its report."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lbg_core.admin.ingress import QueueIngress
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import lines_of
from lbg_core.admin.queue_changes import left_in, unsettled
from lbg_core.admin.repartition import SeparateQueuesLayout
from lbg_core.admin.rows import members_of
from lbg_core.admin.snapshot import UNKNOWN, PartitionStatus, QueueStatus, Unknown
from lbg_core.group import GroupSpec, Names
from lbg_core.group.member_state import Role, Status
from lbg_core.group.members_protocol import Beat
from testing.admin.fake_admin import FakeAdmin
from testing.admin.reports import beat_of
from testing.virtual_time import in_virtual_time


def member(queues: int, *, rebalance: str = "Ready", status: str = "Unassigned") -> tuple[Beat, ...]:
    queue: dict[str, Any] = {
        "role": "primary",
        "active": False,
        "status": status,
        "in_flight": 0,
        "delivered": 0,
    }
    beat = {
        "index": 0,
        "name": "a",
        "incarnation": "i",
        "rebalance": rebalance,
        "queues": [{"queue": number, **queue} for number in range(queues)],
        "queue_count": queues,
        "counts": {},
    }
    return members_of([beat_of(beat)])


def lines(members: Sequence[Beat], queue_count: int, *, is_late: bool) -> list[str]:
    return list(lines_of(unsettled("orders", members, queue_count, is_late=is_late)))


def test_a_member_of_the_new_number_that_is_ready_is_not_waited_for() -> None:
    assert lines(member(6), 6, is_late=True) == []
    assert lines((), 6, is_late=True) == []


def test_what_a_member_is_waited_for_is_said() -> None:
    assert lines(member(4), 6, is_late=False) == ["a still uses 4 queues"]
    assert lines(member(4), 6, is_late=True) == ["a still uses 4 queues (restart it)"]
    assert lines(member(6, rebalance="HoldDown"), 6, is_late=False) == ["a is HoldDown"]
    assert lines(member(6, status="Unbound"), 6, is_late=False) == ["a has no consumer yet on 6 queues"]


def test_a_member_without_queues_is_waited_for_only_until_it_has_the_number() -> None:
    (first,) = member(6)
    assert lines([replace(first, queues=())], 6, is_late=True) == []
    assert lines([replace(first, queues=(), queue_count=4)], 6, is_late=False) == ["a still uses 4 queues"]


def test_a_standby_without_a_consumer_is_not_waited_for_and_a_primary_is() -> None:
    """A member may report all queues, also those that it does not consume."""
    (waits,) = member(3)
    first, second, standby = waits.queues
    standby = replace(standby, role=Role.SECONDARY, status=Status.UNBOUND)
    assert lines(members_of([replace(waits, queues=(first, second, standby))]), 3, is_late=True) == []
    second = replace(second, status=Status.UNBOUND)
    (line,) = lines(members_of([replace(waits, queues=(first, second, standby))]), 3, is_late=True)
    assert line == "a has no consumer yet on 1 queue"


def depth(queue: str, ready: int, unacked: int | Unknown) -> tuple[str, QueueStatus]:
    return queue, QueueStatus(ready=ready, unacked=unacked)


def test_what_is_left_in_thousands_of_queues_is_a_few_lines() -> None:
    left = list(left_in("orders", [depth(f"q.{number}", 1, 0) for number in range(4000)]))
    assert len(left) == 4000
    assert list(lines_of(left))[-2:] == ["q.4 has 1 ready, 0 unacknowledged", "3995 more like the last"]
    assert len(list(lines_of(left))) == 6
    assert list(left_in("orders", [depth("q.0", 0, 0)])) == []


def test_what_is_left_in_a_partition_names_it() -> None:
    status = PartitionStatus(3, "Ready", None, ready=2, unacked=1, handoff_s=None)
    (problem,) = left_in("orders", [("lbg.orders.q", status)])
    assert (problem.kind, problem.subject.queue) == (Kind.PARTITION_NOT_EMPTY, "lbg.orders.q")
    assert problem.figures == {"ready": 2, "unacked": 1, "partition": 3}


def test_what_could_not_be_counted_is_not_empty() -> None:
    (problem,) = left_in("orders", [depth("q.0", 0, UNKNOWN)])
    assert (problem.kind, problem.subject.queue) == (Kind.QUEUE_UNCOUNTED, "q.0")


@in_virtual_time
async def test_a_member_is_late_as_of_the_end_of_its_reports() -> None:
    class Heard(FakeAdmin):
        async def listen(self, group: str, *, seconds: float) -> tuple[Beat, ...]:
            await asyncio.sleep(seconds)
            return member(4)

    admin, spec = Heard(), GroupSpec("orders", "orders", hash_count=8, queue_count=6, queue_size_mb=10)
    layout = SeparateQueuesLayout(admin, Names("orders"), QueueIngress(admin, "orders"), is_sampled=False)
    now = asyncio.get_running_loop().time()
    for late_at, is_late in ((now + 0.1, True), (now + 60.0, False)):
        (problem,) = await layout.unsettled(spec, late_at=late_at)
        assert problem.figures["is_late"] is is_late
