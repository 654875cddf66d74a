"""Paths of journals as DataFrames, and the share of them that each task reads.

A worker opens files that lie on its machine itself: nine tenths of a journal's bytes are names and punctuation, which
so never pass through the JVM. Object stores and compressed files are read by Spark, line by line (ADR 0035).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lbg_pipeline.errors import JournalNotFound
from lbg_pipeline.journal.parse import Parsed, parse
from lbg_pipeline.schemas import BROKEN, DELIVERED, PUBLISHED

BLOCK_BYTES = 4 << 20
"""Parsed at once: large enough that the cost of a call does not show, small enough to stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """The lines of the file at `path` that begin at byte `start` or later and before byte `end`."""

    path: str
    start: int
    end: int


def blocks_of(part: Part) -> Iterator[bytes]:
    """Blocks that end with a whole line; the last line of a file may lack its newline."""
    with open(part.path, "rb") as file:
        at = _first_line_start(file, part.start)
        while at < part.end:
            file.seek(at)
            block = file.read(min(BLOCK_BYTES, part.end - at))
            if not block:
                return
            if not block.endswith(b"\n"):
                block += file.readline()
            at += len(block)
            yield block


def _first_line_start(file: BinaryIO, start: int) -> int:
    """Offset of the first line of the part; a line that begins before `start` belongs to the part before."""
    if start == 0:
        return 0
    file.seek(start - 1)
    return start - 1 + len(file.readline())


SMALLEST_BYTES = 4 << 20
LARGEST_BYTES = 192 << 20
"""A task costs some forty milliseconds however little it reads. It holds one block at a time, not its share."""

TASKS_PER_CORE = 4
"""So that a core which is slower, or began later, leaves its share to the others."""

COMPRESSED = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate", ".xz")
"""Suffixes that Hadoop decompresses by a file's name."""


def local_path(url: str) -> str | None:
    """Local path at which a worker can open the file; None for files that only Spark reads: object stores, compressed
    files."""
    parsed = urlsplit(url)
    if parsed.scheme not in ("", "file") or parsed.netloc or url.endswith(COMPRESSED):
        return None
    return unquote(parsed.path)


def splits_of(paths: Sequence[str], *, cores: int) -> list[list[Part]]:
    """Everything in `paths`, as the lists of parts that one task each reads."""
    files = [(path, os.stat(path).st_size) for path in paths]
    total = sum(size for _, size in files)
    target = max(SMALLEST_BYTES, min(LARGEST_BYTES, total // (cores * TASKS_PER_CORE) + 1))
    return list(_packed(_parts(files, target), target))


def _parts(files: Iterable[tuple[str, int]], target: int) -> Iterable[Part]:
    for path, size in files:
        for start in range(0, size, target):
            yield Part(path, start, min(start + target, size))


def _packed(parts: Iterable[Part], target: int) -> Iterable[list[Part]]:
    pack: list[Part] = []
    packed = 0
    for part in parts:
        size = part.end - part.start
        if pack and packed + size > target:
            yield pack
            pack, packed = [], 0
        pack.append(part)
        packed += size
    if pack:
        yield pack


Step = Callable[[Parsed], Iterable[pa.RecordBatch]]
"""Function of a worker for each block that it has parsed."""


@dataclass(frozen=True, slots=True)
class Journals:
    """Lazy: the files are read anew for each table and each action."""

    published: DataFrame
    delivered: DataFrame
    broken: DataFrame


def read_journals(spark: SparkSession, paths: Sequence[str]) -> Journals:
    """The tables PUBLISHED, DELIVERED and BROKEN of the journals at `paths`: any URL that Spark reads.

    Raises JournalNotFound. A record of a newer version fails the first action with an error that `errors.error_of`
    converts to NewerSchema.
    """

    def table(step: Step, schema: StructType) -> DataFrame:
        return scan_journals(spark, paths, step, schema)

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
) -> DataFrame:
    """Result of `step` on every block, a table of `schema`: one reading for a job that needs more than one table."""
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
        tables.append(_scanned_locally(spark, sorted(local), step, schema))
    if remote:
        lines = spark.read.text(remote).select("value", "_metadata.file_path")
        tables.append(scan_lines(lines, step, schema))
    return tables[0] if len(tables) == 1 else tables[0].unionAll(tables[1])


def scan_lines(lines: DataFrame, step: Step, schema: StructType) -> DataFrame:
    """The same for lines that Spark has read: `lines` has the columns line and file, in this order."""

    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                yield from step(_parsed(batch))

    return lines.mapInArrow(scan, schema)


def _parsed(lines: pa.RecordBatch) -> Parsed:
    texts, files = lines.columns
    together = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts.cast(pa.binary()))
    [block] = pc.binary_join(together, b"\n").to_pylist()

    def file_of(number: int) -> str:
        return str(files[number])

    return parse(block + b"\n", file_of=file_of)


def _scanned_locally(spark: SparkSession, paths: Sequence[str], step: Step, schema: StructType) -> DataFrame:
    splits = splits_of(paths, cores=spark.sparkContext.defaultParallelism)

    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _scanned(splits[number], step)

    return spark.range(0, len(splits), 1, max(1, len(splits))).mapInArrow(scan, schema)


def _scanned(parts: Sequence[Part], step: Step) -> Iterator[pa.RecordBatch]:
    for part in parts:
        file_of = partial(_always, part.path)
        for block in blocks_of(part):
            yield from step(parse(block, file_of=file_of))


def _always(path: str, _: int) -> str:
    return path


def _files(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    names = ", ".join(paths)
    try:
        files = spark.read.text(list(paths)).inputFiles()
    except AnalysisException as error:
        raise JournalNotFound(f"{names}: {_reason(error)}") from error
    if not files:
        raise JournalNotFound(
            f"{names}: no journal found; closed journals are named *.jsonl, and names that begin with a dot or an "
            "underscore are ignored"
        )
    return list(files)


def _reason(error: AnalysisException) -> str:
    condition = error.getCondition()
    if condition == "PATH_NOT_FOUND":
        return "no such file or directory"
    return str(error).splitlines()[0]
