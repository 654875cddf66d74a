"""Members that a repartition waits for before it opens ingress, and its report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from lbg_core.admin.ingress import QueueIngress
from lbg_core.admin.problems import Kind, lines_of
from lbg_core.admin.queue_changes import left_in, unsettled
from lbg_core.admin.repartition import SeparateQueuesLayout
from lbg_core.admin.rows import members_of
from lbg_core.admin.snapshot import UNKNOWN, PartitionStatus, QueueStatus, Unknown
from lbg_core.group import GroupSpec, Names, balanced_primaries, standbys, static_primaries
from lbg_core.group.members_protocol import Beat, Status
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


def beat(index: int, primaries: Iterable[int], others: Iterable[int] = ()) -> Beat:
    """The report of a member that serves its primaries, and waits behind others."""
    about = {"in_flight": 0, "delivered": 0}
    queues = [{"queue": one, "role": "primary", "active": True, "status": "Ready"} for one in primaries]
    queues += [{"queue": one, "role": "secondary", "active": False, "status": "Unassigned"} for one in others]
    return beat_of({"index": index, "name": f"m{index}", "queues": [{**one, **about} for one in queues]})


def balanced(queue_count: int, live: Iterable[int], *, ranks: int = 2) -> dict[int, Beat]:
    """The reports of such members, each with its own part of the queues."""
    indexes = sorted(live)
    primaries = balanced_primaries(queue_count, indexes)
    behind = standbys(queue_count, indexes, ranks)
    return {
        index: beat(
            index,
            [queue for queue, one in primaries.items() if one == index],
            [queue for queue in range(queue_count) if index in behind[queue]],
        )
        for index in indexes
    }


@pytest.mark.parametrize(("queue_count", "member_count"), [(4, 2), (32, 8), (4, 9), (7, 1), (1, 3)])
def test_members_that_report_their_part_of_the_queues_are_not_waited_for(
    queue_count: int, member_count: int
) -> None:
    members = members_of(balanced(queue_count, range(member_count)).values())
    assert lines(members, queue_count, is_late=True) == []


@pytest.mark.parametrize(("was", "now"), [(4, 6), (6, 4), (32, 64), (64, 32), (2, 6), (3, 30)])
@pytest.mark.parametrize("member_count", [2, 8])
def test_a_member_that_reports_its_part_of_another_number_of_queues_is_waited_for(
    was: int, now: int, member_count: int
) -> None:
    there, new = balanced(was, range(member_count)), balanced(now, range(member_count))
    late = next(index for index in new if _primaries(there[index]) != _primaries(new[index]))
    members = members_of({**new, late: there[late]}.values())
    (problem,) = unsettled("orders", members, now, is_late=False)
    assert problem.subject.members == (f"m{late}",)
    assert any(unsettled("orders", members_of(there.values()), now, is_late=False))


def test_a_member_that_reports_a_part_of_the_queues_is_not_said_to_use_that_many() -> None:
    new = balanced(6, range(2))
    members = members_of([new[0], beat(1, [1, 3], [0])])
    assert lines(members, 6, is_late=False) == ["m1 has not its part of 6 queues yet"]


def test_a_member_that_does_not_know_the_others_yet_is_not_said_to_use_another_number() -> None:
    """As after it connected anew: it has every queue for its own."""
    members = members_of([balanced(6, range(2))[0], beat(1, range(6))])
    assert lines(members, 6, is_late=False) == ["m1 has not its part of 6 queues yet"]


@pytest.mark.parametrize("live", [(0, 1, 2), (0, 2), (1,), (0, 1, 2, 4), (0, 3)])
def test_static_members_leave_the_queues_of_those_that_do_not_run_to_others(live: tuple[int, ...]) -> None:
    primaries = static_primaries(7, 3, live)
    beats = [
        beat(
            index,
            [queue for queue, one in primaries.items() if one == index],
            [queue for queue, one in primaries.items() if one != index],
        )
        for index in live
    ]
    assert lines(members_of(beats), 7, is_late=True) == []
    of_before = beat(live[0], [queue for queue in range(5) if queue % 3 == live[0]], [4])
    assert lines(members_of([of_before, *beats[1:]]), 7, is_late=False) != []


def test_members_that_stand_by_without_queues_are_not_waited_for() -> None:
    members = members_of([beat(0, [0]), beat(1, [1]), beat(2, [])])
    assert lines(members, 2, is_late=True) == []


def test_a_standby_without_a_consumer_is_not_waited_for_and_a_primary_is() -> None:
    """A member may report all queues, also those that it does not consume."""
    waits, other = beat(0, [0, 2], [1]), beat(1, [1])
    first, second, standby = waits.queues
    standby = replace(standby, status=Status.UNBOUND)
    waits = replace(waits, queues=(first, second, standby))
    assert lines(members_of([waits, other]), 3, is_late=True) == []
    waits = replace(waits, queues=(first, replace(second, active=False, status=Status.UNBOUND), standby))
    assert lines(members_of([waits, other]), 3, is_late=True) == ["m0 has no consumer yet on 1 queue"]


def _primaries(report: Beat) -> list[int]:
    return [one.queue for one in report.primaries]


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
