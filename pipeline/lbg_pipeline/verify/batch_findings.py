"""Findings of the workers of a batch: the checks of all records of one worker, as rows of FINDINGS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
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
    digests,
    in_order,
    ints_of,
    joined,
    numbers_in_order,
    ranked,
    set_of,
    to_bytes,
)
from lbg_pipeline.journal.scan import Part
from lbg_pipeline.schemas import arrow_schema
from lbg_pipeline.verify.batch_columns import DEAD, RELEASED, REPEAT, RecordColumns
from lbg_pipeline.verify.checks.completeness import (
    Completeness,
    Gaps,
    copies,
    gaps,
    repeated,
    with_delivered,
    with_published,
    with_published_ranges,
)
from lbg_pipeline.verify.checks.order import Deliveries, Numbers, OrderResult, check_order
from lbg_pipeline.verify.checks.overlap import Spans, check_overlaps
from lbg_pipeline.verify.checks.placement import Times, elsewhere, moves
from lbg_pipeline.verify.settings import ValidationSettings
from lbg_pipeline.verify.shuffle import (
    BROKEN_ROLE,
    CHECKED_MODES,
    CLOCK_ROLE,
    DELIVERED_ROLE,
    KEY_MARK,
    PUBLISHED_ROLE,
    QUEUE_MARK,
    SESSION_ROLE,
    SIZE_MARK,
)
from lbg_pipeline.verify.tables import ACKNOWLEDGED_VIEW, COPIES, DELIVERED_VIEW, FINDINGS, violations

SCHEMA = arrow_schema(FINDINGS)
BATCH_ROWS = 10_000

Finding = tuple[str, pa.Table]
"""The column of FINDINGS, and rows of it."""


class LaneChecker:
    """Findings in the records of `unpacked` pieces, which have all of a lane. `by_key`: lanes are of keys, in records
    that `KeyStep` chose."""

    def __init__(self, settings: ValidationSettings, *, by_key: bool = False) -> None:
        self._settings = settings
        self._by_key = by_key

    def __call__(self, records: pa.Table) -> Iterator[pa.RecordBatch]:
        # Memory: all that one task checks, about 150 bytes for each delivery.
        if not len(records):
            return
        findings = [
            _finding_rows(name, rows)
            for name, rows in self._findings(records.unify_dictionaries())
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
            of, copied = _without_copies(records if of_hashes.all() else records.filter(pa.array(of_hashes)))
            if self._by_key:
                yield from self._of_keys(of)
            else:
                yield "copy", copied
                yield from _HashChecks(of, self._settings).findings()
        of_sessions = roles == SESSION_ROLE
        if of_sessions.any():
            yield from self._of_sessions(_without_copies(records.filter(pa.array(of_sessions)))[0])

    def _of_keys(self, of: RecordColumns) -> Iterator[Finding]:
        skew_us = self._settings.skew_us
        key = dense(of.group.codes, of.key.codes)[0]
        yield _overlap_findings(of, key, of.has_key, skew_us)
        key_and_hash = dense(key, of.hash)[0]
        first = _times(of).in_order(key_and_hash)
        first = first[np.diff(key_and_hash[first], prepend=-1) != 0]
        first = first[_times(of, first).in_order(key[first])]
        others = first[np.diff(key[first], prepend=-1) == 0]
        yield "offence", violations(of.table, "rehashed", None, others, of.delivered_at_us[others])
        across = Across(
            sub_stream=dense(of.group.codes, of.history, of.key.codes)[0],
            number=numbers_in_order(of.began_us, of.published_at_us),
            message=dense(of.group.codes, of.publisher.codes, of.hash, of.seq)[0],
            is_checked=np.isin(key, key[others]),
        )
        sub_stream = dense(of.group.codes, of.history, of.hash, of.key.codes)[0]
        numbers = Numbers(of.began_us, of.seq)
        yield from _order_findings(of, sub_stream, numbers, of.has_key, skew_us, across)

    def _of_sessions(self, of: RecordColumns) -> Iterator[Finding]:
        session = dense(of.group.codes, of.session.codes)[0]
        everywhere = np.ones(of.count, bool)
        numbers = Numbers(np.zeros(of.count, np.int64), of.sequence)
        yield from _order_findings(of, session, numbers, everywhere, self._settings.skew_us)
        place = dense(session, of.sequence)[0]
        message = dense(of.group.codes, of.publisher.codes, of.hash, of.seq)[0]
        yield _misplaced_finding(of, np.flatnonzero(elsewhere(place, message, _times(of), ~everywhere)))


def _without_copies(records: pa.Table) -> tuple[RecordColumns, pa.Table]:
    """The records, each once, and COPIES."""
    of = RecordColumns(records)
    rows = np.flatnonzero(of.role != PUBLISHED_ROLE)
    files = pa.array([Part.of(source).path for source in of.source.texts], pa.string())
    file = np.append(ranked(files), 0)[of.source.codes]
    columns = (of.run, of.delivery, of.group.codes, of.publisher.codes, of.hash, of.seq, of.member)
    copied, firsts = copies(*(column[rows] for column in columns), rank=file[rows])
    if not len(copied):
        return of, arrow_schema(COPIES).empty_table()
    copied, firsts = rows[copied], rows[firsts]
    pairs = pa.table(
        {
            "group": records["group"].take(pa.array(copied)),
            "kind": pa.repeat("delivered", len(copied)),
            "file": files.take(pa.array(of.source.codes[firsts])),
            "other": files.take(pa.array(of.source.codes[copied])),
            "count": pa.array(np.ones(len(copied), np.int64)),
        }
    )
    counted = pairs.group_by(["group", "kind", "file", "other"], use_threads=False).aggregate(
        [("count", "sum")]
    )
    once = np.ones(of.count, np.bool_)
    once[copied] = False
    return RecordColumns(records.filter(pa.array(once))), counted.rename_columns(COPIES.names)


KEY_BUCKETS = 16


def packed_keys(table: pa.Table, rows: IntArray) -> pa.Table:
    """Group, key and hash of these rows: one value for each bucket of keys."""
    keys = table.select(["group", "key", "hash"]).take(pa.array(rows)).combine_chunks()
    if not len(keys):
        return pa.table({"bucket": pa.array([], pa.int32()), "rows": pa.array([], pa.binary())})
    bucket = (digests(keys["key"].chunk(0)) % np.uint64(KEY_BUCKETS)).astype(np.int32)
    there = np.unique(bucket)
    packed = [to_bytes(keys.filter(pa.array(bucket == one)).combine_chunks()) for one in there]
    return pa.table({"bucket": pa.array(there), "rows": pa.array(packed, pa.binary())})


def groups_of_rehashed(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` on `packed_keys`, each bucket in one partition: the groups that have a key with two hashes."""
    blobs = [blob for batch in pieces for blob in batch["rows"]]
    if not blobs:
        return
    keys = pa.concat_tables([pa.ipc.open_stream(blob.as_buffer()).read_all() for blob in blobs])
    # A worker has each key once with each of its hashes, and all of a hash.
    counts = keys.group_by(["group", "key"], use_threads=False).aggregate([("hash", "count")])
    several = counts.filter(pc.greater(counts["hash_count"], 1))
    yield pa.RecordBatch.from_arrays([several["group"].unique()], ["group"])


@dataclass(frozen=True, slots=True)
class Across:
    """Of deliveries of keys with several hashes: their order is that of publishing, by number within a hash and by
    `number`, a time, across them. `sub_stream`: key and history; `message`: which one of all each delivery has."""

    sub_stream: IntArray
    number: IntArray
    message: IntArray
    is_checked: Flags


class _HashChecks:
    """Checks of all that has its order or its numbers by hash."""

    def __init__(self, of: RecordColumns, settings: ValidationSettings) -> None:
        self._of = of
        self._is_delivered = of.role == DELIVERED_ROLE
        self._settings = settings
        self._line, line_at = dense(of.group.codes, of.publisher.codes, of.hash, of.key.codes)
        names = of.group.codes[line_at], of.publisher.codes[line_at], of.hash[line_at], of.key.codes[line_at]
        stream, stream_at = dense(*names[:3])
        self._stream = stream[self._line]
        self._stream_at = line_at[stream_at]
        self._shard = dense(names[0], names[2])[0][self._line]
        self._key = dense(names[0], names[3])[0][self._line]
        self._keys_at = line_at[dense(names[0], names[2], names[3])[1]]

    def findings(self) -> Iterator[Finding]:
        of = self._of
        has_order = self._is_delivered & of.has_key & ~of.is_in_sessions
        sub_stream = self._line
        if of.has_epochs:
            sub_stream = dense(of.group.codes, of.history, of.hash, of.key.codes)[0]
        numbers = Numbers(of.began_us, of.seq)
        yield from _order_findings(of, sub_stream, numbers, has_order, self._settings.skew_us)
        yield _overlap_findings(of, self._key, has_order, self._settings.skew_us)
        yield "keys", packed_keys(of.table, self._keys_at[has_order[self._keys_at]])
        yield self._move_findings()
        yield "run", self._runs()
        yield from self._completeness_findings()
        yield "tally", self._tallies()
        if of.is_in_sessions.any():
            yield self._misplaced_in_sessions()

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

    def _runs(self) -> pa.Table:
        of, rows = self._of, np.flatnonzero(self._is_delivered)
        run, firsts = dense(of.group.codes[rows], of.member[rows], of.run[rows])
        first_us, last_us = np.full(len(firsts), np.iinfo(np.int64).max), np.full(len(firsts), NEVER)
        np.minimum.at(first_us, run, of.delivered_at_us[rows])
        for column in (of.delivered_at_us, of.finished_at_us, of.settled_at_us):
            np.maximum.at(last_us, run, column[rows])
        names = ["group", "member", "member_name", "incarnation"]
        table = of.table.select(names).take(pa.array(rows[firsts]))
        return table.append_column("first_us", pa.array(first_us)).append_column("last_us", pa.array(last_us))

    def _completeness_findings(self) -> Iterator[Finding]:
        of, is_delivered = self._of, self._is_delivered
        is_published = ~is_delivered
        last = _ints(of.table, "last", is_published)
        line = Line(len(self._stream_at), (of.seq, last))
        places = line.place(self._stream, of.seq)
        ranges = Intervals(places[is_published], line.place(self._stream[is_published], last))
        if self._settings.settle_us:
            confirmed_us = _ints(of.table, "confirmed_at_us", is_published)
            completeness = with_published(Completeness(), ranges.firsts, confirmed_us, grain_us=1)
        else:
            completeness = with_published_ranges(Completeness(), ranges)
        is_final = of.verdict[is_delivered] != RELEASED
        delivered = places[is_delivered]
        distinct = set_of(delivered)
        completeness, _ = with_delivered(
            completeness, distinct, distinct if is_final.all() else set_of(delivered[is_final])
        )
        holes = gaps(completeness, line)
        yield "missing", self._missing_ranges(completeness, line)
        yield "missing_in", self._missing_in(completeness, ranges)
        yield "gap", self._gaps(holes)
        yield "stream", self._stream_counts(completeness, line, holes)
        yield from self._both_sides(ranges, places)
        if ranges.total > completeness.published.total:
            yield "published_in", self._published_in(ranges)
        if of.is_acknowledged.any() and len(delivered) > completeness.distinct.total:
            rows = np.flatnonzero(of.is_acknowledged)
            settled_us, run, delivery = of.settled_at_us[rows], of.run[rows], of.delivery[rows]
            again = rows[repeated(places[rows], settled_us, run, delivery, np.zeros(len(rows), np.bool_))]
            at_us = np.where(of.settled_at_us == NEVER, of.delivered_at_us, of.settled_at_us)[again]
            yield "offence", violations(of.table, "repeated", None, again, at_us)

    def _missing_ranges(self, completeness: Completeness, line: Line) -> pa.Table:
        stream, first, last = line.ranges(completeness.open)
        table = self._names(self._stream_at[stream])
        table = table.append_column("first", pa.array(first)).append_column("last", pa.array(last))
        if self._settings.settle_us:
            table = table.append_column("confirmed_at_us", pa.array(completeness.open_since_us))
        return table

    def _missing_in(self, completeness: Completeness, ranges: Intervals) -> pa.Table:
        missing = completeness.open
        after = np.searchsorted(missing.lasts, ranges.firsts)
        has_missing = after < len(missing.firsts)
        has_missing[has_missing] = missing.firsts[after[has_missing]] <= ranges.lasts[has_missing]
        rows = np.flatnonzero(~self._is_delivered)[has_missing]
        table = self._of.table.select(["group", "publisher", "hash", "seq", "last", "source"])
        return table.take(pa.array(rows)).rename_columns(
            ["group", "publisher", "hash", "first", "last", "source"]
        )

    def _gaps(self, holes: Gaps) -> pa.Table:
        table = self._names(self._stream_at[holes.stream])
        columns = {"first": holes.first, "last": holes.last, "count": holes.last - holes.first + 1}
        for name, values in {**columns, "is_early": holes.is_early}.items():
            table = table.append_column(name, pa.array(values))
        return table

    def _stream_counts(self, completeness: Completeness, line: Line, holes: Gaps) -> pa.Table:
        table = self._names(self._stream_at)
        counts = {
            name: line.count_by_stream(getattr(completeness, name))
            for name in ("published", "distinct", "unpublished")
        }
        for name, is_early in (("unrecorded", False), ("early", True)):
            counts[name] = holes.count(len(self._stream_at), is_early=is_early)
        for name, count in counts.items():
            table = table.append_column(name, pa.array(count))
        return table

    def _both_sides(self, ranges: Intervals, places: IntArray) -> Iterator[Finding]:
        """Deliveries whose record differs from that of the publisher."""
        of = self._of
        rows_of = np.flatnonzero(~self._is_delivered)
        if not len(rows_of):
            return
        sizes = ranges.lasts - ranges.firsts + 1
        marks = of.table["marks"].take(pa.array(rows_of)).combine_chunks()
        mark = np.frombuffer(b"".join(marks.to_pylist()), np.int64)
        rows_of = np.repeat(rows_of, sizes)
        published = np.arange(len(mark)) + np.repeat(ranges.firsts - (np.cumsum(sizes) - sizes), sizes)
        order = np.argsort(published, kind="stable")
        published, mark, rows_of = published[order], mark[order], rows_of[order]
        rows = np.flatnonzero(self._is_delivered)
        at = np.minimum(np.searchsorted(published, places[rows]), len(published) - 1)
        differs = (published[at] == places[rows]) & (mark[at] != of.mark[rows])
        if not differs.any():
            return
        rows, difference = rows[differs], (mark[at] ^ of.mark[rows])[differs]
        # A hash with two queues of its publishers is that of a group whose number of queues changed.
        queue, shard = mark & QUEUE_MARK, self._shard[rows_of]
        has_two = np.zeros(int(self._shard.max()) + 1, np.bool_)
        first = np.empty(len(has_two), np.int64)
        first[shard] = queue
        has_two[shard[queue != first[shard]]] = True
        difference[has_two[self._shard[rows]]] &= ~QUEUE_MARK
        for kind, part in (("rekeyed", KEY_MARK), ("resized", SIZE_MARK), ("rerouted", QUEUE_MARK)):
            chosen = rows[difference & part != 0]
            yield "offence", violations(of.table, kind, None, chosen, of.delivered_at_us[chosen])

    def _published_in(self, ranges: Intervals) -> pa.Table:
        """Pairs of files with a number in common."""
        order = np.argsort(ranges.firsts, kind="stable")
        firsts, lasts = ranges.firsts[order], ranges.lasts[order]
        longest = np.maximum.accumulate(
            np.where(lasts == np.maximum.accumulate(lasts), np.arange(len(lasts)), 0)
        )
        overlaps = np.flatnonzero(firsts[1:] <= lasts[longest[:-1]])
        source = self._of.source
        paths = [Part.of(text).path for text in source.texts]
        codes = source.codes[np.flatnonzero(~self._is_delivered)[order]]
        pairs = {
            (paths[one], paths[other])
            for one, other in zip(
                codes[longest[overlaps]].tolist(), codes[overlaps + 1].tolist(), strict=True
            )
        }
        different = sorted(pair for pair in pairs if pair[0] != pair[1])
        return pa.table(
            {
                name: pa.array([pair[at] for pair in different], pa.string())
                for at, name in enumerate(("file", "other"))
            }
        )

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
        sizes = _ints(of.table, "last", is_published) - of.seq[is_published] + 1
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


def _overlap_findings(of: RecordColumns, key: IntArray, has_order: Flags, skew_us: int) -> Finding:
    has_span = has_order & (of.started_at_us != NEVER)
    rows = np.flatnonzero(has_span & (of.finished_at_us > of.started_at_us))
    spans = Spans(
        key=key[rows],
        holder=joined(of.run[rows], of.member[rows]),
        started_us=of.started_at_us[rows],
        finished_us=of.finished_at_us[rows],
        incarnation=of.run[rows],
        delivery=of.delivery[rows],
        is_checked=np.ones(len(rows), np.bool_),
    )
    result = check_overlaps(spans, skew_us)
    later, other = rows[result.later], rows[result.other]
    at_us = of.started_at_us[later]
    return "offence", violations(
        of.table, "overlap", None, later, at_us, uncertain=result.uncertain, other=other
    )


def _order_findings(
    of: RecordColumns,
    sub_stream: IntArray,
    numbers: Numbers,
    is_checked: Flags,
    skew_us: int,
    across: Across | None = None,
) -> Iterator[Finding]:
    rows = np.flatnonzero(is_checked)
    rows = rows[in_order(sub_stream[rows], of.delivered_at_us[rows], of.run[rows], of.delivery[rows])]
    settled = rows[of.is_acknowledged[rows] & (of.settled_at_us[rows] != NEVER)]
    for view, chosen, at_us in (
        (DELIVERED_VIEW, rows, of.delivered_at_us),
        (ACKNOWLEDGED_VIEW, settled, of.settled_at_us),
    ):
        result = _checked(of, sub_stream, numbers.places, chosen, at_us, skew_us)
        for kind, indices, before, uncertain in result.by_kind():
            out, expected = chosen[indices], numbers.number(before) + 1
            if kind == "inverted" and across is not None:
                out, expected, uncertain = _with_across(
                    of, across, (out, expected, uncertain), chosen, at_us, skew_us
                )
            yield (
                "offence",
                violations(of.table, kind, view, out, at_us[out], expected=expected, uncertain=uncertain),
            )


def _with_across(
    of: RecordColumns,
    across: Across,
    inverted: tuple[IntArray, IntArray, Flags],
    chosen: IntArray,
    at_us: IntArray,
    skew_us: int,
) -> tuple[IntArray, IntArray, Flags]:
    """Rows, expected numbers and flags of those that are inverted within a hash or across hashes."""
    within, expected, is_uncertain = inverted
    chosen = chosen[across.is_checked[chosen]]
    if not len(chosen):
        return inverted
    chosen = chosen[in_order(across.sub_stream[chosen], at_us[chosen], of.run[chosen], of.delivery[chosen])]
    result = _checked(of, across.sub_stream, across.number, chosen, at_us, skew_us, across.message[chosen])
    out, uncertain = chosen[result.inverted], result.uncertain
    more = ~np.isin(out, within)
    return (
        np.concatenate([within, out[more]]),
        np.concatenate([expected, np.full(int(more.sum()), NEVER)]),
        np.concatenate([is_uncertain & ~np.isin(within, out[~uncertain]), uncertain[more]]),
    )


def _checked(
    of: RecordColumns,
    sub_stream: IntArray,
    number: IntArray,
    chosen: IntArray,
    at_us: IntArray,
    skew_us: int,
    message: IntArray | None = None,
) -> OrderResult:
    deliveries = Deliveries.at_once(
        sub_stream[chosen], number[chosen], at_us[chosen], of.run[chosen], of.delivery[chosen]
    )
    highest = np.full(int(sub_stream.max()) + 1, np.iinfo(np.int64).min)
    return check_order(deliveries, highest, skew_us, message=message)


def _misplaced_finding(of: RecordColumns, rows: IntArray) -> Finding:
    return "offence", violations(of.table, "misplaced", DELIVERED_VIEW, rows, of.delivered_at_us[rows])


def _times(of: RecordColumns, rows: Any = slice(None)) -> Times:
    return Times(of.delivered_at_us[rows], of.run[rows], of.delivery[rows])


def _ints(table: pa.Table, name: str, chosen: Flags) -> IntArray:
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
