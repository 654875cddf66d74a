"""Histories by hand: a few calls, in milliseconds, and what the judge makes of them."""

from __future__ import annotations

from collections.abc import Sequence

from bench.chaos.judging import judge
from bench.chaos.ledger import Kind, Record
from bench.chaos.losses import Loss
from bench.chaos.verdict import Name, Rules, Verdict

MS = 1_000_000


class Written:
    """Calls of the messages of one publisher, whose keys are given; lives and times are the test's."""

    def __init__(self, keys: Sequence[int], *, window: int = 4, told_twice: int = 0) -> None:
        self.keys = keys
        self.losses: list[Loss] = []
        self.dead: set[Name] = set()
        self._rules = Rules(window=window, overlap_s=1.0, told_twice=[told_twice])
        self._records: list[tuple[int, int, Record]] = []

    def write(self, at_ms: int, life: int, position: int, kind: Kind, **other: int) -> None:
        fields = {"key": self.keys[position], "seq": position, "queue": 0, **other}
        record = Record(at_ms * MS, position, publisher=0, kind=kind, redelivered=0, attempt=1, **fields)
        self._records.append((at_ms, len(self._records), (life, record)))

    def call(
        self, at_ms: int, life: int, position: int, end: Kind | None = Kind.ACKED, *, took_ms: int = 1
    ) -> None:
        """A call and how it ended; None: it never did."""
        self.write(at_ms, life, position, Kind.ENTERED)
        if end is not None:
            self.write(at_ms + took_ms, life, position, end)

    def loses(
        self,
        life: int,
        begin_ms: int,
        end_ms: int,
        *,
        why: str = "reset",
        limit: int | None = None,
        thaw_ms: int | None = None,
    ) -> None:
        thaw_ns = None if thaw_ms is None else thaw_ms * MS
        self.losses.append(Loss(why, begin_ms * MS, end_ms * MS, (life,), limit, thaw_ns))

    def judged(self) -> Verdict:
        records = (entry for _, _, entry in sorted(self._records, key=lambda each: each[:2]))
        return judge([self.keys], records, losses=self.losses, dead=self.dead, rules=self._rules)

    def broken(self) -> dict[str, int]:
        return dict(self.judged().counts)
