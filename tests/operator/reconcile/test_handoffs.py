"""Moves of queues between two looks, and when a status is worth writing."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_core.admin.describe import Description
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.group import GroupSpec
from lbg_core.group.member_state import Identity, QueueState, Role, Status
from lbg_core.group.members_protocol import Beat
from lbg_operator.reconcile.survey_cache import KEPT, latest, moves
from lbg_operator.status.status import TIME_ALONE_S, due_in_s, patch_of

SPEC = GroupSpec("g", "g", hash_count=8, queue_count=2, queue_size_mb=1, client_username="g")
NOW = "2026-01-01T00:00:05Z"


def member(index: int, *active: int, incarnation: str = "") -> Beat:
    queues = tuple(QueueState(queue, Role.PRIMARY, queue in active, Status.READY) for queue in (0, 1))
    return Beat(Identity(index, f"pod-{index}", incarnation or f"i{index}"), queues)


def look(*members: Beat, is_unknown: bool = False) -> Description:
    return Description("g", SPEC, (), 0, 0, UNKNOWN if is_unknown else members, ())


def told(queue: int, old: int, new: int, why: str) -> dict[str, Any]:
    return {"time": NOW, "queue": queue, "from": old, "to": new, "why": why}


SWAPPED = [told(0, 0, 1, "Rebalance"), told(1, 1, 0, "Rebalance")]
LEFT = [told(0, 0, 1, "Leave"), told(1, 0, 1, "Leave")]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (look(member(0, 0, 1)), look(member(0, 0, 1)), []),
        (look(member(0, 0, 1)), look(member(0, 0), member(1, 1)), [told(1, 0, 1, "Join")]),
        (look(member(0, 0), member(1, 1)), look(member(0, 0, 1)), [told(1, 1, 0, "Leave")]),
        (look(member(0, 0), member(1, 1)), look(member(0, 1), member(1, 0)), SWAPPED),
        (look(member(0, 0, 1)), look(member(0, incarnation="new"), member(1, 0, 1)), LEFT),
        (look(member(0, 0)), look(member(0, 0), member(1, 1)), []),
        (look(member(0, 0, 1)), look(member(0, 0), member(1)), []),
        (look(is_unknown=True), look(member(0, 0, 1)), []),
        (look(member(0, 0, 1)), look(is_unknown=True), []),
        (None, look(member(0, 0, 1)), []),
    ],
)
def test_a_queue_that_another_member_serves_has_moved(
    before: Description | None, after: Description, expected: list[dict[str, Any]]
) -> None:
    assert moves(before, after, time=NOW) == expected


def test_the_newest_are_kept() -> None:
    former = [told(number, 0, 1, "Join") for number in range(KEPT)]
    (newest,) = new = [told(99, 1, 0, "Leave")]
    kept = latest(new, former)
    assert (kept[0], len(kept)) == (newest, KEPT)
    assert former[-1] not in kept


# Statuses


QUIET_S = 7.0
STATUS: dict[str, Any] = {
    "lag": 3,
    "observedTime": NOW,
    "queues": [{"queue": 0, "status": "Ready", "ready": 3}],
}


@pytest.mark.parametrize(
    ("change", "pause_s"),
    [
        ({"lag": 4}, QUIET_S),
        ({"lag": 4, "observedTime": "later"}, QUIET_S),
        ({"lag": 4, "lagTime": "later"}, QUIET_S),
        ({"lagTime": "later", "observedTime": "later"}, TIME_ALONE_S),
        ({"queues": [{"queue": 0, "status": "Ready", "ready": 9, "unacked": 1}]}, QUIET_S),
        ({"observedTime": "later"}, TIME_ALONE_S),
    ],
)
def test_numbers_wait_until_it_was_quiet_for_long_enough(change: dict[str, Any], pause_s: float) -> None:
    assert due_in_s({**STATUS, **change}, STATUS, since_last_s=pause_s - 1, quiet_s=QUIET_S) == 1
    assert due_in_s({**STATUS, **change}, STATUS, since_last_s=pause_s, quiet_s=QUIET_S) == 0
    assert due_in_s(STATUS, STATUS, since_last_s=1e9, quiet_s=QUIET_S) == float("inf")


@pytest.mark.parametrize(
    "change",
    [{"memberCount": 1}, {"queues": [{"queue": 0, "status": "Paused", "ready": 3}]}, {"conditions": [1]}],
)
def test_anything_else_is_written_at_once(change: dict[str, Any]) -> None:
    assert due_in_s({**STATUS, **change}, STATUS, since_last_s=0.0, quiet_s=QUIET_S) == 0


def test_what_is_not_known_any_more_is_taken_out() -> None:
    assert patch_of({"a": 1}, {"a": 2, "lag": 3}) == {"a": 1, "lag": None}
