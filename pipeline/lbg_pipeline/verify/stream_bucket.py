"""One bucket in one epoch: checks due records, adds up the totals, holds the rest back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_pipeline.columns import NEVER, Flags, holds, set_of, union
from lbg_pipeline.journal import Parsed
from lbg_pipeline.verify.checks.completeness import (
    Completeness,
    repeated,
    with_delivered,
    with_lost,
    with_published,
)
from lbg_pipeline.verify.settings import Window
from lbg_pipeline.verify.stream_checkpoint import forgotten, memory_of
from lbg_pipeline.verify.stream_checks import BucketChecks, report_moves, report_rehashed
from lbg_pipeline.verify.stream_columns import (
    DELIVERED,
    IN_SESSION,
    KEYS,
    LATE_ACKNOWLEDGED,
    LATE_DELIVERED,
    LATE_STARTED,
    PIECES,
    PUBLISHED,
    Columns,
    batch_of,
    delivered_pieces,
    piece,
    published_pieces,
    unpacked,
    within,
)
from lbg_pipeline.verify.stream_findings import LATE, FindingsBuilder
from lbg_pipeline.verify.stream_state import FILES, Histories, Memory, Streams, Totals
from lbg_pipeline.verify.tables import ACKNOWLEDGED_VIEW, DELIVERED_VIEW

_GRAIN_US = 1_000_000
"""Messages confirmed in the same second are stored with one time."""


@dataclass(slots=True)
class Advanced:
    """`findings`: tables by name, one name more than once."""

    memory: Memory
    held: Any
    findings: list[tuple[str, Any]] = field(default_factory=list)


def advance(
    memory: Memory, published: Any, fresh: Any, held: Any, keys: Any, files: Any, window: Window
) -> Advanced:
    """`published`, `fresh`, `keys` and `files` are of this epoch's files, `held` of earlier ones."""
    rows = Columns(pa.concat_tables([fresh, held]).combine_chunks(), len(fresh))
    streams = Streams(memory, published, rows)
    histories = Histories(memory.histories, streams.table)
    findings = FindingsBuilder(rows, streams, Totals(memory.totals))
    epoch = _Epoch(rows, streams, findings, window)
    completeness = streams.completeness(memory)
    checks = BucketChecks(rows, streams, epoch.late, window, findings)
    order = checks.report_order(completeness, histories, memory)
    checks.report_misplaced(completeness, epoch.on_time)
    checks.report_overlaps()
    shards = report_moves(rows, memory.shards, epoch.on_time, findings)
    hashes = report_rehashed(keys, memory.hashes, findings)
    epoch.count(published)
    completeness = epoch.check_completeness(completeness, published)
    epoch.report_late()
    files = pa.concat_tables([memory.files, files])
    remembered, counts = forgotten(
        memory, streams, completeness, order, shards, hashes, files, findings.totals, window
    )
    tables = [(name, one) for name, one in (*findings.tables, *counts) if len(one)]
    return Advanced(remembered, epoch.held(), tables)


class _Epoch:
    """`on_time`: deliveries that the watermark passes now. `due`: with those that it had passed when they came; they
    have missed their place in the order, and count for completeness."""

    def __init__(self, rows: Columns, streams: Streams, findings: FindingsBuilder, window: Window) -> None:
        self.rows = rows
        self.streams = streams
        self.findings = findings
        self.window = window
        self.late = rows.late(window)
        is_late = self.late & LATE_DELIVERED != 0
        self.on_time = within(rows.delivered_us, window.after_us, window.until_us) & ~is_late
        self.due = self.on_time | (rows.is_fresh & is_late)

    def count(self, published: Any) -> None:
        rows, totals = self.rows, self.findings.totals
        counted = self.due & rows.is_counted
        groups = rows.table["group"]
        totals.add_rows("published", published["group"])
        totals.add_rows("delivered", groups, counted)
        totals.add_rows("acknowledged", groups, counted & rows.is_ack)
        for verdict, name in (("dead", "dead"), ("repeat", "repeats_dropped"), ("released", "released")):
            totals.add_rows(name, groups, counted & rows.equals("verdict", verdict))
        totals.add_rows("redelivered", groups, counted & rows.table["redelivered"].to_numpy())

    def check_completeness(self, completeness: Completeness, published: Any) -> Completeness:
        rows, streams, window = self.rows, self.streams, self.window
        settled = rows.is_settled & within(rows.settled_us, window.after_us, window.until_us)
        settled |= rows.is_fresh & (self.late & LATE_ACKNOWLEDGED != 0)
        unsettled = self.due & rows.is_ack & ~rows.is_settled & rows.is_counted
        self._repeated(completeness, unsettled | (settled & rows.is_counted))
        completeness = with_published(
            completeness,
            streams.line.place(streams.published, published["seq"].to_numpy()),
            published["confirmed_at_us"].to_numpy(),
            grain_us=_GRAIN_US,
        )
        final = self.due & rows.is_final & rows.is_counted
        completeness, recovered = with_delivered(
            completeness, set_of(streams.places[self.due]), set_of(streams.places[final])
        )
        self.findings.ranges("found", recovered)
        in_session = self.due & (rows.role == IN_SESSION) & rows.is_in_order
        completeness = replace(
            completeness,
            distinct=union(completeness.distinct, set_of(streams.order_places[in_session])),
            settled=union(completeness.settled, set_of(streams.order_places[settled])),
            unsettled=union(completeness.unsettled, set_of(streams.places[unsettled])),
        )
        completeness, lost = with_lost(completeness, window.lost_upto_us)
        self.findings.ranges("lost", lost)
        return completeness

    def report_late(self) -> None:
        rows = self.rows
        late = np.flatnonzero(rows.is_fresh & rows.is_counted & (self.late != 0))
        table = rows.table.take(pa.array(late))
        views = pa.array([_views(int(bits)) for bits in self.late[late]], pa.string())
        self.findings.table(
            "late", pa.table([*(table[name] for name in LATE.names[:-1]), views], schema=LATE)
        )

    def held(self) -> Any:
        """Deliveries for which a check is still open, because the watermark has not passed all of their times."""
        rows, window = self.rows, self.window
        is_open = np.flatnonzero(rows.done_us() > window.until_us - window.skew_us)
        table = rows.table.take(pa.array(is_open))
        late = pa.array(self.late[is_open].astype(np.int8))
        return table.set_column(table.schema.get_field_index("late"), "late", late)

    def _repeated(self, completeness: Completeness, acked: Flags) -> None:
        rows = self.rows
        here = np.flatnonzero(acked)
        places = self.streams.places[here]
        seen = holds(completeness.settled, places) | holds(completeness.unsettled, places)
        again = here[
            repeated(places, rows.settled_us[here], rows.incarnation[here], rows.delivery[here], seen)
        ]
        at_us = np.where(rows.settled_us == NEVER, rows.delivered_us, rows.settled_us)[again]
        self.findings.offences("repeated", None, again, at_us)


def _views(late: int) -> str:
    names = (
        (LATE_DELIVERED, DELIVERED_VIEW),
        (LATE_ACKNOWLEDGED, ACKNOWLEDGED_VIEW),
        (LATE_STARTED, "overlap"),
    )
    return ",".join(name for bit, name in names if late & bit)


def pieces_of(groups: tuple[str, ...]) -> Callable[[Parsed], Iterable[pa.RecordBatch]]:
    """A step of `lbg_pipeline.journal.scan_journals`. `groups`: only these, all when empty."""

    def step(parsed: Parsed) -> Iterator[pa.RecordBatch]:
        made: list[dict[str, Any]] = []
        for batch in parsed.published:
            made += published_pieces(_only(batch, groups))
        for batch in parsed.delivered:
            made += delivered_pieces(_only(batch, groups))
        for batch in parsed.broken:
            made.append(piece(0, "new", "broken", pa.Table.from_batches([batch])))
        yield batch_of(made)

    return step


def bucket_checker(window: Window, slice_us: int) -> Callable[[pa.Table], pa.Table]:
    """For `applyInArrow` on the pieces of one bucket."""

    def check(pieces: pa.Table) -> pa.Table:
        contents: dict[tuple[str, str], list[Any]] = defaultdict(list)
        latest_us = NEVER
        for row in pieces.to_pylist():
            contents[row["kind"], row["name"]].append(unpacked(row["blob"]))
            latest_us = max(latest_us, row["latest_us"])
        advanced = advance(
            memory_of({name: tables for (kind, name), tables in contents.items() if kind == "state"}),
            _one(contents["new", "published"], PUBLISHED),
            _one(contents["new", "delivered"], DELIVERED),
            _one(contents["held", "delivered"], DELIVERED),
            _one(contents["new", "keys"], KEYS),
            _one(contents["new", "files"], FILES),
            window,
        )
        bucket = pieces["bucket"][0].as_py()
        findings = [
            *advanced.findings,
            *((name, one) for name in ("broken", "copies") for one in contents["new", name]),
        ]
        times = {"latest_us": latest_us, "until_us": window.until_us}
        made = [piece(bucket, "found", name, table) for name, table in findings]
        made += [
            piece(bucket, "state", name, table, **times)
            for name, table in advanced.memory.tables().items()
            if len(table) or name == "totals"  # which has the times in any case
        ]
        made += [
            piece(bucket, "held", "delivered", part, slice_us=at)
            for at, part in _slices(advanced.held, window, slice_us)
        ]
        return pa.Table.from_pylist(made, schema=PIECES)

    return check


def unpacker(schema: Any) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For `mapInArrow` on blobs of one table."""

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for blob in batch.column(0).to_pylist():
                yield from unpacked(blob).cast(schema).to_batches()

    return unpack


def _only(batch: Any, groups: tuple[str, ...]) -> Any:
    return batch.filter(pc.is_in(batch.column("group"), pa.array(groups))) if groups else batch


def _one(tables: list[Any], schema: Any) -> Any:
    return pa.concat_tables([schema.empty_table(), *tables])


def _slices(held: Any, window: Window, width_us: int) -> Iterator[tuple[int, Any]]:
    """Slices by due time: 0 for deliveries that are due in part, and so read in every epoch until they are done."""
    if not len(held):
        return
    rows = Columns(held, 0)
    times = [rows.delivered_us, rows.settled_us, rows.started_us, rows.finished_us]
    first_us = np.minimum.reduce([np.where(each == NEVER, np.iinfo(np.int64).max, each) for each in times])
    due_us = np.where(first_us <= window.until_us, 0, first_us // width_us * width_us)
    for at in np.unique(due_us).tolist():
        yield at, held.filter(pa.array(due_us == at))
