"""Keys of a DataFrame to their hashes, by the functions that publishers use."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import ArrayType, IntegerType, LongType, StructField, StructType

from lbg_broker.group import SpecError, hash_of

LOADS = StructType(
    [
        StructField("hash_count", IntegerType(), nullable=False),
        StructField("slice", LongType(), nullable=False),
        StructField(
            "hash", IntegerType()
        ),  # null: messages without a key, or with one that the function cannot take
        StructField("is_keyless", LongType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
        StructField("busy_us", LongType(), nullable=False),
    ]
)


def hashes_of(key: Column, hash_counts: Sequence[int], function: str) -> Column:
    """An array: the hash of `key` for each count, all null for a key that `function` cannot take.

    Spark's crc32 is the same function as ours (tests/pipeline/plan/test_hashes.py), and spares a way to Python.
    """
    if function == "crc32":
        return F.array(*(F.pmod(F.crc32(key), F.lit(count)).cast("int") for count in hash_counts))
    counts = tuple(hash_counts)

    def hashed(keys: pd.Series) -> pd.Series:
        return keys.map(lambda key: _hashes(key, counts, function))

    udf = pandas_udf(hashed, ArrayType(IntegerType()))  # type: ignore[call-overload]  # pandas is not followed
    return udf(key)  # type: ignore[no-any-return]  # as above


def _hashes(key: str | None, counts: Sequence[int], function: str) -> list[int | None]:
    if key is None:
        return [None] * len(counts)
    try:
        return [hash_of(key, count, function) for count in counts]
    except SpecError:
        return [None] * len(counts)


def loads(slices: DataFrame, hash_counts: Sequence[int], function: str) -> DataFrame:
    """LOADS: for each count at most as many rows in a slice as there are hashes, however many keys there are."""
    counts = F.array(*(F.lit(count) for count in hash_counts))
    zipped = F.arrays_zip(counts.alias("hash_count"), F.col("hashes").alias("hash"))
    return (
        slices.withColumn("hashes", hashes_of(F.col("key"), hash_counts, function))
        .select(
            F.explode(zipped).alias("hashed"),
            "slice",
            F.col("key").isNull().cast("long").alias("is_keyless"),
            "messages",
            "busy_us",
        )
        .groupBy(
            F.col("hashed.hash_count").alias("hash_count"),
            "slice",
            F.col("hashed.hash").alias("hash"),
            "is_keyless",
        )
        .agg(F.sum("messages").alias("messages"), F.sum("busy_us").alias("busy_us"))
    )
