"""The members of a group, as they describe themselves in their beats."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .admin import Beat

HELD_BACK_FROM = 2
"""Handoffs in a row that were put off: the first leaves the application the time that the group's setting says."""


@dataclass(frozen=True, slots=True)
class MemberQueue:
    queue: int
    role: str
    active: bool
    status: str
    in_flight: int
    delivered: int
    progress: str = "Idle"
    poisoned: int = 0
    poisoned_keys: tuple[str, ...] = ()
    put_off: int = 0
    next_drain_s: float = 0.0

    @property
    def is_held_back(self) -> bool:
        """Whether it should be another member's, and calls that do not end keep it here."""
        return self.put_off >= HELD_BACK_FROM


@dataclass(frozen=True, slots=True)
class MemberLine:
    """A member as its last beat described it."""

    index: int
    name: str
    incarnation: str
    rebalance: str
    queues: tuple[MemberQueue, ...]
    counts: Mapping[str, int]


def members_of(beats: Iterable[Beat]) -> tuple[MemberLine, ...]:
    """The last beat of each member; what is no beat of this version is passed over."""
    last: dict[object, MemberLine] = {}
    for beat in reversed(tuple(beats)):
        if beat.get("index") in last:
            continue
        try:
            member = _member(beat)
        except (KeyError, TypeError, ValueError):
            continue
        last[member.index] = member
    return tuple(sorted(last.values(), key=lambda member: member.index))


def _member(beat: Beat) -> MemberLine:
    return MemberLine(
        index=int(beat["index"]),
        name=str(beat["name"]),
        incarnation=str(beat["incarnation"]),
        rebalance=str(beat["rebalance"]),
        queues=tuple(
            MemberQueue(
                queue=int(one["queue"]),
                role=str(one["role"]),
                active=bool(one["active"]),
                status=str(one["status"]),
                in_flight=int(one["in_flight"]),
                delivered=int(one["delivered"]),
                progress=str(one.get("progress", "Idle")),
                poisoned=int(one.get("poisoned", 0)),
                poisoned_keys=tuple(map(str, one.get("poisoned_keys", ()))),
                put_off=int(one.get("put_off", 0)),
                next_drain_s=float(one.get("next_drain_s", 0.0)),
            )
            for one in beat["queues"]
        ),
        counts={str(name): int(value) for name, value in beat["counts"].items()},
    )


def member_json(member: MemberLine) -> dict[str, Any]:
    return {
        "index": member.index,
        "name": member.name,
        "incarnation": member.incarnation,
        "rebalance": member.rebalance,
        "queues": [{name: getattr(one, name) for name in MemberQueue.__slots__} for one in member.queues],
        "counts": dict(member.counts),
    }
