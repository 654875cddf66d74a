"""Groups and lines of journals: the reason if a job finds no record in them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lbg_core.counted_nouns import counted
from lbg_pipeline.errors import NoRecords
from lbg_pipeline.journal.parse import Parsed
from lbg_pipeline.journal.scan import journal_files, scan_journals
from lbg_pipeline.schemas import arrow_schema

_COUNTED = StructType([StructField("group", StringType()), StructField("lines", LongType(), nullable=False)])
"""Lines of a group; of no group those that are not records."""

_NAMED = 10
"""Groups in a message."""


@dataclass(frozen=True, slots=True)
class Contents:
    """`groups` have records."""

    paths: Sequence[str]
    files: int = 0
    broken_lines: int = 0
    groups: Sequence[str] = ()

    def without(self, group: str) -> str:
        """Reason for nothing of `group`."""
        more = len(self.groups) - _NAMED
        listed = ", ".join(self.groups[:_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"no record of group {group} in {self._where()}, but of {listed}"

    def empty(self) -> str:
        """Reason for nothing at all."""
        broken = counted(self.broken_lines, "line is", "lines are")
        return f"no record in {self._where()}" + (f": {broken} broken" if self.broken_lines else "")

    def _where(self) -> str:
        return f"{counted(self.files, 'file')} of {', '.join(self.paths)}"


def contents_of(spark: SparkSession, paths: Sequence[str]) -> Contents:
    """Reads all of them. Raises JournalNotFound."""
    rows = (
        scan_journals(spark, paths, _count, _COUNTED)
        .groupBy("group")
        .agg(F.sum("lines").alias("lines"))
        .collect()
    )
    lines = {row["group"]: int(row["lines"]) for row in rows}
    broken = lines.pop(None, 0)
    return Contents(paths, len(journal_files(spark, paths)), broken, sorted(lines))


def require_groups(
    spark: SparkSession, paths: Sequence[str], wanted: Sequence[str], found: Collection[str]
) -> None:
    """Raises NoRecords unless the job has `found` something, and all groups that are `wanted`."""
    missing = [group for group in wanted if group not in found]
    if found and not missing:
        return
    contents = contents_of(spark, paths)
    if contents.groups and missing:
        raise NoRecords(f"{contents.without(missing[0])}: correct --group")
    raise NoRecords(f"{contents.empty()}: give other journals with --journal")


def _count(parsed: Parsed) -> Iterator[pa.RecordBatch]:
    for batch in (*parsed.published, *parsed.delivered):
        for one in pc.value_counts(batch["group"]).to_pylist():
            yield _row(one["values"], one["counts"])
    broken = sum(batch.num_rows for batch in parsed.broken)
    if broken:
        yield _row(None, broken)


def _row(group: str | None, lines: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"group": group, "lines": lines}], schema=arrow_schema(_COUNTED))
