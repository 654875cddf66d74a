"""History of demand: from journals, from profiles, or from a table of another system.

An interval without rows had none, if it lies between a group's first row and the end of the whole history; outside of
that the demand is unknown. Where rows have times of their own, the first interval of a group and the last of the
history were recorded in part, and are left out; where every time is the start of an interval, rows were counted by
interval before, and all are whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    IntegralType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lbg_pipeline.errors import HistoryRefused
from lbg_pipeline.forecast.model import ForecastSettings
from lbg_pipeline.journal.cached import cache_journals
from lbg_pipeline.schemas import DELIVERED, PUBLISHED

MINUTE_US = 60_000_000
DONE = ("ack", "dead")


@dataclass(frozen=True, slots=True)
class Measured:
    """Of one group. `concurrency` is the most that any member had at once over a minute, at least 1: the
    capacity of members that were never busy is unknown."""

    service_us: float
    concurrency: int
    messages: int


def measured_of_delivered(delivered: DataFrame) -> DataFrame:
    """For each group `messages`, `service_us` (the mean), `concurrency`. Of a call that goes on beyond its minute
    only what is inside counts for concurrency, so that one call at a time never counts as more."""
    minute_us = F.col("started_at_us") - F.pmod("started_at_us", F.lit(MINUTE_US))
    inside_us = F.least("finished_at_us", minute_us + MINUTE_US) - F.col("started_at_us")
    minutes = (
        delivered.where(F.col("verdict").isin(*DONE) & (F.col("finished_at_us") > F.col("started_at_us")))
        .groupBy("group", "member", "incarnation", minute_us.alias("minute_us"))
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum(F.col("finished_at_us") - F.col("started_at_us")).alias("busy_us"),
            F.sum(inside_us).alias("inside_us"),
        )
    )
    return minutes.groupBy("group").agg(
        F.sum("messages").alias("messages"),
        (F.sum("busy_us") / F.sum("messages")).alias("service_us"),
        F.greatest(F.lit(1), F.ceil(F.max("inside_us") / MINUTE_US)).cast("int").alias("concurrency"),
    )


def measured_of_rates(rates: DataFrame) -> DataFrame:
    """The same of table `rates` of `lbg pipeline profile`. It has the work of a minute's deliveries, whenever that
    was done, so concurrency is not in it: 1 is the safe value."""
    return (
        rates.groupBy("group")
        .agg(F.sum("messages").alias("messages"), F.sum("busy_us").alias("busy_us"))
        .where(F.col("busy_us") > 0)
        .select(
            "group",
            "messages",
            (F.col("busy_us") / F.col("messages")).alias("service_us"),
            F.lit(1).alias("concurrency"),
        )
    )


ARRIVED = StructType(
    [
        StructField("group", StringType(), False),
        StructField("at_us", LongType(), False),  # microseconds since the epoch
        StructField("messages", LongType(), False),
    ]
)
"""History of demand: so many messages at a time."""

DEMAND = StructType(
    [
        StructField("group", StringType(), False),
        StructField("start_us", LongType(), False),  # of the interval
        StructField("messages", LongType(), False),
        StructField("known_from_us", LongType(), False),  # start of the first whole interval of the group
        StructField("known_until_us", LongType(), False),  # end of the last whole interval of the history
    ]
)
"""Only intervals in which something came have a row."""


def arrived_of_published(published: DataFrame) -> DataFrame:
    """A publisher's record is a message. One that was sent again after a crash may have two."""
    return published.select(
        "group", F.col("published_at_us").alias("at_us"), F.lit(1).cast("long").alias("messages")
    )


def arrived_of_delivered(delivered: DataFrame) -> DataFrame:
    """Of members' journals alone: each message once, as it is done with once."""
    return delivered.where(F.col("verdict").isin("ack", "dead")).select(
        "group", F.col("published_at_us").alias("at_us"), F.lit(1).cast("long").alias("messages")
    )


def arrived_of_minutes(minutes: DataFrame) -> DataFrame:
    """Of table `demand` of `lbg pipeline profile`. Its messages arrived during a minute, and of the first and the last
    only a part is recorded: the middle stands for them, or they would count as rows counted by interval."""
    middle_us = F.unix_micros("minute") + MINUTE_US // 2
    return minutes.select("group", middle_us.alias("at_us"), "messages")


def counted(arrived: DataFrame, settings: ForecastSettings) -> DataFrame:
    """Of ARRIVED, what came in each interval before `settings.now_us`; `furthest_us`: the greatest distance from the
    interval's start, 0 if rows have no times of their own."""
    into_us = F.pmod("at_us", F.lit(settings.interval_us))
    return (
        arrived.where(F.col("at_us") < settings.now_us)
        .groupBy("group", (F.col("at_us") - into_us).alias("start_us"))
        .agg(F.sum("messages").alias("messages"), F.max(into_us).alias("furthest_us"))
    )


def demand(counted: DataFrame, settings: ForecastSettings) -> DataFrame:
    """DEMAND. `counted` is read three times: cache it."""
    interval_us = settings.interval_us
    begins = counted.groupBy("group").agg(F.min("start_us").alias("first_us"))
    end = counted.agg(
        F.max("start_us").alias("last_us"),
        F.when(F.max("furthest_us") == 0, 0).otherwise(interval_us).alias("partly_us"),
    )
    whole_until_us = F.lit(settings.now_us - settings.now_us % interval_us)
    known_from_us = F.col("first_us") + F.col("partly_us")
    known_until_us = F.least(F.col("last_us") + interval_us - F.col("partly_us"), whole_until_us)
    return (
        counted.join(F.broadcast(begins), "group")
        .crossJoin(F.broadcast(end))
        .select(
            "group",
            "start_us",
            "messages",
            known_from_us.cast("long").alias("known_from_us"),
            known_until_us.cast("long").alias("known_until_us"),
        )
        .where(F.col("start_us").between(F.col("known_from_us"), F.col("known_until_us") - interval_us))
    )


CSV_ENDINGS = (".csv", ".csv.gz", ".csv.bz2", ".csv.zst")
ZIP = ".zip"


def read_table(spark: SparkSession, path: str) -> DataFrame:
    """CSV with a header by its name, everything else is Parquet. Raises HistoryRefused."""
    if path.endswith(ZIP):
        raise HistoryRefused(f"{path}: Spark does not read zip files: unpack it first")
    try:
        if path.endswith(CSV_ENDINGS):
            return spark.read.csv(path, header=True, mode="FAILFAST")
        return spark.read.parquet(path)
    except AnalysisException as error:
        raise HistoryRefused(f"{path} cannot be read as a table: {_first_line(error)}") from None
    except Exception as error:  # py4j's: what a reader of Parquet says of a file that is none
        raise HistoryRefused(
            f"{path} cannot be read: {_first_line(error)}: a CSV file's name ends with .csv, all others are Parquet"
        ) from None


def read_tables(
    spark: SparkSession, paths: Sequence[str], columns: Sequence[str], expected: str
) -> DataFrame:
    """A table of `lbg pipeline profile`, of one run or of many. Raises HistoryRefused."""
    try:
        table = spark.read.parquet(*paths)
    except Exception as error:  # AnalysisException of a path, py4j's of a file
        raise HistoryRefused(
            f"{', '.join(paths)} cannot be read as Parquet: {_first_line(error)}: name {expected}"
        ) from None
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise HistoryRefused(
            f"{', '.join(paths)} has no column {missing[0]} (it has {', '.join(table.columns)}): name {expected}"
        )
    return table.select(*columns)


def arrived_of_table(
    table: DataFrame, *, where: str, group: str, time: str, messages: str | None
) -> DataFrame:
    """ARRIVED, all of one group. Times without an offset are UTC. Raises HistoryRefused, also for rows without a
    time or a count: a forecast without them would be too low without notice."""
    at = _times(table, where, time)
    counted = F.lit(1).cast("long") if messages is None else _counts(table, where, messages)
    rows = table.select(
        F.lit(group).alias("group"),
        at.alias("at_us"),
        counted.alias("messages"),
        F.col(_quoted(time)).cast("string").alias("time_text"),
        F.col(_quoted(messages)).cast("string").alias("count_text")
        if messages
        else F.lit("").alias("count_text"),
    )
    _require_valid(rows, where, "at_us", "time_text", time, "a time, as 2026-11-27T16:55:00Z")
    if messages is not None:
        _require_valid(rows, where, "messages", "count_text", messages, "a whole number of at least 0")
    return rows.select("group", "at_us", "messages")


def _times(table: DataFrame, where: str, name: str) -> Column:
    kind = _type_of(table, where, name)
    column = F.col(_quoted(name))
    if isinstance(kind, TimestampType):
        return F.unix_micros(column)
    if isinstance(kind, (DateType, TimestampNTZType)):
        return F.unix_micros(column.cast("timestamp"))
    if isinstance(kind, StringType):
        return F.unix_micros(F.try_to_timestamp(column))
    raise HistoryRefused(
        f"{where}: column {name} is {kind.simpleString()}, not a time: name one with text or timestamps with --time"
    )


def _counts(table: DataFrame, where: str, name: str) -> Column:
    kind = _type_of(table, where, name)
    if not isinstance(kind, (IntegralType, StringType)):
        raise HistoryRefused(
            f"{where}: column {name} is {kind.simpleString()}: name a column of whole numbers with --messages"
        )
    count = F.expr(f"try_cast({_quoted(name)} AS BIGINT)")
    return F.when(count >= 0, count)


def _type_of(table: DataFrame, where: str, name: str) -> DataType:
    for field in table.schema.fields:
        if field.name == name:
            return field.dataType
    raise HistoryRefused(f"{where} has no column {name}: it has {', '.join(table.columns)}")


def _require_valid(table: DataFrame, where: str, name: str, text: str, column: str, expected: str) -> None:
    invalid, rows, example = table.agg(
        F.count_if(F.col(name).isNull()),
        F.count(F.lit(1)),
        F.first(F.when(F.col(name).isNull(), F.coalesce(text, F.lit("(empty)"))), ignorenulls=True),
    ).first() or (0, 0, "")
    if invalid:
        raise HistoryRefused(
            f"{where}: column {column}: {invalid:,} of {rows:,} values are not {expected}; the first is {example!r:.60}"
        )


def _quoted(name: str) -> str:
    """A column's name may have dots in it."""
    return "`" + name.replace("`", "``") + "`"


def _first_line(error: Exception) -> str:
    """First line of the message; of py4j that of the Java exception, as its own names the call alone."""
    message = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
    lines = (line.strip().rstrip(".") for line in message.splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]


_PUBLISHED = StructType([PUBLISHED[name] for name in ("group", "published_at_us")])
_DELIVERED = StructType(
    [
        DELIVERED[name]
        for name in (
            *("group", "member", "incarnation", "verdict"),
            *("published_at_us", "started_at_us", "finished_at_us"),
        )
    ]
)
"""Columns of a delivery from which demand and the capacity of a member are computed."""


@dataclass(frozen=True, slots=True)
class FromJournals:
    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FromProfiles:
    """`demand` of one or many profiles."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FromTable:
    """A row for each event of `group`, at `time`; or for as many as column `messages` has."""

    path: str
    group: str
    time: str
    messages: str | None


Source = FromJournals | FromProfiles | FromTable


@dataclass(frozen=True, slots=True)
class Sourced:
    """ARRIVED, the measured capacity of members if there is one, and lines of journals that are no records."""

    arrived: DataFrame
    measured: DataFrame | None
    broken: DataFrame | None


def sourced(
    spark: SparkSession, source: Source, *, groups: tuple[str, ...], rates: tuple[str, ...]
) -> Sourced:
    """Of these groups, of all if there are none. Raises PipelineError."""
    measured = broken = None
    if rates:
        table = read_tables(spark, rates, ("group", "messages", "busy_us"), "tables `rates` with --rates")
        measured = measured_of_rates(table)
    match source:
        case FromJournals(paths):
            journals = cache_journals(
                spark,
                paths,
                published=_PUBLISHED.names,
                delivered=_DELIVERED.names,
            )
            published = journals.published(lambda rows: [rows], _PUBLISHED)
            delivered = journals.delivered(lambda rows: [rows], _DELIVERED)
            # Members' journals alone know of each message too, but only of what was consumed.
            arrived = (
                arrived_of_delivered(delivered) if published.isEmpty() else arrived_of_published(published)
            )
            measured = measured_of_delivered(delivered)
            broken = journals.broken
        case FromProfiles(paths):
            columns = ("group", "minute", "messages")
            minutes = read_tables(spark, paths, columns, "tables `demand` with --demand")
            if minutes.isEmpty():
                raise HistoryRefused(
                    f"{', '.join(paths)} has no rows: its profile had no journal of a publisher. Give its table "
                    "`rates` with --demand, for a forecast by the messages that members processed"
                )
            arrived = arrived_of_minutes(minutes)
        case FromTable(path, group, time, messages):
            table = read_table(spark, path)
            arrived = arrived_of_table(table, where=path, group=group, time=time, messages=messages)
    if groups:
        _require_groups(arrived, groups)
        arrived = arrived.where(F.col("group").isin(*groups))
    return Sourced(arrived, measured, broken)


def _require_groups(arrived: DataFrame, wanted: Sequence[str]) -> None:
    found = sorted(row["group"] for row in arrived.select("group").distinct().collect())
    missing = [group for group in wanted if group not in found]
    if missing and found:
        raise HistoryRefused(
            f"the history has no records of group {missing[0]}, but of {', '.join(found[:10])}: correct --group"
        )
