"""Profile of a group, its time spans, and the few rows that its page shows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lbg_pipeline.journal.cached import CachedJournals, tallied
from lbg_pipeline.profile.histograms import CONFIRM
from lbg_pipeline.profile.latencies import latencies, measured, of_minutes_and_parts
from lbg_pipeline.profile.skew import loads, lorenz, skew
from lbg_pipeline.profile.tables import (
    MINUTE_US,
    VERDICTS,
    demand,
    handoffs,
    keys,
    rates,
    shards,
    start_of,
    summed,
    with_verdicts,
    work,
)
from lbg_pipeline.profile.utilisation import utilisation
from lbg_pipeline.schemas import arrow_schema
from lbg_pipeline.spark.jobs import run_concurrently

PICTURED = 120
"""Intervals on the axis of time of a picture, at most: as many as a page can show distinctly."""

_SECONDS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
_DAY_US = 86_400_000_000


def _counts(*names: str) -> list[StructField]:
    return [StructField(name, LongType()) for name in names]


_PUBLISHED = StructType(
    [
        StructField("group", StringType()),
        StructField("publisher", StringType()),
        *_counts("messages", "bytes", "resends", "first_us", "last_us"),
    ]
)
_DELIVERED = StructType(
    [
        StructField("group", StringType()),
        StructField("mode", StringType()),
        *_counts("deliveries", *VERDICTS, "redelivered", "early", "first_us", "last_us"),
    ]
)


def totals_published(journals: CachedJournals) -> DataFrame:
    """Of each group: messages, bytes, publishers, resends, first_us and last_us."""
    schema = arrow_schema(_PUBLISHED)
    aggregates = {
        "messages": ("published_at_us", "count"),
        "bytes": ("body_bytes", "sum"),
        "resends": ("resends", "sum"),
        "first_us": ("published_at_us", "min"),
        "last_us": ("confirmed_at_us", "max"),
    }
    parts = journals.published(
        lambda rows: [tallied(rows, ("group", "publisher"), aggregates, schema)], _PUBLISHED
    )
    return parts.groupBy("group").agg(
        *summed("messages", "bytes"),
        F.countDistinct("publisher").alias("publishers"),
        *summed("resends"),
        F.min("first_us").alias("first_us"),
        F.max("last_us").alias("last_us"),
    )


def totals_delivered(journals: CachedJournals) -> DataFrame:
    """Of each group: deliveries, those of each verdict, redelivered, early (before they were published), mode, span."""
    schema = arrow_schema(_DELIVERED)
    counts = {name: (name, "sum") for name in (*VERDICTS, "redelivered", "early")}
    aggregates = {
        "deliveries": ("delivered_at_us", "count"),
        **counts,
        "first_us": ("delivered_at_us", "min"),
        "last_us": ("last_us", "max"),
    }

    def count(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        early = pc.less(rows["delivered_at_us"], rows["published_at_us"])
        rows = with_verdicts(rows).append_column("early", early)
        yield tallied(rows, ("group", "mode"), aggregates, schema)

    return (
        journals.delivered(count, _DELIVERED)
        .groupBy("group")
        .agg(
            *summed("deliveries", *counts),
            F.max("mode").alias("mode"),
            F.min("first_us").alias("first_us"),
            F.max("last_us").alias("last_us"),
        )
    )


def interval_us(first_us: int, last_us: int) -> int:
    """The shortest interval with a round length, of which at most PICTURED cover the span."""
    least_us = (last_us - first_us) / (PICTURED - 1)
    for seconds in _SECONDS:
        if seconds * 1_000_000 >= least_us:
            return seconds * 1_000_000
    return -(-int(least_us) // _DAY_US) * _DAY_US


def grain_us(pictured_us: int) -> int:
    """Interval from which pictures and tables by the minute can both be added up."""
    return min(pictured_us, MINUTE_US)


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of a profile, each written under its name."""

    rates: DataFrame
    demand: DataFrame
    keys: DataFrame
    latencies: DataFrame
    skew: DataFrame
    handoffs: DataFrame
    utilisation: DataFrame

    def named(self) -> dict[str, DataFrame]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Profile:
    """`work` is by intervals of `grain_us`, a divisor of a minute; `measured` has percentiles of more than is in the
    table."""

    tables: Tables
    minutes: DataFrame
    measured: DataFrame
    work: DataFrame
    shards: DataFrame
    loads: DataFrame

    def used_often(self) -> tuple[DataFrame, ...]:
        """Tables that several others are made from, worth caching."""
        tables = self.tables
        made = self.minutes, self.measured, self.work, self.shards
        return (*made, tables.keys, tables.handoffs, tables.utilisation)


def profile(journals: CachedJournals, interval_us: int) -> Profile:
    """For pictures in intervals of `interval_us`. Nothing is computed yet."""
    minutes = of_minutes_and_parts(journals, interval_us)
    percentiles = measured(minutes)
    done = work(journals, grain_us(interval_us))
    by_key, by_hash = keys(journals), shards(journals)
    borne = loads(by_key, by_hash, done)
    tables = Tables(
        rates=rates(done),
        demand=demand(journals),
        keys=by_key,
        latencies=latencies(percentiles),
        skew=skew(borne),
        handoffs=handoffs(journals),
        utilisation=utilisation(journals),
    )
    return Profile(tables, minutes, percentiles, done, by_hash, borne)


PAUSE_PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def first(table: DataFrame, limit: int, *order: Column | str) -> DataFrame:
    """The first `limit` rows of each group in this order."""
    place = F.row_number().over(Window.partitionBy("group").orderBy(*order))
    return table.withColumn("place", place).where(F.col("place") <= limit).drop("place")


def over_time(work: DataFrame, unit: str, limit: int) -> DataFrame:
    """Work in each interval by the `limit` members, or queues, that did most: group, unit, at_us, messages, busy_us."""
    totals = work.groupBy("group", unit).agg(F.sum("messages").alias("total"))
    most = first(totals, limit, F.desc("total"), unit).select("group", unit)
    return (
        work.join(F.broadcast(most), ["group", unit])
        .groupBy("group", unit, "at_us")
        .agg(F.sum("messages").alias("messages"), F.sum("busy_us").alias("busy_us"))
    )


def made_of(loads: DataFrame, whole: str, part: str, limit: int) -> DataFrame:
    """The hottest queues with their hottest hash, or hashes with their hottest key.

    Columns: group, `whole`, messages, busy_us, parts, hottest (the part's name), hottest_messages.
    """
    wholes = loads.groupBy("group", whole).agg(
        F.sum("messages").alias("messages"),
        F.sum("busy_us").alias("busy_us"),
        F.count(F.lit(1)).alias("parts"),
        F.min_by(F.col(part).cast("string"), F.struct(-F.col("messages"), F.col(part))).alias("hottest"),
        F.max("messages").alias("hottest_messages"),
    )
    return first(wholes, limit, F.desc("messages"), whole)


def pauses(handoffs: DataFrame) -> DataFrame:
    """Exact percentiles of the pauses, with and without their idle part, by group and unit that moved."""
    waited = handoffs.withColumn("waited_us", F.col("pause_us") - F.col("idle_us"))
    return waited.groupBy("group", "unit").agg(
        F.count(F.lit(1)).alias("count"),
        *(
            F.expr(f"percentile_disc({at}) within group (order by {name}_us)").alias(f"{name}_{label}")
            for name in ("pause", "waited")
            for label, at in PAUSE_PERCENTILES.items()
        ),
        F.max("pause_us").alias("pause_greatest"),
        F.max("waited_us").alias("waited_greatest"),
    )


DETAILED_GROUPS = 12
"""Groups that are drawn: those with the most messages. Every group is in the tables."""
SHOWN_MEMBERS, SHOWN_QUEUES, SHOWN_HASHES, SHOWN_KEYS = 60, 200, 40, 20
SHOWN_RUNS, SHOWN_HANDOFFS = 600, 3000


@dataclass(slots=True)
class Digest:
    """Rows of one group for the page. Queues, hashes and keys: hottest first."""

    group: str
    interval_us: int
    first_us: int = 0
    last_us: int = 0
    published: Row | None = None
    delivered: Row | None = None
    latencies: list[Row] = field(default_factory=list)
    latencies_over_time: list[Row] = field(default_factory=list)
    densities: list[Row] = field(default_factory=list)
    published_over_time: list[Row] = field(default_factory=list)
    done_over_time: list[Row] = field(default_factory=list)
    members_over_time: list[Row] = field(default_factory=list)
    queues_over_time: list[Row] = field(default_factory=list)
    queues: list[Row] = field(default_factory=list)
    hashes: list[Row] = field(default_factory=list)
    keys: list[Row] = field(default_factory=list)
    skew: list[Row] = field(default_factory=list)
    lorenz: list[Row] = field(default_factory=list)
    pauses: list[Row] = field(default_factory=list)
    handoffs: list[Row] = field(default_factory=list)
    runs: list[Row] = field(default_factory=list)


_ORDERS = {
    "queues": ("queue",),
    "hashes": ("hash",),
    "keys": ("key", "hash"),
    "lorenz": ("share_of_count", "share_of_load"),
    "handoffs": ("at_us", "queue"),
    "runs": ("member", "first_us"),
}


def digests(
    profile: Profile, interval_us: int, published: Mapping[str, Row], delivered: Mapping[str, Row]
) -> list[Digest]:
    """Of the groups with the most messages, by name. `published` and `delivered` are their totals."""
    by_group = {group: Digest(group, interval_us) for group in sorted(_largest(published, delivered))}
    for digest in by_group.values():
        digest.published, digest.delivered = published.get(digest.group), delivered.get(digest.group)
        totals = [one for one in (digest.published, digest.delivered) if one is not None]
        digest.first_us = min(one.first_us for one in totals)
        digest.last_us = max(one.last_us for one in totals)
    _add_percentiles(profile, by_group)
    tables = {
        name: table.where(F.col("group").isin(*by_group))
        for name, table in _tables(profile, interval_us).items()
    }
    collected = run_concurrently(table.collect for table in tables.values())
    for name, rows in zip(tables, collected, strict=True):
        order = _ORDERS.get(name, ())
        # Sorted here: there are few of them, and to Spark an order is a job of its own.
        for row in sorted(rows, key=lambda row: tuple(row[column] for column in order)):
            getattr(by_group[row.group], name).append(row)
    for digest in by_group.values():
        for hottest_first in (digest.queues, digest.hashes, digest.keys):
            hottest_first.sort(key=lambda row: -row.messages)
    return list(by_group.values())


def _add_percentiles(profile: Profile, by_group: Mapping[str, Digest]) -> None:
    drawn = F.col("scope").isin("group", "interval") & F.col("group").isin(*by_group)
    for row in profile.measured.where(drawn).collect():
        digest = by_group[row.group]
        if row.scope == "interval":
            digest.latencies_over_time.append(row)
            if row.metric == CONFIRM:
                digest.published_over_time.append(row)
        else:
            digest.latencies.append(row)
            digest.densities += [Row(metric=row.metric, bin=bin_, messages=count) for bin_, count in row.bins]


def _largest(published: Mapping[str, Row], delivered: Mapping[str, Row]) -> Sequence[str]:
    sizes = dict.fromkeys(sorted({*published, *delivered}), 0)
    for group, total in published.items():
        sizes[group] = total.messages
    for group, total in delivered.items():
        sizes[group] = max(sizes[group], total.deliveries)
    return sorted(sizes, key=lambda group: -sizes[group])[:DETAILED_GROUPS]


def _tables(profile: Profile, interval_us: int) -> dict[str, DataFrame]:
    """By the name of the digest's list that each is for."""
    tables, is_queue = profile.tables, F.col("unit") == "queue"
    at = start_of("at_us", interval_us)
    work = profile.work.withColumn("at_us", at)
    with_key = tables.keys.where(F.col("key").isNotNull())
    points = lorenz(profile.loads).where(F.col("bearing") == "messages")
    return {
        "done_over_time": work.groupBy("group", "at_us").agg(F.sum("messages").alias("messages")),
        "members_over_time": over_time(work, "member", SHOWN_MEMBERS),
        "queues_over_time": over_time(work, "queue", SHOWN_QUEUES),
        "queues": made_of(profile.shards, "queue", "hash", SHOWN_QUEUES),
        "hashes": made_of(tables.keys, "hash", "key", SHOWN_HASHES),
        "keys": first(with_key, SHOWN_KEYS, F.desc("messages"), "key"),
        "skew": tables.skew,
        "lorenz": points,
        "pauses": pauses(tables.handoffs),
        "handoffs": first(tables.handoffs.where(is_queue), SHOWN_HANDOFFS, F.desc("pause_us"), "at_us"),
        "runs": first(tables.utilisation, SHOWN_RUNS, F.desc("busy_us"), "first_us"),
    }
