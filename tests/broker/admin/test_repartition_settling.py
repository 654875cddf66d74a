"""Members that a repartition waits for before it opens ingress, and its report."""

from __future__ import annotations

from typing import Any

from lbg_broker.admin.repartition import Depth, left_in, unsettled
from lbg_broker.admin.rows import MemberRow, members_of
from lbg_broker.admin.snapshot import UNKNOWN


def member(queues: int, *, rebalance: str = "Ready", status: str = "Unassigned") -> tuple[MemberRow, ...]:
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
    return members_of([beat])


def test_a_member_of_the_new_number_that_is_ready_is_not_waited_for() -> None:
    assert list(unsettled(member(6), 6, is_late=True)) == []
    assert list(unsettled((), 6, is_late=True)) == []


def test_what_a_member_is_waited_for_is_said() -> None:
    assert list(unsettled(member(4), 6, is_late=False)) == ["a still uses 4 queues"]
    assert list(unsettled(member(4), 6, is_late=True)) == [
        "a still uses 4 queues (of an older version? restart it)"
    ]
    assert list(unsettled(member(6, rebalance="HoldDown"), 6, is_late=False)) == ["a is HoldDown"]
    assert list(unsettled(member(6, status="Unbound"), 6, is_late=False)) == [
        "a has no consumer yet on 6 queues"
    ]


def test_what_is_left_in_thousands_of_queues_is_a_few_lines() -> None:
    depths = [Depth(f"q.{number}", 1, 0) for number in range(4000)]
    assert list(left_in(depths))[-1] == "3995 more"
    assert len(list(left_in(depths))) == 6
    assert list(left_in([Depth("q.0", 0, 0)])) == []


def test_what_could_not_be_counted_is_not_empty() -> None:
    assert list(left_in([Depth("q.0", 0, UNKNOWN)])) == ["q.0 could not be counted"]
