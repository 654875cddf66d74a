"""Which sequence numbers were seen: a contiguous floor and the sparse runs above it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Run = tuple[int, int]
"""First and last number of a run, both in it."""


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
        floor = self.floor
        firsts = self._firsts
        if number == floor + 1:
            if firsts and firsts[0] == number + 1:
                del firsts[0]
                number = self._lasts.pop(0)
            self.floor = number
            return True
        if number <= floor:
            if number < 0:
                raise ValueError(f"a sequence number is at least 0, not {number}")
            return False
        lasts = self._lasts
        at = bisect_right(firsts, number)
        if at and number <= lasts[at - 1]:
            return False
        joins_left = at > 0 and lasts[at - 1] == number - 1
        joins_right = at < len(firsts) and firsts[at] == number + 1
        if joins_left and joins_right:
            lasts[at - 1] = lasts[at]
            del firsts[at], lasts[at]
        elif joins_left:
            lasts[at - 1] = number
        elif joins_right:
            firsts[at] = number
        else:
            firsts.insert(at, number)
            lasts.insert(at, number)
        return True

    def add_run(self, first: int, last: int) -> None:
        """Put `first` to `last` in, both included; raises ValueError if they are no run from 0 up."""
        if not 0 <= first <= last:
            raise ValueError(f"a run goes up from at least 0, not from {first} to {last}")
        kept = [(a, b) for a, b in self.runs() if b < first - 1 or a > last + 1]
        joined = [(a, b) for a, b in self.runs() if not (b < first - 1 or a > last + 1)]
        first = min([first, *(a for a, _ in joined)])
        last = max([last, *(b for _, b in joined)])
        runs = sorted([*kept, (first, last)])
        self.floor = runs.pop(0)[1] if runs[0][0] == 0 else -1
        self._firsts = [a for a, _ in runs]
        self._lasts = [b for _, b in runs]

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

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"SequenceSet({self.runs()!r})"

    @property
    def highest(self) -> int:
        """The highest number in the set; -1 when it is empty."""
        return self._lasts[-1] if self._lasts else self.floor

    @property
    def sparse_count(self) -> int:
        """How many runs there are above the floor."""
        return len(self._firsts)

    def runs(self) -> list[Run]:
        """Every run, rising; the one of the floor first."""
        sparse = list(zip(self._firsts, self._lasts, strict=True))
        return [(0, self.floor), *sparse] if self.floor >= 0 else sparse

    def holes(self, upto: int) -> list[Run]:
        """What is missing from 0 to `upto` - 1, as rising runs."""
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

    def forget(self, keep_runs: int) -> int:
        """Forget the lowest runs above the floor until `keep_runs` remain; how many numbers are forgotten.

        A forgotten number counts as never seen. The floor stays: raising it over a hole would call a message
        seen that never came, and that is a loss; forgetting can only let a repeat through.
        """
        surplus = len(self._firsts) - keep_runs
        if surplus <= 0:
            return 0
        forgotten = sum(self._lasts[:surplus]) - sum(self._firsts[:surplus]) + surplus
        del self._firsts[:surplus], self._lasts[:surplus]
        return forgotten
