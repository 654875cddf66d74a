"""Journals that are read and parsed once, for a job that computes several results from them.

The columns of a block of lines are one value, packed: Spark carries it, and workers unpack it for each result. As rows
of Spark's own every record would pass through the JVM for each of them (ADR 42).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from lbg_pipeline.columns import to_bytes
from lbg_pipeline.journal import Parsed, scan_journals
from lbg_pipeline.journal.scan import journals_bytes
from lbg_pipeline.schemas import BROKEN, arrow_schema
from lbg_pipeline.spark.session import fit_shuffles

PIECES = StructType(
    [
        StructField("part", IntegerType(), nullable=False),
        StructField("rows", BinaryType(), nullable=False),
    ]
)
"""`rows` is a stream of Arrow's."""

PIECES_IN_ARROW = pa.schema(
    [pa.field("part", pa.int32(), nullable=False), pa.field("rows", pa.binary(), nullable=False)]
)

Step = Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]]
"""Result of a worker for the records of a block."""

_PUBLISHED, _DELIVERED, _BROKEN = range(3)


@dataclass(frozen=True, slots=True)
class CachedJournals:
    """Of PIECES, in which the part is the kind of records. `release` it in the end."""

    pieces: DataFrame

    def published(self, step: Step, schema: StructType) -> DataFrame:
        """Result of `step` on the published records, a table of `schema`."""
        return self._made(_PUBLISHED, step, schema)

    def delivered(self, step: Step, schema: StructType) -> DataFrame:
        return self._made(_DELIVERED, step, schema)

    @property
    def broken(self) -> DataFrame:
        return self._made(_BROKEN, lambda rows: [rows], BROKEN)

    def release(self) -> None:
        self.pieces.unpersist()

    def _made(self, kind: int, step: Step, schema: StructType) -> DataFrame:
        def make(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for rows in unpacked(pieces):
                yield from step(rows)

        return self.pieces.where(F.col("part") == kind).mapInArrow(make, schema)


def cache_journals(
    spark: SparkSession,
    paths: Sequence[str],
    *,
    published: Sequence[str],
    delivered: Sequence[str],
    groups: Sequence[str] = (),
) -> CachedJournals:
    """These columns of the records of `groups`, of all if there are none, and every broken line. Raises
    JournalNotFound."""
    step = JournalCache(tuple(published), tuple(delivered), tuple(groups))
    pieces = scan_journals(spark, paths, step, PIECES)
    fit_shuffles(spark, read_bytes=journals_bytes(spark, paths))
    return CachedJournals(pieces.persist())


def tallied(
    rows: pa.RecordBatch, by: Sequence[str], aggregates: dict[str, tuple[str, str]], schema: pa.Schema
) -> pa.RecordBatch:
    """Aggregates by `by`. `aggregates`: by name, the column, and one of Arrow's functions."""
    table = pa.Table.from_batches([rows]).group_by(list(by), use_threads=False)
    totals = table.aggregate(list(aggregates.values())).combine_chunks()
    columns = {name: totals[f"{column}_{function}"] for name, (column, function) in aggregates.items()}
    columns |= {name: totals[name] for name in by}
    return pa.RecordBatch.from_arrays(
        [
            pa.concat_arrays(columns[field.name].chunks).cast(field.type)
            if columns[field.name].num_chunks
            else pa.array([], field.type)
            for field in schema
        ],
        schema=schema,
    )


def packed(part: int, rows: pa.RecordBatch) -> pa.RecordBatch:
    """A row of PIECES."""
    columns = [pa.array([part], pa.int32()), pa.array([to_bytes(rows)], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=PIECES_IN_ARROW)


def unpacked(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in pieces:
        for piece in batch["rows"]:
            yield from pa.ipc.open_stream(piece.as_buffer())


@dataclass(frozen=True, slots=True)
class JournalCache:
    """`reading.Step`: PIECES, of the records of `groups` these columns."""

    published: tuple[str, ...]
    delivered: tuple[str, ...]
    groups: tuple[str, ...]

    def __call__(self, parsed: Parsed) -> Iterator[pa.RecordBatch]:
        for kind, batches, columns in (
            (_PUBLISHED, parsed.published, self.published),
            (_DELIVERED, parsed.delivered, self.delivered),
        ):
            for batch in batches:
                selected = self._of_groups(batch)
                if selected.num_rows:
                    yield packed(kind, selected.select(list(columns)))
        for batch in parsed.broken:
            yield packed(_BROKEN, batch.cast(arrow_schema(BROKEN)))

    def _of_groups(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.filter(pc.is_in(batch["group"], pa.array(self.groups))) if self.groups else batch
