"""Percentiles of every metric, from the whole group down to a member's minute on a queue.

The deliveries of a minute come together in one task. Its histograms say all that is asked of the minute; of what is
longer than that they are parts, which are added up in a second step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..keeping import PIECES, Kept
from .counting import FOUND, PERCENTILES, of_minutes, of_parts
from .histograms import SIZE
from .places import SCOPES, by_minute, measured_got, measured_sent


def of_minutes_and_parts(kept: Kept, interval_us: int) -> DataFrame:
    """FOUND of minutes, and the parts of everything else. Read twice: keep it."""
    lanes = int(str(kept.pieces.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    sent = kept.published(lambda rows: by_minute(measured_sent(rows), lanes), PIECES)
    got = kept.delivered(lambda rows: by_minute(measured_got(rows), lanes), PIECES)

    def count(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return of_minutes(pieces, interval_us, lanes)

    return sent.unionAll(got).repartition(lanes, "part").mapInArrow(count, FOUND)


def measured(minutes: DataFrame) -> DataFrame:
    """FOUND of every scope, without its parts, and with the unit of the metric."""
    parts = minutes.where(F.col("rows").isNotNull()).select(*PIECES.names)
    lanes = int(str(minutes.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    together = parts.repartition(lanes, "part").mapInArrow(of_parts, FOUND)
    unit = F.when(F.col("metric") == SIZE, "bytes").otherwise("us")
    found = minutes.where(F.col("rows").isNull()).unionAll(together)
    return found.drop(*PIECES.names).withColumn("unit", unit)


def latencies(measured: DataFrame) -> DataFrame:
    """Table `latencies`."""
    return measured.where(F.col("scope").isin([scope for scope in SCOPES if scope != "interval"])).select(
        *("scope", "group", "queue", "member"),
        F.timestamp_micros("at_us").alias("minute"),
        *("metric", "unit", *PERCENTILES),
    )
