"""Which member serves which queue, for sets of live members: the assignment's own code, asked as members ask it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from lbg_broker.group import balanced_primaries, static_primaries

BALANCED = "Balanced"
STATIC = "Static"
ASSIGNMENTS = (BALANCED, STATIC)

Owners = Sequence[int | None]


def owners_of(assignment: str, queue_count: int, members: int, live: Collection[int]) -> Owners:
    """For each queue the index that should serve it. With Static, `members` is its client count, and a queue whose
    primary is away is None: it wanders among the others."""
    primaries: dict[int, int | None] = (
        static_primaries(queue_count, members, live)
        if assignment == STATIC
        else dict(balanced_primaries(queue_count, live))
    )
    return [primaries[queue] for queue in range(queue_count)]


@dataclass(frozen=True, slots=True)
class Movement:
    """Queues whose primary changes: `join` when the last of the members joins the others, `leave_max` when the
    worst one of them to lose leaves. A return moves as many as the leave before it."""

    join: int
    leave_max: int


def movement(together: Owners, absences: Sequence[Owners]) -> Movement:
    """Between all members and all but one, for each that may be the one. The only one takes every queue."""
    moved = [_changed(together, absence) for absence in absences] or [len(together)]
    return Movement(moved[-1], max(moved))


def without(members: Collection[int], away: int) -> list[int]:
    return [member for member in members if member != away]


def _changed(before: Owners, after: Owners) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))
