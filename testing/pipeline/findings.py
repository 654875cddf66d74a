"""Findings of a journal, in the words of `testing.pipeline.reference`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Offence:
    """`at_us`: when it was delivered, settled (view acknowledged, repeated) or started (overlap). `expected`: the
    lowest number that would have been in order, of the session in mode Sessions, else of the key."""

    kind: str
    view: str | None
    publisher: str
    key: str | None
    hash: int
    seq: int
    expected: int | None
    member: int
    member_name: str
    incarnation: str
    delivery: int
    at_us: int | None
    uncertain: bool = False
    finished_at_us: int | None = None
    other_member: int | None = None
    other_incarnation: str | None = None
    other_started_at_us: int | None = None
    other_finished_at_us: int | None = None
    session: str | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True, order=True)
class LostRange:
    """Consecutive numbers, both in it."""

    publisher: str
    hash: int
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Move:
    hash: int
    was: int
    now: int
    at_us: int
    pause_us: int


@dataclass(slots=True)
class Completeness:
    """Of one publisher and hash, in different messages: `distinct` were delivered, settled or not."""

    published: int = 0
    distinct: int = 0
    lost: int = 0
    pending: int = 0
    unpublished: int = 0
    unrecorded: int = 0
    early: int = 0


@dataclass(slots=True)
class GroupJudgement:
    """`published` and `delivered` count records; a message that was sent again may have two of the former."""

    verdict: str = "sound"
    published: int = 0
    delivered: int = 0
    acknowledged: int = 0
    dead: int = 0
    released: int = 0
    redelivered: int = 0
    offences: list[Offence] = field(default_factory=list)
    lost: list[LostRange] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    completeness: dict[tuple[str, int], Completeness] = field(default_factory=dict)

    def total(self, what: str) -> int:
        """Of a column of `completeness`."""
        return sum(getattr(one, what) for one in self.completeness.values())

    def count(self, kind: str, view: str | None = None, *, uncertain: bool = False) -> int:
        """Offences of a kind: the certain ones, or the others."""
        return sum(
            one.kind == kind and view in (None, one.view) and one.uncertain == uncertain
            for one in self.offences
        )
