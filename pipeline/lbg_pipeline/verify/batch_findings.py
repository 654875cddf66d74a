"""Findings of the workers of a batch: the checks of all records of one worker, as rows of FINDINGS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_core.group import EXCLUSIVE, PARTITIONED
from lbg_pipeline.columns import (
    NEVER,
    Flags,
    IntArray,
    Intervals,
    Line,
    dense,
    in_order,
    ints_of,
    joined,
    set_of,
)
from lbg_pipeline.schemas import arrow_schema
from lbg_pipeline.verify.batch_columns import DEAD, RELEASED, REPEAT, RecordColumns
from lbg_pipeline.verify.checks.completeness import (
    Completeness,
    repeated,
    with_delivered,
    with_published,
    with_published_ranges,
)
from lbg_pipeline.verify.checks.order import Deliveries, Numbers, check_order
from lbg_pipeline.verify.checks.overlap import Spans, check_overlaps
from lbg_pipeline.verify.checks.placement import Times, elsewhere, moves
from lbg_pipeline.verify.settings import ValidationSettings
from lbg_pipeline.verify.shuffle import (
    BROKEN_ROLE,
    CHECKED_MODES,
    CLOCK_ROLE,
    DELIVERED_ROLE,
    PUBLISHED_ROLE,
    SESSION_ROLE,
)
from lbg_pipeline.verify.tables import ACKNOWLEDGED_VIEW, DELIVERED_VIEW, FINDINGS, violations

SCHEMA = arrow_schema(FINDINGS)
BATCH_ROWS = 10_000

Finding = tuple[str, pa.Table]
"""The column of FINDINGS, and rows of it."""


class LaneChecker:
    """Function for `mapInArrow` over records; those of one lane are in one partition."""

    def __init__(self, settings: ValidationSettings) -> None:
        self._settings = settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Memory: all that one task checks, about 150 bytes for each delivery.
        there = [batch for batch in batches if batch.num_rows]
        if not there:
            return
        findings = [
            _finding_rows(name, rows)
            for name, rows in self._findings(pa.Table.from_batches(there))
            if len(rows)
        ]
        if findings:
            yield from pa.concat_tables(findings).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)

    def _findings(self, records: pa.Table) -> Iterator[Finding]:
        roles = records["role"].to_numpy()
        broken = records["broken"].filter(pa.array(roles == BROKEN_ROLE)).combine_chunks()
        yield "broken", pa.Table.from_arrays(broken.flatten(), names=[field.name for field in broken.type])
        if np.any(roles == CLOCK_ROLE):
            latest_us = pc.max(records["delivered_at_us"].filter(pa.array(roles == CLOCK_ROLE)))
            yield "clock", pa.table({"latest_us": pa.array([latest_us.as_py()], pa.int64())})
        of_hashes = (roles == PUBLISHED_ROLE) | (roles == DELIVERED_ROLE)
        if of_hashes.any():
            table = records if of_hashes.all() else records.filter(pa.array(of_hashes))
            yield from _HashChecks(
                RecordColumns(table), roles[of_hashes] == DELIVERED_ROLE, self._settings
            ).findings()
        of_sessions = roles == SESSION_ROLE
        if of_sessions.any():
            yield from self._of_sessions(RecordColumns(records.filter(pa.array(of_sessions))))

    def _of_sessions(self, of: RecordColumns) -> Iterator[Finding]:
        session = dense(of.group.codes, of.session.codes)[0]
        everywhere = np.ones(of.count, bool)
        numbers = Numbers(np.zeros(of.count, np.int64), of.sequence)
        yield from _order_findings(of, session, numbers, everywhere, self._settings.skew_us)
        place = dense(session, of.sequence)[0]
        message = dense(of.group.codes, of.publisher.codes, of.hash, of.seq)[0]
        yield _misplaced_finding(of, np.flatnonzero(elsewhere(place, message, _times(of), ~everywhere)))


class _HashChecks:
    """Checks of all that has its order or its numbers by hash."""

    def __init__(self, of: RecordColumns, is_delivered: Flags, settings: ValidationSettings) -> None:
        self._of = of
        self._is_delivered = is_delivered
        self._settings = settings
        self._line, line_at = dense(of.group.codes, of.publisher.codes, of.hash, of.key.codes)
        names = of.group.codes[line_at], of.publisher.codes[line_at], of.hash[line_at], of.key.codes[line_at]
        stream, stream_at = dense(*names[:3])
        self._stream = stream[self._line]
        self._stream_at = line_at[stream_at]
        self._shard = dense(names[0], names[2])[0][self._line]
        self._key = dense(names[0], names[3])[0][self._line]

    def findings(self) -> Iterator[Finding]:
        of = self._of
        has_order = self._is_delivered & of.has_key & ~of.is_in_sessions
        sub_stream = self._line
        if of.has_epochs:
            sub_stream = dense(of.group.codes, of.history, of.hash, of.key.codes)[0]
        numbers = Numbers(of.began_us, of.seq)
        yield from _order_findings(of, sub_stream, numbers, has_order, self._settings.skew_us)
        yield self._overlap_findings()
        yield self._move_findings()
        yield from self._completeness_findings()
        yield "tally", self._tallies()
        if of.is_in_sessions.any():
            yield self._misplaced_in_sessions()

    def _overlap_findings(self) -> Finding:
        of = self._of
        has_span = of.has_key & ~of.is_in_sessions & (of.started_at_us != NEVER)
        rows = np.flatnonzero(has_span & (of.finished_at_us > of.started_at_us))
        spans = Spans(
            key=self._key[rows],
            holder=joined(of.run[rows], of.member[rows]),
            started_us=of.started_at_us[rows],
            finished_us=of.finished_at_us[rows],
            incarnation=of.run[rows],
            delivery=of.delivery[rows],
            is_checked=np.ones(len(rows), np.bool_),
        )
        result = check_overlaps(spans, self._settings.skew_us)
        later = rows[result.later]
        return "offence", violations(
            of.table,
            "overlap",
            None,
            later,
            of.started_at_us[later],
            uncertain=result.uncertain,
            other=rows[result.other],
        )

    def _move_findings(self) -> Finding:
        """Of queues and partitions, which have one consumer at a time; a message without a key may be with any
        member."""
        of = self._of
        is_placed = of.mode == CHECKED_MODES.index(EXCLUSIVE)
        is_placed |= (of.mode == CHECKED_MODES.index(PARTITIONED)) & of.has_key
        rows = np.flatnonzero(is_placed)
        was, now = (rows[chosen] for chosen in moves(self._shard[rows], of.member[rows], _times(of, rows)))
        at_us = of.delivered_at_us[now]
        table = of.table.select(["group", "hash"]).take(pa.array(now))
        return "move", table.append_column("was", pa.array(of.member[was])).append_column(
            "now", pa.array(of.member[now])
        ).append_column("at_us", pa.array(at_us)).append_column(
            "pause_us", pa.array(at_us - of.delivered_at_us[was])
        )

    def _completeness_findings(self) -> Iterator[Finding]:
        of, is_delivered = self._of, self._is_delivered
        is_published = ~is_delivered
        last = _column(of.table, "last", is_published)
        line = Line(len(self._stream_at), (of.seq, last))
        places = line.place(self._stream, of.seq)
        if self._settings.settle_us:
            confirmed_us = _column(of.table, "confirmed_at_us", is_published)
            completeness = with_published(Completeness(), places[is_published], confirmed_us, grain_us=1)
        else:
            lasts = line.place(self._stream[is_published], last)
            completeness = with_published_ranges(Completeness(), Intervals(places[is_published], lasts))
        is_final = of.verdict[is_delivered] != RELEASED
        delivered = places[is_delivered]
        distinct = set_of(delivered)
        completeness, _ = with_delivered(
            completeness, distinct, distinct if is_final.all() else set_of(delivered[is_final])
        )
        yield "missing", self._missing_ranges(completeness, line)
        yield "stream", self._stream_counts(completeness, line)
        if of.is_acknowledged.any() and len(delivered) > completeness.distinct.total:
            rows = np.flatnonzero(of.is_acknowledged)
            settled_us, run, delivery = of.settled_at_us[rows], of.run[rows], of.delivery[rows]
            again = rows[repeated(places[rows], settled_us, run, delivery, np.zeros(len(rows), np.bool_))]
            yield "offence", violations(of.table, "repeated", None, again, of.settled_at_us[again])

    def _missing_ranges(self, completeness: Completeness, line: Line) -> pa.Table:
        stream, first, last = line.ranges(completeness.open)
        table = self._names(self._stream_at[stream])
        table = table.append_column("first", pa.array(first)).append_column("last", pa.array(last))
        if self._settings.settle_us:
            table = table.append_column("confirmed_at_us", pa.array(completeness.open_since_us))
        return table

    def _stream_counts(self, completeness: Completeness, line: Line) -> pa.Table:
        table = self._names(self._stream_at)
        for name in ("published", "distinct", "unpublished"):
            table = table.append_column(name, pa.array(line.count_by_stream(getattr(completeness, name))))
        return table

    def _names(self, rows: IntArray) -> pa.Table:
        return self._of.table.select(["group", "publisher", "hash"]).take(pa.array(rows))

    def _misplaced_in_sessions(self) -> Finding:
        of = self._of
        rows = np.flatnonzero(of.is_in_sessions & of.is_placed)
        message = dense(self._stream, of.seq)[0][rows]
        place = dense(of.session.codes, of.sequence)[0][rows]
        is_elsewhere = elsewhere(message, place, _times(of, rows), np.zeros(len(rows), np.bool_))
        nowhere = np.flatnonzero(of.is_in_sessions & ~of.is_placed)
        return _misplaced_finding(of, np.concatenate([rows[is_elsewhere], nowhere]))

    def _tallies(self) -> pa.Table:
        """Number of records of each kind, per group."""
        of = self._of
        groups = len(of.group.texts)
        is_published = ~self._is_delivered
        sizes = _column(of.table, "last", is_published) - of.seq[is_published] + 1
        published = np.zeros(groups, np.int64)
        np.add.at(published, of.group.codes[is_published], sizes)

        def counted(chosen: Flags) -> IntArray:
            return np.bincount(of.group.codes[chosen], minlength=groups)

        return pa.table(
            {
                "group": pa.array(of.group.texts, pa.string()),
                "published": published,
                "delivered": counted(self._is_delivered),
                "acknowledged": counted(of.is_acknowledged),
                "dead": counted(of.verdict == DEAD),
                "repeats_dropped": counted(of.verdict == REPEAT),
                "released": counted(of.verdict == RELEASED),
                "redelivered": counted(of.redelivered == 1),
            }
        )


def _order_findings(
    of: RecordColumns, sub_stream: IntArray, numbers: Numbers, is_checked: Flags, skew_us: int
) -> Iterator[Finding]:
    rows = np.flatnonzero(is_checked)
    rows = rows[in_order(sub_stream[rows], of.delivered_at_us[rows], of.run[rows], of.delivery[rows])]
    settled = rows[of.is_acknowledged[rows] & (of.settled_at_us[rows] != NEVER)]
    highest = np.full(int(sub_stream.max()) + 1, np.iinfo(np.int64).min)
    for view, chosen, at_us in (
        (DELIVERED_VIEW, rows, of.delivered_at_us),
        (ACKNOWLEDGED_VIEW, settled, of.settled_at_us),
    ):
        deliveries = Deliveries.at_once(
            sub_stream[chosen], numbers.places[chosen], at_us[chosen], of.run[chosen], of.delivery[chosen]
        )
        result = check_order(deliveries, highest, skew_us)
        for kind, indices, before, uncertain in result.by_kind():
            out = chosen[indices]
            expected = numbers.number(before) + 1
            yield (
                "offence",
                violations(of.table, kind, view, out, at_us[out], expected=expected, uncertain=uncertain),
            )


def _misplaced_finding(of: RecordColumns, rows: IntArray) -> Finding:
    return "offence", violations(of.table, "misplaced", DELIVERED_VIEW, rows, of.delivered_at_us[rows])


def _times(of: RecordColumns, rows: Any = slice(None)) -> Times:
    return Times(of.delivered_at_us[rows], of.run[rows], of.delivery[rows])


def _column(table: pa.Table, name: str, chosen: Flags) -> IntArray:
    return ints_of(table[name].filter(pa.array(chosen)))


def _finding_rows(name: str, rows: pa.Table) -> pa.Table:
    """FINDINGS of rows of its column `name`; columns that they do not have are null."""
    fields = list(SCHEMA.field(name).type)
    present = set(rows.column_names)
    columns = [
        rows[field.name].cast(field.type).combine_chunks()
        if field.name in present
        else pa.nulls(len(rows), field.type)
        for field in fields
    ]
    struct = pa.StructArray.from_arrays(columns, fields=fields)
    return pa.table(
        [struct if field.name == name else pa.nulls(len(rows), field.type) for field in SCHEMA], schema=SCHEMA
    )
