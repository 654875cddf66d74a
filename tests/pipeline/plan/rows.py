"""Tables of records from what a plan looks at: key, second of publishing, service time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lbg_pipeline.journal import Parsed
from lbg_pipeline.journal.cached import PIECES, CachedJournals, JournalCache
from lbg_pipeline.schemas import DELIVERED, PUBLISHED

MINUTE = 28_333_333
"""Whole minutes since the epoch, at which the rows begin."""

START_US = MINUTE * 60_000_000


def table(spark: SparkSession, schema: StructType, *rows: tuple[Any, ...]) -> DataFrame:
    """Of the values themselves: by way of Arrow, which needs no Python worker."""
    told = [dict(zip(schema.names, row, strict=True)) for row in rows]
    return spark.createDataFrame(pa.Table.from_pylist(told, to_arrow_schema(schema)), schema)


def delivered_rows(*told: tuple[str | None, float, int, dict[str, Any]]) -> pa.RecordBatch:
    """DELIVERED: key, seconds after the start, service time in microseconds, and what else differs."""
    rows = []
    for number, (key, second, service_us, others) in enumerate(told):
        at_us = START_US + int(second * 1e6)
        row = {
            "group": "g",
            "publisher": "p",
            "key": key,
            "hash": 0,
            "queue": 0,
            "seq": number,
            "body_bytes": 100,
            "published_at_us": at_us,
            "member": 0,
            "member_name": "m",
            "incarnation": "i",
            "delivery": number,
            "redelivered": False,
            "delivered_at_us": at_us + 1000,
            "started_at_us": at_us + 2000,
            "finished_at_us": at_us + 2000 + service_us,
            "settled_at_us": at_us + 3000 + service_us,
            "attempts": 1,
            "verdict": "ack",
            "session": None,
            "sequence": None,
            "mode": "Exclusive",
            **others,
        }
        rows.append(tuple(row[name] for name in DELIVERED.names))
    return _batch(DELIVERED, rows)


def published_rows(*told: tuple[str | None, float]) -> pa.RecordBatch:
    """PUBLISHED: key, and seconds after the start."""
    rows = [
        ("g", "p", key, 0, 0, number, 100, at_us, at_us + 1000, 0)
        for number, (key, second) in enumerate(told)
        for at_us in [START_US + int(second * 1e6)]
    ]
    return _batch(PUBLISHED, rows)


def kept(
    spark: SparkSession, *, sent: pa.RecordBatch | None = None, got: pa.RecordBatch | None = None
) -> CachedJournals:
    """As if a journal had these."""
    parsed = Parsed([] if sent is None else [sent], [] if got is None else [got], [])
    keeping = JournalCache(tuple(PUBLISHED.names), tuple(DELIVERED.names), ())
    pieces = [tuple(row.values()) for batch in keeping(parsed) for row in batch.to_pylist()]
    return CachedJournals(spark.createDataFrame(pieces, PIECES))


def _batch(schema: StructType, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [dict(zip(schema.names, row, strict=True)) for row in rows], to_arrow_schema(schema)
    )
