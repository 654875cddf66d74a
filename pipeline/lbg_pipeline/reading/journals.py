"""Paths of journals as DataFrames.

A worker opens files that lie on its machine itself: nine tenths of a journal's bytes are names and punctuation, which
so never pass through the JVM. Object stores and compressed files are read by Spark, line by line (ADR 0035).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lbg_pipeline.errors import JournalNotFound
from lbg_pipeline.schemas import BROKEN, DELIVERED, PUBLISHED

from .blocks import Part, blocks_of
from .parsing import Parsed, parse
from .splits import local_path, splits_of

DEFAULT_GROUP = "unnamed"

Step = Callable[[Parsed], Iterable[pa.RecordBatch]]
"""What a worker does with each block that it has parsed."""


@dataclass(frozen=True, slots=True)
class Journals:
    """Lazy: the files are read anew for each table and each action."""

    published: DataFrame
    delivered: DataFrame
    broken: DataFrame


def read_journals(
    spark: SparkSession, paths: Sequence[str], *, default_group: str = DEFAULT_GROUP
) -> Journals:
    """The tables PUBLISHED, DELIVERED and BROKEN of the journals at `paths`: whatever Spark reads.

    Raises JournalNotFound. A record of a newer version ends the first action with what `errors.told_by` makes
    NewerSchema of.
    """

    def table(step: Step, schema: StructType) -> DataFrame:
        return scan_journals(spark, paths, step, schema, default_group=default_group)

    return Journals(
        published=table(lambda parsed: parsed.published, PUBLISHED),
        delivered=table(lambda parsed: parsed.delivered, DELIVERED),
        broken=table(lambda parsed: parsed.broken, BROKEN),
    )


def scan_journals(
    spark: SparkSession,
    paths: Sequence[str],
    step: Step,
    schema: StructType,
    *,
    default_group: str = DEFAULT_GROUP,
) -> DataFrame:
    """What `step` makes of every block, a table of `schema`: one reading for a job that needs more than one table."""
    local: list[str] = []
    remote: list[str] = []
    for url in _files(spark, paths):
        path = local_path(url)
        if path is None:
            remote.append(url)
        else:
            local.append(path)
    tables = []
    if local:
        tables.append(_scanned_locally(spark, sorted(local), step, schema, default_group))
    if remote:
        lines = spark.read.text(remote).select("value", "_metadata.file_path")
        tables.append(scan_lines(lines, step, schema, default_group=default_group))
    return tables[0] if len(tables) == 1 else tables[0].unionAll(tables[1])


def scan_lines(
    lines: DataFrame, step: Step, schema: StructType, *, default_group: str = DEFAULT_GROUP
) -> DataFrame:
    """The same for lines that Spark has read: `lines` has the columns line and file, in this order."""

    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from step(_parsed(batch, default_group))

    return lines.mapInArrow(scan, schema)


def _parsed(lines: pa.RecordBatch, default_group: str) -> Parsed:
    texts, files = lines.columns
    together = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts.cast(pa.binary()))
    [block] = pc.binary_join(together, b"\n").to_pylist()

    def file_of(number: int) -> str:
        return str(files[number])

    return parse(block + b"\n", file_of=file_of, default_group=default_group)


def _scanned_locally(
    spark: SparkSession, paths: Sequence[str], step: Step, schema: StructType, default_group: str
) -> DataFrame:
    splits = splits_of(paths, cores=spark.sparkContext.defaultParallelism)

    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _scanned(splits[number], step, default_group)

    return spark.range(0, len(splits), 1, max(1, len(splits))).mapInArrow(scan, schema)


def _scanned(parts: Sequence[Part], step: Step, default_group: str) -> Iterator[pa.RecordBatch]:
    for part in parts:
        file_of = partial(_always, part.path)
        for block in blocks_of(part):
            yield from step(parse(block, file_of=file_of, default_group=default_group))


def _always(path: str, _: int) -> str:
    return path


def _files(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    told = ", ".join(paths)
    try:
        files = spark.read.text(list(paths)).inputFiles()
    except AnalysisException as error:
        raise JournalNotFound(f"{told}: {_reason(error)}") from error
    if not files:
        raise JournalNotFound(
            f"{told}: no journal there; closed journals are called *.jsonl, and names that begin with a dot or an "
            "underscore are passed over"
        )
    return list(files)


def _reason(error: AnalysisException) -> str:
    condition = error.getCondition()
    if condition == "PATH_NOT_FOUND":
        return "there is no such file or directory"
    return str(error).splitlines()[0]
