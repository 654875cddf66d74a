"""Load of a group's keys and hashes, aggregated by Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from lbg_core.group import SpecError, hash_of
from lbg_pipeline.errors import PlanRefused
from lbg_pipeline.journal.cached import CachedJournals, tallied
from lbg_pipeline.plan.manifest import Stamp
from lbg_pipeline.plan.simulate import Demand
from lbg_pipeline.schemas import arrow_schema

LOADS = StructType(
    [
        StructField("hash_count", IntegerType(), nullable=False),
        StructField("slice", LongType(), nullable=False),
        StructField(
            "hash", IntegerType()
        ),  # null: messages without a key, or with one that the function does not accept
        StructField("is_keyless", LongType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
        StructField("busy_us", LongType(), nullable=False),
    ]
)


def hashes_of(key: Column, hash_counts: Sequence[int], function: str) -> Column:
    """An array: the hash of `key` for each count, all null for a key that `function` does not accept.

    Spark's crc32 is the same function as ours (tests/pipeline/plan/test_observed_work.py), and runs without Python.
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


MINUTE_US = 60_000_000

WHOLE = 0
"""The slice that is all that was observed; 1, 2 … are its busiest minutes."""

COUNTED = StructType(
    [
        StructField("group", StringType(), nullable=False),
        StructField("key", StringType()),
        StructField("minute", LongType(), nullable=False),
        StructField("messages", LongType(), nullable=False),
        StructField("timed", LongType(), nullable=False),  # those of them whose service time is known
        StructField("busy_us", LongType(), nullable=False),  # of these
        StructField("first_us", LongType(), nullable=False),  # when they were published
        StructField("last_us", LongType(), nullable=False),
        StructField("hash", IntegerType(), nullable=False),  # that the key has got
        StructField("queue", IntegerType(), nullable=False),  # the highest of those that it was in
        StructField("mode", StringType()),  # that members told; null of what was published
    ]
)

WORK = StructType(
    [
        StructField("key", StringType()),  # null: messages without one, which go anywhere
        StructField("minute", LongType(), nullable=False),  # in which they were published, since the epoch
        StructField("messages", LongType(), nullable=False),
        StructField("busy_us", LongType(), nullable=False),  # their service times
    ]
)

KEYS = StructType(
    [
        StructField("key", StringType()),
        StructField("messages", LongType(), nullable=False),
        StructField("busy_us", LongType(), nullable=False),
        StructField("peak_minute_messages", LongType(), nullable=False),
        StructField("peak_minute_busy_us", LongType(), nullable=False),  # of the key's own busiest minute
    ]
)

SLICES = StructType(
    [
        StructField("slice", LongType(), nullable=False),
        StructField("key", StringType()),
        StructField("messages", LongType(), nullable=False),
        StructField("busy_us", LongType(), nullable=False),
    ]
)


def counted_delivered(journals: CachedJournals, *, is_timed: bool = True) -> DataFrame:
    """COUNTED, of the deliveries that an application has worked off. A message processed twice after a crash was work
    twice.

    A service time that the journal does not have is null, and with `is_timed` false every one is. Clocks that are set
    back make it 0, not less.
    """

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        done = rows.filter(pc.is_in(rows["verdict"], pa.array(["ack", "dead"])))
        elapsed_us = pc.subtract(done["finished_at_us"], done["started_at_us"])
        service_us = (
            pc.max_element_wise(elapsed_us, 0, skip_nulls=False)
            if is_timed
            else pa.nulls(len(elapsed_us), pa.int64())
        )
        yield _counted(done.append_column("service_us", service_us))

    return _together(journals.delivered(count, COUNTED))


def counted_published(journals: CachedJournals) -> DataFrame:
    """COUNTED, of published messages, without service times."""

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        rows = rows.append_column("service_us", pa.nulls(rows.num_rows, pa.int64()))
        yield _counted(rows.append_column("mode", pa.nulls(rows.num_rows, pa.string())))

    return _together(journals.published(count, COUNTED))


def _counted(rows: pa.RecordBatch) -> pa.RecordBatch:
    """By the minute in which a message was published: the demand, also while members are too few and late."""
    minute = rows["published_at_us"].to_numpy() // MINUTE_US
    rows = rows.append_column("minute", pa.array(minute))
    rows = rows.append_column("known_us", pc.fill_null(rows["service_us"], 0))
    aggregates = {
        "messages": ("published_at_us", "count"),
        "timed": ("service_us", "count"),
        "busy_us": ("known_us", "sum"),
        "first_us": ("published_at_us", "min"),
        "last_us": ("published_at_us", "max"),
        "hash": ("hash", "max"),
        "queue": ("queue", "max"),
    }
    return tallied(rows, ("group", "key", "minute", "mode"), aggregates, arrow_schema(COUNTED))


def _together(parts: DataFrame) -> DataFrame:
    highest = (F.max(name).alias(name) for name in ("hash", "queue", "mode"))
    return parts.groupBy("group", "key", "minute").agg(
        *(F.sum(name).alias(name) for name in ("messages", "timed", "busy_us")),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
        *highest,
    )


def totals(counted: DataFrame) -> DataFrame:
    """For each group its messages, those without a key, those timed and their busy_us, first_us and last_us."""
    keyless = F.when(F.col("key").isNull(), F.col("messages")).otherwise(0)
    return counted.groupBy("group").agg(
        F.sum("messages").alias("messages"),
        F.sum(keyless).alias("keyless"),
        F.sum("timed").alias("timed"),
        F.sum("busy_us").alias("busy_us"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
    )


def work(counted: DataFrame, untimed_us: float) -> DataFrame:
    """WORK of COUNTED of one group: a message without a service time counts as `untimed_us`."""
    untimed = (F.col("messages") - F.col("timed")) * F.lit(untimed_us)
    busy_us = F.col("busy_us") + F.round(untimed).cast("long")
    return counted.select("key", "minute", "messages", busy_us.alias("busy_us"))


def keys(work: DataFrame) -> DataFrame:
    """KEYS."""
    return work.groupBy("key").agg(
        F.sum("messages").alias("messages"),
        F.sum("busy_us").alias("busy_us"),
        F.max("messages").alias("peak_minute_messages"),
        F.max("busy_us").alias("peak_minute_busy_us"),
    )


def busiest_minutes(work: DataFrame, count: int) -> DataFrame:
    """minute, messages, busy_us of the group's `count` busiest minutes, the busiest first."""
    sums = work.groupBy("minute").agg(F.sum("messages").alias("messages"), F.sum("busy_us").alias("busy_us"))
    return sums.orderBy(F.desc("busy_us"), F.desc("messages"), "minute").limit(count)


def slices(keys: DataFrame, work: DataFrame, minutes: list[int]) -> DataFrame:
    """SLICES: each key over all that was observed, and in each of these minutes in which it had messages."""
    numbered = [F.when(F.col("minute") == minute, F.lit(number)) for number, minute in enumerate(minutes, 1)]
    of_minutes = (
        work.where(F.col("minute").isin(minutes)).select(
            F.coalesce(*numbered).cast("long").alias("slice"), "key", "messages", "busy_us"
        )
        if numbered
        else None
    )
    whole = keys.select(F.lit(WHOLE).cast("long").alias("slice"), "key", "messages", "busy_us")
    return reduce(DataFrame.unionByName, [one for one in (whole, of_minutes) if one is not None])


def servable(slices: DataFrame, *, whole_us: float, minute_us: float) -> DataFrame:
    """SLICES without the work that no member can do in time: a key has one call at a time. `whole_us` and `minute_us`
    are how long the slices are."""
    length_us = F.when(F.col("slice") == WHOLE, whole_us).otherwise(minute_us).cast("long")
    busy_us = F.when(F.col("key").isNull(), F.col("busy_us")).otherwise(F.least(F.col("busy_us"), length_us))
    return slices.withColumn("busy_us", busy_us)


BUSIEST_MINUTES = 10
"""In more than one of them, so that a chance of a single minute does not decide."""

_STAMPS = 10_000
_NAMED = 10
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Observed:
    """Load of one group, from its journals. Its tables lie in Spark's memory; `release` them in the end.

    - `span_us`: from the first message that was published to the last.
    - `service_time_us`: of a message in the mean.
    - `minutes`: the busiest, counted from the epoch.
    - `stamps`: some of its keys, with the hash and queue that they have got; `modes`: of their deliveries.
    """

    group: str
    counted: DataFrame
    work: DataFrame
    keys: DataFrame
    span_us: int
    messages: int
    keyless: int
    service_time_us: float
    minutes: tuple[int, ...]
    modes: tuple[str, ...]
    stamps: tuple[Stamp, ...]

    @property
    def peak_span_us(self) -> int:
        """Length of an observed minute, in microseconds."""
        return min(MINUTE_US, self.span_us)

    def release(self) -> None:
        self.keys.unpersist()
        self.counted.unpersist()


def observe(
    journals: CachedJournals,
    *,
    group: str | None = None,
    service_time_us: float | None = None,
) -> Observed:
    """Of `group`, or of the only one there is. Processed messages have their service times; without any, or with
    `service_time_us`, each message costs that. Raises PlanRefused."""
    is_timed = service_time_us is None
    for counted in (counted_delivered(journals, is_timed=is_timed), counted_published(journals)):
        selected = (counted if group is None else counted.where(F.col("group") == group)).persist()
        groups = totals(selected).collect()
        if groups:
            break
        selected.unpersist()
    total = _only(groups, group, journals)
    if service_time_us is None and total["timed"] == 0:
        selected.unpersist()
        raise PlanRefused(
            "the journals have no service times: add those of members with --journal, or give "
            "--service-time MILLISECONDS"
        )
    mean_us = float(service_time_us if service_time_us is not None else total["busy_us"] / total["timed"])
    worked = work(selected.where(F.col("group") == total["group"]), mean_us)
    minutes = [row["minute"] for row in busiest_minutes(worked, BUSIEST_MINUTES).collect()]
    keyed = selected.where((F.col("group") == total["group"]) & F.col("key").isNotNull())
    rows = keyed.select("key", "hash", "queue", "mode").limit(_STAMPS).collect()
    return Observed(
        group=total["group"],
        counted=selected,
        work=worked,
        keys=keys(worked).persist(),
        span_us=max(_SECOND_US, total["last_us"] - total["first_us"]),
        messages=total["messages"],
        keyless=total["keyless"],
        service_time_us=mean_us,
        minutes=tuple(minutes),
        modes=tuple(sorted({row["mode"] for row in rows} - {None})),
        stamps=tuple({row["key"]: Stamp(row["key"], row["hash"], row["queue"]) for row in rows}.values()),
    )


def _only(groups: Sequence[Row], group: str | None, journals: CachedJournals) -> Row:
    if len(groups) == 1:
        return groups[0]
    if groups:
        raise PlanRefused(f"the journals have the groups {_listed(groups)}: name one of them with --group")
    others = [
        one
        for each in (counted_published(journals), counted_delivered(journals))
        for one in totals(each).collect()
    ]
    if group is not None and others:
        raise PlanRefused(
            f"the journals have no messages of group {group}, but of {_listed(others)}: correct --group, or the "
            "manifest (`kubectl get lbg NAME -o yaml` has the group's name)"
        )
    raise PlanRefused("the journals have no messages to plan with: give others with --journal")


def _listed(groups: Sequence[Row]) -> str:
    names = sorted({row["group"] for row in groups})
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def demands(
    observed: Observed, hash_counts: Sequence[int], function: str, *, growth: float, has_order: bool = True
) -> list[Demand]:
    """One for each count, in one pass over the keys. Where keys have order, one that is too hot counts as the one call
    that it can have: the rest of it cannot be planned. Raises PlanRefused for keys that `function` does not
    accept."""
    sliced = slices(observed.keys, observed.work, list(observed.minutes))
    if has_order:
        sliced = servable(
            sliced, whole_us=observed.span_us / growth, minute_us=observed.peak_span_us / growth
        )
    table = loads(sliced, hash_counts, function).toArrow()
    columns = {name: table.column(name).to_numpy() for name in table.column_names if name != "hash"}
    hashes = table.column("hash").fill_null(-1).to_numpy()
    lost = (hashes < 0) & (columns["is_keyless"] == 0)
    if lost.any():
        raise PlanRefused(
            f"--function {function} is for whole numbers, and some of the keys are not: omit it to "
            "plan with the group's own function"
        )
    rows = 1 + len(observed.minutes)
    spans_us = np.full((rows, 1), float(observed.peak_span_us))
    spans_us[WHOLE] = observed.span_us
    return [_demand(count, hashes, columns, rows=rows, scale=growth / spans_us) for count in hash_counts]


def _demand(
    hash_count: int,
    hashes: np.ndarray[tuple[int], np.dtype[np.int64]],
    columns: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]],
    *,
    rows: int,
    scale: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> Demand:
    """Messages without a key get a hash by chance: each hash has its share of them."""
    mine = columns["hash_count"] == hash_count
    keyed, keyless = mine & (hashes >= 0), mine & (hashes < 0)
    tables = []
    for name in ("busy_us", "messages"):
        table = np.zeros((rows, hash_count))
        np.add.at(table, (columns["slice"][keyed], hashes[keyed]), columns[name][keyed])
        np.add.at(table, columns["slice"][keyless], columns[name][keyless, None] / hash_count)
        tables.append(table * scale)
    calls, messages = tables
    return Demand(hash_count, calls, messages * 1_000_000)
