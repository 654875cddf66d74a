"""Records as the tables that the pipeline's transforms take, and what they give as plain rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lbg_core.group import DeliveredRecord, PublishedRecord, encode
from lbg_pipeline.journal.cached import PIECES, CachedJournals, JournalCache
from lbg_pipeline.journal.parse import parse
from lbg_pipeline.schemas import DELIVERED, PUBLISHED


def published_table(spark: SparkSession, records: Iterable[PublishedRecord]) -> DataFrame:
    return _table(spark, records, PUBLISHED)


def delivered_table(spark: SparkSession, records: Iterable[DeliveredRecord]) -> DataFrame:
    return _table(spark, records, DELIVERED)


def kept_records(
    spark: SparkSession, records: Iterable[PublishedRecord | DeliveredRecord], *, block: int = 3
) -> CachedJournals:
    """As `cache_journals` has them of a journal of these, all columns, of which `block` lines are read at once."""
    keeping = JournalCache(tuple(PUBLISHED.names), tuple(DELIVERED.names), ())
    lines = [encode(one).encode() for one in records]
    blocks = [b"".join(lines[first : first + block]) for first in range(0, len(lines), block)]
    pieces = [
        tuple(row.values())
        for one in blocks
        for batch in keeping(parse(one, file_of=lambda line: "journal"))
        for row in batch.to_pylist()
    ]
    return CachedJournals(spark.createDataFrame(pieces, PIECES).persist())


def _table(spark: SparkSession, records: Iterable[Any], schema: StructType) -> DataFrame:
    names = [("hash_" if name == "hash" else name) for name in schema.fieldNames()]
    defaults = {"group": "unnamed", "mode": "Exclusive"}
    rows = [
        tuple(defaults.get(name) if (value := getattr(one, name)) is None else value for name in names)
        for one in records
    ]
    return spark.createDataFrame(rows, schema)


def rows(table: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """The columns called `names`, by default all, sorted."""
    return sorted(map(tuple, table.select(*(names or table.columns)).collect()), key=repr)
