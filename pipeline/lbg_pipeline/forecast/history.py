"""Histories of other systems: any table with one row for each event, or with counted rows. The edge at which they are
read."""

from __future__ import annotations

from collections.abc import Sequence

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    DataType,
    DateType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from ..errors import HistoryRefused

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


def read_kept(spark: SparkSession, paths: Sequence[str], columns: Sequence[str], kept_by: str) -> DataFrame:
    """A table of `lbg pipeline profile`, kept from one day or from many. Raises HistoryRefused."""
    try:
        table = spark.read.parquet(*paths)
    except Exception as error:  # AnalysisException of a path, py4j's of a file
        raise HistoryRefused(
            f"{', '.join(paths)} cannot be read as Parquet: {_first_line(error)}: name {kept_by}"
        ) from None
    missing = [name for name in columns if name not in table.columns]
    if missing:
        raise HistoryRefused(
            f"{', '.join(paths)} has no column {missing[0]} (it has {', '.join(table.columns)}): name {kept_by}"
        )
    return table.select(*columns)


def arrived_of_table(
    table: DataFrame, *, where: str, group: str, time: str, messages: str | None
) -> DataFrame:
    """ARRIVED, all of one group. Times without an offset are UTC. Raises HistoryRefused, for rows too that say no
    time or no count: a forecast without them would be too low, and nobody would know."""
    at = _times(table, where, time)
    counted = F.lit(1).cast("long") if messages is None else _counts(table, where, messages)
    told = table.select(
        F.lit(group).alias("group"),
        at.alias("at_us"),
        counted.alias("messages"),
        F.col(_quoted(time)).cast("string").alias("time_text"),
        F.col(_quoted(messages)).cast("string").alias("count_text")
        if messages
        else F.lit("").alias("count_text"),
    )
    _require_known(told, where, "at_us", "time_text", time, "a time: say it as 2026-11-27T16:55:00Z")
    if messages is not None:
        _require_known(told, where, "messages", "count_text", messages, "a whole number of at least 0")
    return told.select("group", "at_us", "messages")


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
        f"{where}: column {name} is {kind.simpleString()} and no time: name one with text or timestamps with --time"
    )


def _counts(table: DataFrame, where: str, name: str) -> Column:
    kind = _type_of(table, where, name)
    if not isinstance(kind, (IntegralType, StringType)):
        raise HistoryRefused(
            f"{where}: column {name} is {kind.simpleString()}: name one with whole numbers with --messages"
        )
    count = F.expr(f"try_cast({_quoted(name)} AS BIGINT)")
    return F.when(count >= 0, count)


def _type_of(table: DataFrame, where: str, name: str) -> DataType:
    for field in table.schema.fields:
        if field.name == name:
            return field.dataType
    raise HistoryRefused(f"{where} has no column {name}: it has {', '.join(table.columns)}")


def _require_known(told: DataFrame, where: str, name: str, text: str, column: str, wanted: str) -> None:
    unknown, rows, example = told.agg(
        F.count_if(F.col(name).isNull()),
        F.count(F.lit(1)),
        F.first(F.when(F.col(name).isNull(), F.coalesce(text, F.lit("(empty)"))), ignorenulls=True),
    ).first() or (0, 0, "")
    if unknown:
        raise HistoryRefused(
            f"{where}: column {column}: {unknown:,} of {rows:,} values are not {wanted}; the first is {example!r:.60}"
        )


def _quoted(name: str) -> str:
    """A column's name may have dots in it."""
    return "`" + name.replace("`", "``") + "`"


def _first_line(error: Exception) -> str:
    """py4j's own first line says only that something was called."""
    said = str(error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else error)
    lines = (line.strip().rstrip(".") for line in said.splitlines())
    return next((line for line in lines if line), type(error).__name__)[:300]
