"""A journal judged as a stream, without Spark: records come in epochs, each bucket is judged as a worker would."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lbg_core.group import DeliveredRecord, PublishedRecord, encode
from lbg_pipeline.columns import NEVER
from lbg_pipeline.journal.parse import parse
from lbg_pipeline.verify.settings import Window
from lbg_pipeline.verify.stream import FOREVER
from lbg_pipeline.verify.stream_bucket import bucket_checker, pieces_of
from lbg_pipeline.verify.stream_columns import PIECES, unpacked
from testing.pipeline.findings import GroupJudgement

Record = PublishedRecord | DeliveredRecord


@dataclass(slots=True)
class Streamed:
    """`feed` one epoch after the other, then `end`. Times are microseconds."""

    watermark_us: int
    lost_after_us: int = 0
    skew_us: int = 0
    forget_us: int = 1 << 60
    latest_us: int = NEVER
    until_us: int = NEVER
    left: list[dict[str, Any]] = field(default_factory=list)
    found: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def feed(self, records: Iterable[Record]) -> None:
        until_us = max(self.until_us, self.latest_us - self.watermark_us) if self.latest_us > NEVER else NEVER
        window = Window(
            self.until_us, until_us, self.skew_us, until_us - self.lost_after_us, until_us - self.forget_us
        )
        of_kind: dict[type, list[str]] = defaultdict(list)
        for one in records:
            of_kind[type(one)].append(encode(one))
        blocks = ["".join(lines).encode() for lines in of_kind.values()]
        self._advance([made for block in blocks for made in self._pieces(block)], window)

    def end(self) -> None:
        lost_upto_us = self.latest_us - self.lost_after_us
        self._advance([], Window(self.until_us, FOREVER, self.skew_us, lost_upto_us, NEVER, is_last=True))

    @property
    def held_rows(self) -> int:
        return sum(one["rows"] for one in self.left if one["kind"] == "held")

    @property
    def state_bytes(self) -> int:
        return sum(len(one["blob"]) for one in self.left if one["kind"] == "state")

    def totals(self, group: str) -> Counter[str]:
        counts: Counter[str] = Counter()
        for one in self.left:
            if one["name"] == "totals":
                rows = unpacked(one["blob"]).to_pylist()
                counts.update({row["what"]: row["count"] for row in rows if row["group"] == group})
        return counts

    def _pieces(self, block: bytes) -> list[dict[str, Any]]:
        parsed = parse(block, file_of=lambda _: "here")
        made = [row for batch in pieces_of(())(parsed) for row in batch.to_pylist()]
        self.latest_us = max([self.latest_us, *(one["latest_us"] for one in made)])
        return made

    def _advance(self, new: list[dict[str, Any]], window: Window) -> None:
        """Slices of what is held back are due as the epochs of Spark have them: all that is left is given each time."""
        by_bucket: dict[int, list[dict[str, Any]]] = defaultdict(list)
        for one in [*new, *self.left]:
            by_bucket[one["bucket"]].append(one)
        self.left = []
        for pieces in by_bucket.values():
            made = bucket_checker(window, 1_000_000)(pa.Table.from_pylist(pieces, schema=PIECES)).to_pylist()
            self.left += [one for one in made if one["kind"] != "found"]
            for one in made:
                if one["kind"] == "found":
                    self.found[one["name"]] += unpacked(one["blob"]).to_pylist()
        self.until_us = window.until_us


def told_offences(found: Sequence[dict[str, Any]], group: str, *, but: frozenset[str]) -> Counter[Any]:
    names = "kind view publisher key hash seq expected member incarnation delivery at_us uncertain other_member session"
    return Counter(
        tuple(one[name] for name in names.split())
        for one in found
        if one["group"] == group and one["kind"] not in but
    )


def expected_offences(judged: GroupJudgement, *, but: frozenset[str]) -> Counter[Any]:
    return Counter(
        (
            one.kind,
            one.view,
            one.publisher,
            one.key,
            one.hash,
            one.seq,
            one.expected,
            one.member,
            one.incarnation,
            one.delivery,
            one.at_us,
            one.uncertain,
            one.other_member,
            one.session,
        )
        for one in judged.offences
        if one.kind not in but
    )
