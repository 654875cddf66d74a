"""Paths of journals as DataFrames, and the share of them that each task reads.

A worker opens files that lie on its machine itself: nine tenths of a journal's bytes are names and punctuation, which
so never pass through the JVM. Object stores and compressed files are read by Spark, line by line (ADR 0035).
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lbg_pipeline.errors import JournalNotFound
from lbg_pipeline.journal.parse import Parsed, parse
from lbg_pipeline.schemas import BROKEN, DELIVERED, PUBLISHED, arrow_schema

BLOCK_BYTES = 4 << 20
"""Parsed at once: large enough that the cost of a call does not show, small enough to stay in a core's cache."""


@dataclass(frozen=True, slots=True)
class Part:
    """The lines of the file at `path` that begin at byte `start` or later and before byte `end`."""

    path: str
    start: int
    end: int

    @property
    def source(self) -> str:
        return f"{self.start}-{self.end} {self.path}"

    @classmethod
    def of(cls, source: str) -> Part:
        place, _, path = source.partition(" ")
        start, _, end = place.partition("-")
        return cls(path, int(start), int(end))


def blocks_of(part: Part) -> Iterator[tuple[Part, bytes]]:
    """Blocks that end with a whole line; the last line of a file may lack its newline. None of a file in UTF-16."""
    with open(part.path, "rb") as file:
        if is_utf16(file.read(4)):
            return
        at = _first_line_start(file, part.start)
        while at < part.end:
            file.seek(at)
            block = file.read(min(BLOCK_BYTES, part.end - at))
            if not block:
                return
            if not block.endswith(b"\n"):
                block += file.readline()
            yield Part(part.path, at, at + len(block)), block
            at += len(block)


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
    for url in journal_files(spark, paths):
        path = local_path(url)
        if path is None:
            remote.append(url)
        else:
            local.append(path)
    cores = spark.sparkContext.defaultParallelism
    tables = []
    if local:
        tables.append(_scanned_locally(spark, splits_of(sorted(local), cores=cores), step, schema))
    if remote:
        tables.append(_scanned_by_spark(spark, remote, step, schema))
    return tables[0] if len(tables) == 1 else tables[0].unionAll(tables[1])


def scan_sources(spark: SparkSession, sources: Iterable[str], step: Step, schema: StructType) -> DataFrame:
    """The same for blocks that were read before: `Parsed.source` of each, at least one."""
    parts = [Part.of(source) for source in sorted(sources)]
    local = [[part] for part in parts if local_path(part.path) is not None]
    remote = [part.path for part in parts if local_path(part.path) is None]
    tables = [_scanned_locally(spark, local, step, schema)] if local else []
    tables += [_scanned_by_spark(spark, remote, step, schema)] if remote else []
    return tables[0] if len(tables) == 1 else tables[0].unionAll(tables[1])


def _scanned_by_spark(spark: SparkSession, urls: Sequence[str], step: Step, schema: StructType) -> DataFrame:
    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reading: _FileLines | None = None
        for batch in batches:
            texts, files, starts = batch.columns
            is_new = pc.not_equal(files.slice(1), files.slice(0, max(0, len(files) - 1)))
            begins = [0, *(np.flatnonzero(is_new) + 1).tolist(), len(files)]
            for begin, end in pairwise(begins if len(files) else []):
                if reading is None or reading.path != files[begin].as_py():
                    reading = _FileLines(files[begin].as_py(), 1 if starts[begin].as_py() == 0 else None)
                if (parsed := reading.parsed(texts.slice(begin, end - begin))) is not None:
                    yield from step(parsed)

    files = spark.read.text([literal(unquote(url)) for url in urls])
    lines = files.select("value", "_metadata.file_path", "_metadata.file_block_start")
    return lines.mapInArrow(scan, schema)


@dataclass(slots=True)
class _FileLines:
    """Progress of a file that Spark reads. `line`: the number of the next one, None if Spark began within the file."""

    path: str
    line: int | None
    is_utf16: bool = False

    def parsed(self, texts: pa.Array) -> Parsed | None:
        together = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts.cast(pa.binary()))
        [block] = pc.binary_join(together, b"\n").to_pylist()
        line = self.line
        self.line = None if line is None else line + len(texts)
        if line == 1 and is_utf16(block):
            self.is_utf16 = True
            return _utf16(self.path)
        if self.is_utf16:
            return None
        return _parsed(Part(self.path, 0, 0), block + b"\n", lambda: line)


def _scanned_locally(
    spark: SparkSession, splits: Sequence[Sequence[Part]], step: Step, schema: StructType
) -> DataFrame:
    def scan(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _scanned(splits[number], step)

    return spark.range(0, len(splits), 1, max(1, len(splits))).mapInArrow(scan, schema)


def _scanned(parts: Sequence[Part], step: Step) -> Iterator[pa.RecordBatch]:
    for part in parts:
        if part.start == 0 and is_utf16(_head(part.path)):
            yield from step(_utf16(part.path))
        for block, lines in blocks_of(part):
            yield from step(_parsed(block, lines, partial(_line_at, block)))


def _parsed(part: Part, block: bytes, line_at: Callable[[], int | None]) -> Parsed:
    """`line_at`: number in the file of the first line of the block, None if it is unknown."""
    parsed = replace(parse(block, file_of=lambda _: part.path), source=part.source)
    if not parsed.broken:
        return parsed
    line = line_at()
    before = pa.scalar(None if line is None else line - 1, pa.int64())
    at = BROKEN.names.index("line")
    broken = [
        batch.set_column(at, batch.schema.field(at), pc.add(batch.column(at), before))
        for batch in parsed.broken
    ]
    return replace(parsed, broken=broken)


def _line_at(block: Part) -> int:
    """Reads all of the file before the block, as only a broken line is worth."""
    with open(block.path, "rb") as file:
        left, lines = block.start, 1
        while left and (text := file.read(min(left, BLOCK_BYTES))):
            left -= len(text)
            lines += text.count(b"\n")
    return lines


def _head(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(4)


def is_utf16(head: bytes) -> bool:
    """True for the first bytes of a file in UTF-16, with or without a mark of its order of bytes."""
    return head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or b"\0" in head[:2]


def _utf16(path: str) -> Parsed:
    reason = "this file is UTF-16: convert it to UTF-8"
    row = {"file": path, "line": 1, "text": "", "reason": reason}
    return Parsed([], [], [pa.RecordBatch.from_pylist([row], schema=arrow_schema(BROKEN))])


def journal_files(spark: SparkSession, paths: Sequence[str]) -> list[str]:
    """URLs of the files at `paths`: files, those in a directory, and in its subdirectories, which may hold anything,
    those that are named *.jsonl with or without more endings. Raises JournalNotFound."""
    table = _texts(spark, paths)
    at_paths = _location_of(table).rootPaths()
    roots = {_plain(path) for path in at_paths.mkString("\n").split("\n")}

    def is_journal(url: str) -> bool:
        directory, _, name = url.rpartition("/")
        return ".jsonl" in name or not roots.isdisjoint((_plain(url), _plain(directory)))

    files = [url for url in table.inputFiles() if is_journal(url)]
    if not files:
        raise JournalNotFound(
            f"{', '.join(paths)}: no journal found; closed journals are named *.jsonl, and names that begin with a "
            "dot or an underscore are ignored"
        )
    return files


def journals_bytes(spark: SparkSession, paths: Sequence[str]) -> int:
    """Size of the files at `paths`, as they are stored. Raises JournalNotFound."""
    return int(_location_of(_texts(spark, paths)).sizeInBytes())


def _location_of(table: DataFrame) -> Any:
    """Spark's index of the files that a table reads."""
    return table._jdf.queryExecution().analyzed().relation().location()


def _texts(spark: SparkSession, paths: Sequence[str]) -> DataFrame:
    try:
        return spark.read.option("recursiveFileLookup", True).text(list(paths))
    except AnalysisException as error:
        raise JournalNotFound(f"{', '.join(paths)}: {_reason(error)}") from error


def literal(path: str) -> str:
    """The path as a glob that matches nothing else."""
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", path)


def _plain(url: str) -> str:
    """Hadoop writes URLs with and without quotes, and with one slash or three."""
    return unquote(url).replace(":///", ":/", 1)


def _reason(error: AnalysisException) -> str:
    condition = error.getCondition()
    if condition == "PATH_NOT_FOUND":
        return "no such file or directory"
    return str(error).splitlines()[0]
