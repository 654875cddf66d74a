"""Findings of the workers as rows, and the table of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_pipeline.columns import IntArray, dense, ints_of
from lbg_pipeline.schemas import arrow_schema
from lbg_pipeline.verify.batch_checks import (
    Completeness,
    Deliveries,
    Ranges,
    completeness,
    is_placed,
    misplaced,
    moves,
    nowhere,
    out_of_order,
    overlaps,
    repeated,
)
from lbg_pipeline.verify.batch_columns import DEAD, NEVER, RELEASED, REPEAT, RecordColumns
from lbg_pipeline.verify.settings import ValidationSettings
from lbg_pipeline.verify.shuffle import BROKEN_ROLE, CLOCK_ROLE, DELIVERED_ROLE, PUBLISHED_ROLE, SESSION_ROLE
from lbg_pipeline.verify.tables import FINDINGS

SCHEMA = arrow_schema(FINDINGS)
BATCH_ROWS = 10_000

Finding = tuple[str, dict[str, Any]]
"""The column of FINDINGS and what it says."""


class LaneChecker:
    """For `mapInArrow` over evidence in which what belongs together is in one partition."""

    def __init__(self, settings: ValidationSettings) -> None:
        self._settings = settings

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Memory: all that one task judges, about 150 bytes for each delivery.
        there = [batch for batch in batches if batch.num_rows]
        if not there:
            return
        rows: list[Finding] = []
        for finding in self._found(pa.Table.from_batches(there)):
            rows.append(finding)
            if len(rows) == BATCH_ROWS:
                yield _batch(rows)
                rows = []
        if rows:
            yield _batch(rows)

    def _found(self, evidence: pa.Table) -> Iterator[Finding]:
        roles = evidence["role"].to_numpy()
        for row in evidence.filter(pa.array(roles == BROKEN_ROLE))["broken"].to_pylist():
            yield "broken", row
        if np.any(roles == CLOCK_ROLE):
            clocks = evidence.filter(pa.array(roles == CLOCK_ROLE))
            yield "clock", {"latest_us": pc.max(clocks["delivered_at_us"]).as_py()}
        of_hashes = (roles == PUBLISHED_ROLE) | (roles == DELIVERED_ROLE)
        if of_hashes.any():
            table = evidence if of_hashes.all() else evidence.filter(pa.array(of_hashes))
            yield from self._of_hashes(table, roles[of_hashes] == DELIVERED_ROLE)
        of_sessions = roles == SESSION_ROLE
        if of_sessions.any():
            yield from self._of_sessions(evidence.filter(pa.array(of_sessions)))

    def _of_hashes(self, table: pa.Table, is_delivered: Any) -> Iterator[Finding]:
        of = RecordColumns(table)
        line, line_at = dense(of.group.codes, of.publisher.codes, of.hash, of.key.codes)
        names = of.group.codes[line_at], of.publisher.codes[line_at], of.hash[line_at], of.key.codes[line_at]
        stream_of_line, stream_at = dense(*names[:3])
        stream, stream_at = stream_of_line[line], line_at[stream_at]
        shard = dense(names[0], names[2])[0][line]
        key = dense(names[0], names[3])[0][line]
        skew_us = self._settings.skew_us

        has_order = is_delivered & of.has_key & ~of.is_in_sessions
        order_line = line
        if of.has_epochs:
            order_line = dense(of.group.codes, of.history, of.hash, of.key.codes)[0]
        yield from _offences(
            out_of_order(of, order_line, of.number_in_order, has_order, skew_us, told=of.seq)
        )
        yield from _offences(overlaps(of, key, skew_us))
        for move in moves(of, shard):
            yield "move", move
        yield from self._completeness(of, table, stream, stream_at, is_delivered)
        yield from _tallies(of, table, is_delivered)
        if of.is_in_sessions.any():
            message = dense(stream, of.seq)[0]
            place = dense(of.session.codes, of.sequence)[0]
            yield from _offences(misplaced(of, message, place, of.is_in_sessions & is_placed(of)))
            yield from _offences(nowhere(of))

    def _completeness(
        self, of: RecordColumns, table: pa.Table, stream: IntArray, stream_at: IntArray, is_delivered: Any
    ) -> Iterator[Finding]:
        is_published = ~is_delivered
        published = Ranges(
            stream[is_published],
            of.seq[is_published],
            _column(table, "last", is_published),
            _column(table, "confirmed_at_us", is_published) if self._settings.settle_us else None,
        )
        deliveries = Deliveries(
            stream[is_delivered], of.seq[is_delivered], of.verdict[is_delivered] != RELEASED
        )
        found = completeness(len(stream_at), published, deliveries)
        yield from _missing(of, found.missing, stream_at)
        yield from _streams(of, found, stream_at)
        if _has_repeats(of, stream, found):
            yield from _offences(repeated(of, dense(stream, of.seq)[0]))

    def _of_sessions(self, table: pa.Table) -> Iterator[Finding]:
        of = RecordColumns(table)
        session = dense(of.group.codes, of.session.codes)[0]
        everywhere = np.ones(of.count, bool)
        yield from _offences(out_of_order(of, session, of.sequence, everywhere, self._settings.skew_us))
        place = dense(session, of.sequence)[0]
        message = dense(of.group.codes, of.publisher.codes, of.hash, of.seq)[0]
        yield from _offences(misplaced(of, place, message, everywhere))


def _has_repeats(of: RecordColumns, stream: IntArray, found: Completeness) -> bool:
    return int(of.is_acknowledged.sum()) > 0 and int((of.verdict != NEVER).sum()) > int(found.distinct.sum())


def _offences(found: Iterable[dict[str, Any]]) -> Iterator[Finding]:
    for one in found:
        yield "offence", one


def _missing(of: RecordColumns, missing: Ranges, stream_at: IntArray) -> Iterator[Finding]:
    for number, (stream, first, last) in enumerate(
        zip(missing.stream.tolist(), missing.first.tolist(), missing.last.tolist(), strict=True)
    ):
        told = {**_stream(of, int(stream_at[stream])), "first": first, "last": last}
        if missing.confirmed_at_us is not None:
            told["confirmed_at_us"] = int(missing.confirmed_at_us[number])
        yield "missing", told


def _streams(of: RecordColumns, found: Completeness, stream_at: IntArray) -> Iterator[Finding]:
    counts = zip(found.published.tolist(), found.distinct.tolist(), found.unpublished.tolist(), strict=True)
    for row, (published, distinct, unpublished) in zip(stream_at.tolist(), counts, strict=True):
        told = {"published": published, "distinct": distinct, "unpublished": unpublished}
        yield "stream", {**_stream(of, row), **told}


def _stream(of: RecordColumns, row: int) -> dict[str, Any]:
    return {"group": of.group[row], "publisher": of.publisher[row], "hash": int(of.hash[row])}


def _tallies(of: RecordColumns, table: pa.Table, is_delivered: Any) -> Iterator[Finding]:
    """Number of records of each kind, per group."""
    groups = len(of.group.told)
    is_published = ~is_delivered
    sizes = _column(table, "last", is_published) - of.seq[is_published] + 1
    published = np.zeros(groups, np.int64)
    np.add.at(published, of.group.codes[is_published], sizes)

    def counted(wanted: Any) -> IntArray:
        return np.bincount(of.group.codes[wanted], minlength=groups)

    columns = {
        "published": published,
        "delivered": counted(is_delivered),
        "acknowledged": counted(of.is_acknowledged),
        "dead": counted(of.verdict == DEAD),
        "repeats_dropped": counted(of.verdict == REPEAT),
        "released": counted(of.verdict == RELEASED),
        "redelivered": counted(of.redelivered == 1),
    }
    for code, group in enumerate(of.group.told):
        yield "tally", {"group": group, **{name: int(column[code]) for name, column in columns.items()}}


def _column(table: pa.Table, name: str, wanted: Any) -> IntArray:
    return ints_of(table[name].filter(pa.array(wanted)))


def _batch(rows: list[Finding]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([told if name == field.name else None for name, told in rows], field.type)
            for field in SCHEMA
        ],
        schema=SCHEMA,
    )
