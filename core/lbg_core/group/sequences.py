"""Sequence numbers and epochs of publishers: which numbers were seen, and the order of epochs.

A publisher that goes on from a state file sends what it may have sent before under the epoch of then, and all that
follows in an epoch of its own, whose sequences begin at 0 (docs/adr/0047-epochs.md). The header's value has both:

    NAME-RRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR                          the first epoch: 128 random bits
    NAME-HHHHHHHH.BBBBBBBBBBBBB.RRRRRRRRRRRRRRRRRRRRRRRRRRRRRRRR   a later one

H is the beginning of the first epoch's R, B the microseconds since 1970 at which the epoch began. An incarnation that
is not 32 hexadecimal digits stands for H as a whole. Any other value is a publisher with one epoch.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

_FIRST = re.compile(r"(?P<history>.+-[0-9a-f]{8})[0-9a-f]{24}")
_LATER = re.compile(r"\.(?P<began>[0-9a-f]{13})\.[0-9a-f]{32}")
_LATER_CHARS = 47
_ROOT_DIGITS = 8
_FULL_DIGITS = 32


class Epoch(NamedTuple):
    """`history` is the same for all epochs of a publisher; of two of them the one with the later `began_us` counts as
    the later one. `began_us` of the first epoch is 0."""

    history: str
    began_us: int


def epoch_of(publisher: str) -> Epoch:
    """The epoch that a value of `lbg-publisher` names."""
    # The end alone: on the whole of a header of 100 kB a pattern would search for as long as a minute.
    history, end = publisher[:-_LATER_CHARS], publisher[-_LATER_CHARS:]
    if "-" in history[1:] and (later := _LATER.fullmatch(end)) is not None:
        return Epoch(history, int(later["began"], 16))
    first = _FIRST.fullmatch(publisher)
    return Epoch(publisher if first is None else first["history"], 0)


def incarnation_of_epoch(first: str, began_us: int, random: bytes) -> str:
    """The incarnation of an epoch after the first one, whose incarnation was `first`."""
    root = first[:_ROOT_DIGITS] if re.fullmatch(f"[0-9a-f]{{{_FULL_DIGITS}}}", first) else first
    return f"{root}.{began_us:013x}.{random.hex()}"


def _is_run(run: tuple[int, int]) -> tuple[int, int]:
    if run[0] > run[1]:
        raise ValueError(f"{run} ends before it begins")
    return run


Run = Annotated[tuple[int, int], _is_run]
"""First and last number of a run, both in it."""

StreamRuns = tuple[str, int, tuple[Run, ...]]
"""Publisher, hash, and runs of sequence numbers that were processed."""

MessageIdentity = tuple[str, int, int]
"""Publisher, hash and sequence number."""


class SequenceSet:
    """A set of integers from 0 up, kept as runs: memory grows with the holes, not with the numbers."""

    __slots__ = ("_firsts", "_lasts", "floor")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self.floor = -1
        """The highest n with 0 to n all in the set; -1 when 0 is not."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in runs:
            self.add_run(first, last)

    def add(self, number: int) -> bool:
        """Put `number` in; False if it was there. Raises ValueError below 0."""
        firsts = self._firsts
        if number == self.floor + 1:
            if firsts and firsts[0] == number + 1:
                del firsts[0]
                number = self._lasts.pop(0)
            self.floor = number
            return True
        lasts = self._lasts
        if lasts and number == lasts[-1] + 1:
            lasts[-1] = number
            return True
        if number in self:
            return False
        self.add_run(number, number)
        return True

    def add_run(self, first: int, last: int) -> None:
        """Put `first` to `last` in, both included; raises ValueError if they are no run of numbers from 0 up."""
        if not 0 <= first <= last:
            raise ValueError(f"a run goes up from at least 0, not from {first} to {last}")
        firsts, lasts = self._firsts, self._lasts
        if first <= self.floor + 1:
            last = max(last, self.floor)
            touched = bisect_right(firsts, last + 1)
            self.floor = max(last, lasts[touched - 1]) if touched else last
            del firsts[:touched], lasts[:touched]
            return
        at, upto = bisect_left(lasts, first - 1), bisect_right(firsts, last + 1)
        if at < upto:
            first, last = min(first, firsts[at]), max(last, lasts[upto - 1])
        firsts[at:upto] = [first]
        lasts[at:upto] = [last]

    def __contains__(self, number: int) -> bool:
        if number <= self.floor:
            return number >= 0
        at = bisect_right(self._firsts, number)
        return at > 0 and number <= self._lasts[at - 1]

    def __len__(self) -> int:
        return self.floor + 1 + sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    def __iter__(self) -> Iterator[int]:
        for first, last in self.runs():
            yield from range(first, last + 1)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SequenceSet) and self.runs() == other.runs()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def __repr__(self) -> str:
        return f"SequenceSet({self.runs()!r})"

    @property
    def highest(self) -> int:
        """The highest number in the set; -1 when it is empty."""
        return self._lasts[-1] if self._lasts else self.floor

    @property
    def sparse_count(self) -> int:
        """Number of runs above the floor."""
        return len(self._firsts)

    def runs(self) -> list[Run]:
        """Every run, rising; the one of the floor first."""
        sparse = list(zip(self._firsts, self._lasts, strict=True))
        return [(0, self.floor), *sparse] if self.floor >= 0 else sparse

    def holes(self, upto: int) -> list[Run]:
        """Numbers missing from 0 to `upto` - 1, as rising runs."""
        holes = []
        expected = self.floor + 1
        for first, last in zip(self._firsts, self._lasts, strict=True):
            if first >= upto:
                break
            holes.append((expected, first - 1))
            expected = last + 1
        if expected < upto:
            holes.append((expected, upto - 1))
        return holes

    def forget(self, runs_max: int) -> int:
        """Forget the lowest runs above the floor until `runs_max` remain; how many numbers are forgotten.

        A forgotten number counts as never seen. The floor stays: raising it over a hole would call a message
        seen that never came, and that is a loss; forgetting can only let a repeat through.
        """
        surplus = len(self._firsts) - runs_max
        if surplus <= 0:
            return 0
        forgotten = sum(self._lasts[:surplus]) - sum(self._firsts[:surplus]) + surplus
        del self._firsts[:surplus], self._lasts[:surplus]
        return forgotten
