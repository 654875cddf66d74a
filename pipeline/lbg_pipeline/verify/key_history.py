"""The history of one key from journals, as a lane: `validate --key`. Reads the records of that key, and then the
numbers of its publishers between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from lbg_core.admin.key_lane import Journaled, Lane, Published, Visit, lane_lines, steps_of
from lbg_core.counted_nouns import counted
from lbg_core.group import SequenceSet
from lbg_core.group.held_messages import Ending
from lbg_core.peers import printable
from lbg_pipeline.columns import ints_of
from lbg_pipeline.errors import NoRecords
from lbg_pipeline.journal import Parsed, scan_journals
from lbg_pipeline.schemas import DELIVERED, PUBLISHED, arrow_schema

RECORDS_MAX = 1000
"""Of a key in a group: the latest."""

_MESSAGE = ("group", "publisher", "hash", "queue", "seq", "published_at_us")
_OF_PUBLISHER = ("resends",)
_OF_MEMBER = (
    *("member_name", "delivered_at_us", "started_at_us", "finished_at_us", "settled_at_us"),
    *("attempts", "verdict", "redelivered", "incarnation", "delivery"),
)
_RECORDS = StructType(
    [
        *(StructField(name, DELIVERED[name].dataType) for name in (*_MESSAGE, *_OF_MEMBER)),
        *(StructField(name, PUBLISHED[name].dataType) for name in _OF_PUBLISHER),
    ]
)
"""Of both sides: what the other side has is null."""
_RUNS = StructType(
    [
        *(StructField(name, PUBLISHED[name].dataType) for name in ("group", "publisher", "hash")),
        *(StructField(name, LongType()) for name in ("first", "last")),
    ]
)

Row = dict[str, Any]
Stream = tuple[str, str, int]
"""Group, publisher and hash."""


@dataclass(frozen=True, slots=True)
class KeyHistory:
    """`hashes` and `queues` are those of the records. `until_us`: the latest time of one."""

    group: str
    key: str
    hashes: tuple[int, ...]
    queues: tuple[int, ...]
    until_us: int
    lane: Lane

    def as_json(self) -> Row:
        fields = {"group": self.group, "key": self.key, "hashes": self.hashes, "queues": self.queues}
        return {**fields, **self.lane.to_json()}

    def lines(self) -> Iterator[str]:
        day = datetime.fromtimestamp(self.until_us / 1e6, UTC)
        hashes, queues = (", ".join(map(str, numbers)) for numbers in (self.hashes, self.queues))
        yield (
            f"key {printable(self.key)} of group {self.group}: hash {hashes}, queue {queues}; until "
            f"{day:%Y-%m-%d}, times in UTC"
        )
        yield from lane_lines(self.lane, self.until_us, UTC)


def key_histories(
    spark: SparkSession, paths: Sequence[str], key: str, groups: Iterable[str] = ()
) -> list[KeyHistory]:
    """A history for each group. Raises JournalNotFound, and NoRecords if no record has the key."""
    wanted = tuple(sorted(groups))
    records = scan_journals(spark, paths, _KeyStep(key, wanted), _RECORDS).persist()
    try:
        counts = {
            row["group"]: Journaled(row["published"], row["delivered"], 0)
            for row in records.groupBy("group")
            .agg(F.count("resends").alias("published"), F.count("verdict").alias("delivered"))
            .orderBy("group")
            .collect()
        }
        latest = {group: _latest(records, group) for group in counts}
    finally:
        records.unpersist()
    if not counts:
        of = f" of group {', '.join(wanted)}" if wanted else ""
        raise NoRecords(f"{', '.join(paths)}: no record{of} has the key {key!r}")
    known = _known(spark, paths, [row for rows in latest.values() for row in rows])
    return [_history(group, key, rows, counts[group], known) for group, rows in latest.items()]


def _latest(records: DataFrame, group: str) -> list[Row]:
    """The latest records of a group, the earliest of them first."""
    at_us = F.coalesce("delivered_at_us", "published_at_us")
    of_group = records.where(F.col("group") == group).orderBy(at_us.desc(), F.desc("seq"), "incarnation")
    return [row.asDict() for row in reversed(of_group.limit(RECORDS_MAX).collect())]


@dataclass(frozen=True, slots=True)
class _KeyStep:
    """`lbg_pipeline.journal.Step`: records of the key, in `groups` or in all if there are none."""

    key: str
    groups: tuple[str, ...]

    def __call__(self, parsed: Parsed) -> Iterator[pa.RecordBatch]:
        for batch in (*parsed.published, *parsed.delivered):
            is_wanted = pc.fill_null(pc.equal(batch["key"], self.key), False)
            if self.groups:
                is_wanted = pc.and_(is_wanted, pc.is_in(batch["group"], pa.array(self.groups)))
            rows = batch.filter(is_wanted)
            if rows.num_rows:
                schema, names = arrow_schema(_RECORDS), set(rows.schema.names)
                columns = [
                    rows[field.name] if field.name in names else pa.nulls(rows.num_rows, field.type)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _known(spark: SparkSession, paths: Sequence[str], rows: Sequence[Row]) -> dict[Stream, SequenceSet]:
    """Numbers of all keys that are in a journal, between those of `rows`."""
    bounds: dict[Stream, tuple[int, int]] = {}
    known: dict[Stream, SequenceSet] = defaultdict(SequenceSet)
    for row in rows:
        stream, seq = (row["group"], row["publisher"], row["hash"]), row["seq"]
        low, high = bounds.get(stream, (seq, seq))
        bounds[stream] = min(low, seq), max(high, seq)
        known[stream].add(seq)
    open_ = {stream: span for stream, span in bounds.items() if len(known[stream]) <= span[1] - span[0]}
    if open_:
        for run in scan_journals(spark, paths, _NumbersStep(open_), _RUNS).distinct().collect():
            known[run["group"], run["publisher"], run["hash"]].add_run(run["first"], run["last"])
    return known


@dataclass(frozen=True, slots=True)
class _NumbersStep:
    """`lbg_pipeline.journal.Step`: runs of the numbers that a block has of each stream, within its bounds."""

    bounds: dict[Stream, tuple[int, int]]

    def __call__(self, parsed: Parsed) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(_RUNS)
        for batch in (*parsed.published, *parsed.delivered):
            for (group, publisher, hash_), (low, high) in self.bounds.items():
                is_of_stream = pc.and_(
                    pc.equal(batch["publisher"], publisher), pc.equal(batch["hash"], hash_)
                )
                of_stream = batch.filter(pc.and_(is_of_stream, pc.equal(batch["group"], group)))
                seq = np.unique(ints_of(pa.chunked_array([of_stream["seq"]])))
                seq = seq[(seq >= low) & (seq <= high)]
                if len(seq):
                    starts = np.flatnonzero(np.diff(seq, prepend=seq[0] - 2) != 1)
                    lasts = seq[np.append(starts[1:], len(seq)) - 1]
                    names = [pa.repeat(text, len(starts)) for text in (group, publisher)]
                    columns = [*names, pa.array(np.full(len(starts), hash_, np.int32))]
                    columns += [pa.array(seq[starts]), pa.array(lasts)]
                    yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _history(
    group: str, key: str, rows: Sequence[Row], counts: Journaled, known: dict[Stream, SequenceSet]
) -> KeyHistory:
    hashes = tuple(sorted({row["hash"] for row in rows}))
    of_hash: dict[str, SequenceSet] = {}
    if len(hashes) == 1:  # a publisher counts the messages of each hash for itself
        of_hash = {publisher: numbers for (of, publisher, _), numbers in known.items() if of == group}
    times = (
        row[name] or 0 for row in rows for name in ("published_at_us", "delivered_at_us", "settled_at_us")
    )
    left = counts.published + counts.delivered - len(rows)
    return KeyHistory(
        group,
        key,
        hashes,
        tuple(sorted({row["queue"] for row in rows})),
        max(times),
        Lane(
            steps_of(_visits(rows), of_hash),
            journaled=Journaled(counts.published, counts.delivered, left),
        ),
    )


def _visits(rows: Sequence[Row]) -> Iterator[Visit]:
    """One for each delivery, and for each published message without one. Copies of records count once."""
    published: dict[tuple[str, int, int], Row] = {}
    delivered: dict[tuple[str, int], Row] = {}
    for row in rows:
        if row["verdict"] is None:
            published.setdefault(_message(row), row)
        else:
            delivered.setdefault((row["incarnation"], row["delivery"]), row)
    visits: dict[tuple[str, int, int], list[Row]] = defaultdict(list)
    for row in delivered.values():
        visits[_message(row)].append(row)
    for message, row in published.items():
        if message not in visits:
            yield _visit(row, Published.UNDELIVERED, row)
    for message, of_message in visits.items():
        for row, following in zip(of_message, [*of_message[1:], None], strict=True):
            yield _visit(row, _ending(row, following), published.get(message))


def _message(row: Row) -> tuple[str, int, int]:
    return row["publisher"], row["hash"], row["seq"]


def _ending(row: Row, following: Row | None) -> Ending:
    """`following`: the next delivery of the message. A journal has one verdict for what was given back, parked and
    forwarded; the last two were acknowledged."""
    match row["verdict"]:
        case "ack":
            return Ending.UNACKNOWLEDGED if row["settled_at_us"] is None else Ending.FINISHED
        case "dead":
            return Ending.DEAD
        case "repeat":
            return Ending.REPEAT
    if row["settled_at_us"] is None:
        return Ending.RELEASED
    is_forwarded = following is not None and following["queue"] != row["queue"]
    return Ending.FORWARDED if is_forwarded else Ending.PARKED


def _visit(row: Row, word: Ending | Published, sent: Row | None) -> Visit:
    """`sent`: the record of its publisher."""
    reasons = []
    if sent is not None and sent["resends"]:
        reasons.append(counted(sent["resends"], "resend"))
    if sent is not None and sent["queue"] != row["queue"]:
        reasons.append(f"published to queue {sent['queue']}")
    attempts, started_us = row["attempts"] or 0, row["started_at_us"] or 0
    return Visit(
        row["publisher"],
        row["seq"],
        row["queue"],
        row["member_name"],
        row["published_at_us"],
        row["delivered_at_us"] or 0,
        started_us,
        started_us if attempts == 1 else 0,
        row["finished_at_us"] or 0,
        attempts,
        word,
        bool(row["redelivered"]),
        ", ".join(reasons),
    )
