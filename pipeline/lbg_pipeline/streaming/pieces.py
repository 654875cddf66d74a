"""What workers do in an epoch: blocks of a journal become pieces, and the pieces of a bucket become new ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lbg_pipeline.reading import Parsed

from .bucket import advance
from .columns import Columns
from .layout import memory_of
from .rows import (
    DELIVERED,
    NEVER,
    PIECES,
    PUBLISHED,
    batch_of,
    delivered_pieces,
    piece,
    published_pieces,
    unpacked,
)
from .settings import Window


def pieces_of(groups: tuple[str, ...]) -> Callable[[Parsed], Iterable[pa.RecordBatch]]:
    """A step of `lbg_pipeline.reading.scan_journals`. `groups`: only these, all when empty."""

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


def judging(window: Window, slice_us: int) -> Callable[[pa.Table], pa.Table]:
    """For `applyInArrow` on the pieces of one bucket."""

    def judge(pieces: pa.Table) -> pa.Table:
        given: dict[tuple[str, str], list[Any]] = defaultdict(list)
        latest_us = NEVER
        for row in pieces.to_pylist():
            given[row["kind"], row["name"]].append(unpacked(row["blob"]))
            latest_us = max(latest_us, row["latest_us"])
        advanced = advance(
            memory_of({name: tables for (kind, name), tables in given.items() if kind == "state"}),
            _one(given["new", "published"], PUBLISHED),
            _one(given["new", "delivered"], DELIVERED),
            _one(given["held", "delivered"], DELIVERED),
            window,
        )
        bucket = pieces["bucket"][0].as_py()
        found = [*advanced.found, *(("broken", one) for one in given["new", "broken"])]
        told = {"latest_us": latest_us, "until_us": window.until_us}
        made = [piece(bucket, "found", name, table) for name, table in found]
        made += [
            piece(bucket, "state", name, table, **told) for name, table in advanced.memory.tables().items()
        ]
        made += [
            piece(bucket, "held", "delivered", part, slice_us=at)
            for at, part in _slices(advanced.held, window, slice_us)
        ]
        return pa.Table.from_pylist(made, schema=PIECES)

    return judge


def unpacking(schema: Any) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
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
    """By when they are due: 0 for what is due in part already, and so wanted in every epoch until it is done."""
    if not len(held):
        return
    rows = Columns(held, 0)
    times = [rows.delivered_us, rows.settled_us, rows.started_us, rows.finished_us]
    first_us = np.minimum.reduce([np.where(each == NEVER, np.iinfo(np.int64).max, each) for each in times])
    due_us = np.where(first_us <= window.until_us, 0, first_us // width_us * width_us)
    for at in np.unique(due_us).tolist():
        yield at, held.filter(pa.array(due_us == at))
