"""From evidence to the tables, as DataFrames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from .findings import Judge
from .packing import PIECES, unpacked
from .settings import ValidationSettings
from .tables import COUNTS, FINDINGS, KINDS, VERDICTS

_STREAM = ("group", "publisher", "hash")


@dataclass(frozen=True, slots=True)
class Judgement:
    """Tables as in `tables`."""

    verdicts: DataFrame
    offences: DataFrame
    lost: DataFrame
    moves: DataFrame
    completeness: DataFrame
    broken: DataFrame


def judge(pieces: DataFrame, settings: ValidationSettings, *, tasks: int) -> DataFrame:
    """FINDINGS of PIECES: in one shuffle everything of a hash comes to one worker, which answers all questions."""
    assert pieces.schema.names == PIECES.names
    judge_all = Judge(settings)

    def judged(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from judge_all(unpacked(batches))

    return pieces.repartition(tasks, "bucket").mapInArrow(judged, FINDINGS)


def judgement(findings: DataFrame, settings: ValidationSettings) -> Judgement:
    """Reads `findings` once for each table: persist them."""
    settled = _settled(findings, settings)
    return Judgement(
        verdicts=_verdicts(_distinct(settled), settings),
        offences=_table(_distinct(findings), "offence"),
        lost=_ranges(settled, settings),
        moves=_table(findings, "move"),
        completeness=_completeness(settled),
        broken=_table(findings, "broken"),
    )


def _table(findings: DataFrame, name: str) -> DataFrame:
    return findings.where(F.col(name).isNotNull()).select(f"{name}.*")


def _distinct(findings: DataFrame) -> DataFrame:
    """A message can be misplaced because of itself and because of its place; that is one offence."""
    is_misplaced = F.coalesce(F.col("offence.kind") == "misplaced", F.lit(False))
    return findings.where(~is_misplaced).unionAll(findings.where(is_misplaced).distinct())


def _settled(findings: DataFrame, settings: ValidationSettings) -> DataFrame:
    """With `is_pending`, which says something of what is missing."""
    if not settings.settle_us:
        return findings.withColumn("is_pending", F.lit(False))
    latest = findings.agg(F.max("clock.latest_us").alias("latest_us"))
    is_pending = F.col("missing.confirmed_at_us") > F.col("latest_us") - settings.settle_us
    return findings.crossJoin(F.broadcast(latest)).withColumn("is_pending", is_pending).drop("latest_us")


def _ranges(findings: DataFrame, settings: ValidationSettings) -> DataFrame:
    lost = _table(findings.where(~F.col("is_pending")), "missing").drop("confirmed_at_us")
    if settings.settle_us:
        # Number by number, for each was confirmed at a time of its own: what follows one another is a range.
        place = F.row_number().over(Window.partitionBy(*_STREAM).orderBy("first"))
        lost = (
            lost.withColumn("island", F.col("first") - place)
            .groupBy(*_STREAM, "island")
            .agg(F.min("first").alias("first"), F.max("last").alias("last"))
            .drop("island")
        )
    return lost.withColumn("count", F.col("last") - F.col("first") + 1)


def _missing(*, is_pending: bool) -> Column:
    size = F.col("missing.last") - F.col("missing.first") + 1
    return _sum(F.when(F.col("is_pending") == is_pending, size))


def _sum(value: Column) -> Column:
    return F.coalesce(F.sum(value), F.lit(0))


def _of_streams() -> list[Column]:
    """The counts of COMPLETENESS, in its order."""
    return [
        _sum(F.col("stream.published")).alias("published"),
        _sum(F.col("stream.distinct")).alias("distinct"),
        _missing(is_pending=False).alias("lost"),
        _missing(is_pending=True).alias("pending"),
        _sum(F.col("stream.unpublished")).alias("unpublished"),
    ]


def _completeness(findings: DataFrame) -> DataFrame:
    stream = [F.coalesce(f"stream.{name}", f"missing.{name}").alias(name) for name in _STREAM]
    of_streams = findings.where("stream is not null or missing is not null")
    return of_streams.groupBy(*stream).agg(*_of_streams())


def _verdicts(findings: DataFrame, settings: ValidationSettings) -> DataFrame:
    group = F.coalesce(*(f"{column}.group" for column in ("offence", "missing", "move", "stream", "tally")))
    breaking = ["lost", "inverted_delivered", "inverted_acknowledged", "overlaps", "misplaced"]
    breaking += ["repeated"] if settings.exactly_once else []
    is_broken = F.greatest(*breaking) > 0
    return (
        findings.groupBy(group.alias("group"))
        .agg(
            *(_sum(F.col(f"tally.{name}")).alias(name) for name in COUNTS),
            *_of_streams()[1:],
            *(F.count_if(_is(column)).alias(column) for column in KINDS),
            F.count_if("offence.uncertain").alias("uncertain"),
            F.count("move").alias("moves"),
            F.max("move.pause_us").alias("longest_pause_us"),
        )
        .where("group is not null")
        .select("*", F.when(is_broken, "broken").otherwise("sound").alias("verdict"))
        .select(VERDICTS.names)
    )


def _is(column: str) -> Column:
    kind, view = KINDS[column]
    told = (F.col("offence.kind") == kind) & ~F.col("offence.uncertain")
    return told if view is None else told & (F.col("offence.view") == view)
