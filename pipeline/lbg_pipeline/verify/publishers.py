"""A second reading of publishers' journals, where the first one found messages lost or numbers in two files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from lbg_pipeline.columns import Line, coded, holds, union
from lbg_pipeline.journal import Parsed, scan_journals
from lbg_pipeline.journal.scan import Part, scan_sources
from lbg_pipeline.schemas import PUBLISHED
from lbg_pipeline.verify.settings import ValidationSettings
from lbg_pipeline.verify.tables import LOST_MESSAGES

MOST_MESSAGES = 10_000
"""In the table `lost_messages`."""

_STREAM = ("group", "publisher", "hash")
_IN_FILE = StructType([*PUBLISHED.fields, StructField("file", StringType())])


def lost_messages(spark: SparkSession, lost: DataFrame, missing_in: DataFrame) -> DataFrame:
    """LOST_MESSAGES of the first ranges of `lost`, which has some, as their publishers recorded them."""
    ranges: list[dict[str, Any]] = []
    left = MOST_MESSAGES
    for row in lost.orderBy(*_STREAM, "first").limit(MOST_MESSAGES).collect():
        last = min(row["last"], row["first"] + left - 1)
        ranges.append({**row.asDict(), "last": last})
        left -= last - row["first"] + 1
        if left == 0:
            break
    wanted = pa.Table.from_pylist(ranges, _LostStep.SCHEMA)
    chosen = F.broadcast(spark.createDataFrame(wanted)).alias("chosen")
    of_stream = [F.col(f"chosen.{name}") == F.col(f"there.{name}") for name in _STREAM]
    meets = (F.col("chosen.first") <= F.col("there.last")) & (F.col("chosen.last") >= F.col("there.first"))
    sources = (
        missing_in.alias("there").join(chosen, [*of_stream, meets]).select("source").distinct().collect()
    )
    found = scan_sources(spark, [row["source"] for row in sources], _LostStep(wanted), LOST_MESSAGES)
    # A message that was sent again may have two records.
    first = F.min(F.struct("confirmed_at_us", "published_at_us", "key")).alias("first")
    return (
        found.groupBy(*_STREAM, "seq")
        .agg(first)
        .select(*_STREAM, "seq", "first.*")
        .select(LOST_MESSAGES.names)
    )


@dataclass(frozen=True, slots=True)
class _LostStep:
    """`lbg_pipeline.journal.Step`: the published messages in these ranges of numbers."""

    ranges: pa.Table

    SCHEMA = pa.schema(
        [
            ("group", pa.string()),
            ("publisher", pa.string()),
            ("hash", pa.int32()),
            ("first", pa.int64()),
            ("last", pa.int64()),
        ]
    )

    def __call__(self, parsed: Parsed) -> Iterator[pa.RecordBatch]:
        first, last = (self.ranges[name].to_numpy() for name in ("first", "last"))
        for batch in parsed.published:
            seq = batch["seq"].to_numpy()
            (wanted, there), firsts = coded(
                *([each[name] for name in _STREAM] for each in (self.ranges, batch))
            )
            line = Line(len(firsts), (first, last, seq))
            lost = union(line.intervals(wanted, first, last))
            is_lost = holds(lost, line.place(there, seq))
            if is_lost.any():
                yield batch.select(LOST_MESSAGES.names).filter(pa.array(is_lost))


def published_copies(spark: SparkSession, files: Iterable[str], settings: ValidationSettings) -> DataFrame:
    """COPIES: records of publishers that are the same in two of these files. A message that was sent again has two
    records that differ."""

    def step(parsed: Parsed) -> Iterator[pa.RecordBatch]:
        file = Part.of(parsed.source).path
        for batch in parsed.published:
            if settings.groups is not None:
                batch = batch.filter(pc.is_in(batch["group"], pa.array(sorted(settings.groups))))
            yield batch.append_column("file", pa.repeat(file, batch.num_rows))

    records = scan_journals(spark, sorted(files), step, _IN_FILE).groupBy(*PUBLISHED.names)
    found = records.agg(F.sort_array(F.collect_set("file")).alias("files"), F.count("*").alias("records"))
    # The same record may be twice in each of them.
    surplus = F.col("records") - (F.col("records") / F.size("files")).cast("long")
    of_two = found.where(F.size("files") > 1).withColumn("surplus", surplus)
    by_files = of_two.groupBy("group", F.col("files")[0].alias("file"), F.col("files")[1].alias("other"))
    kind = F.lit("published").alias("kind")
    return by_files.agg(F.sum("surplus").alias("count")).select("group", kind, "file", "other", "count")
