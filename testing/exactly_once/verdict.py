"""Verdict of a run, from the table."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .pairs import Victim


@dataclass(frozen=True, slots=True)
class Outcome:
    """`rows` in the table; `distinct` messages of those that were published; `inverted`: rows that come after one of
    the same publisher and key that was published later; `recognised` by the inbox."""

    expected: int
    rows: int
    distinct: int
    inverted: int
    recognised: int
    kills: Mapping[Victim, int]

    @property
    def holds(self) -> bool:
        return self.rows == self.distinct == self.expected and not self.inverted

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of {victim}" for victim, count in self.kills.items())
        return (
            f"{self.expected:,} messages, kill -9: {kills or 'nothing'}: "
            f"{self.rows:,} rows, {self.expected - self.distinct:,} messages lost, "
            f"{self.rows - self.distinct:,} rows too many, {self.inverted:,} out of order, "
            f"{self.recognised:,} messages recognised as seen before"
        )


def judge(
    rows: Iterable[tuple[int, int]],
    keys: Sequence[array[int]],
    *,
    recognised: int,
    kills: Counter[Victim],
) -> Outcome:
    """`rows`: publisher and position, in the order of the table; `keys`: of each publisher the key of each position.
    A row of something that was never published is one too many."""
    seen = [bytearray(len(of_publisher)) for of_publisher in keys]
    latest: dict[tuple[int, int], int] = {}
    count = distinct = inverted = 0
    for publisher, position in rows:
        count += 1
        if not (0 <= publisher < len(keys) and 0 <= position < len(keys[publisher])):
            continue
        distinct += not seen[publisher][position]
        seen[publisher][position] = 1
        stream = publisher, keys[publisher][position]
        inverted += position < latest.get(stream, -1)
        latest[stream] = max(position, latest.get(stream, -1))
    return Outcome(
        expected=sum(map(len, keys)),
        rows=count,
        distinct=distinct,
        inverted=inverted,
        recognised=recognised,
        kills={victim: kills[victim] for victim in Victim if kills[victim]},
    )
