"""Verdict of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

Name = tuple[int, int]  # publisher, position

SHOWN = 10
"""Violations of a kind that are kept; all are counted."""


@dataclass(frozen=True, slots=True)
class Rules:
    """`window`: unacknowledged messages of one queue that a member may hold. `overlap_s`: how long a call may go
    on after its message was given to another member. `told_twice`: for each publisher, how many messages it says
    may be in a queue twice, because their first confirm never came.
    """

    window: int
    overlap_s: float
    told_twice: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Violation:
    what: str
    name: Name
    text: str


@dataclass
class Verdict:
    """`repeats` counts by what explains them; `most_repeated` is the largest part of a window one loss repeated.
    `counts` are all violations, by what they are."""

    messages: int = 0
    calls: int = 0
    dropped: int = 0
    repeats: Counter[str] = field(default_factory=Counter)
    most_repeated: int = 0
    overlaps: int = 0
    longest_overlap_s: float = 0.0
    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, what: str, name: Name, text: str) -> None:
        self.counts[what] += 1
        if self.counts[what] <= SHOWN:
            self.violations.append(Violation(what, name, text))
