"""Verification of closed journals: reads, checks, writes the tables and the report."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F

from lbg_pipeline.journal import scan_journals
from lbg_pipeline.journal.scan import journals_bytes
from lbg_pipeline.schemas import arrow_schema
from lbg_pipeline.spark.jobs import Progress, run_concurrently
from lbg_pipeline.spark.output import Output
from lbg_pipeline.verify.batch_findings import KEY_BUCKETS, LaneChecker, groups_of_rehashed
from lbg_pipeline.verify.incidents import LISTED, Incidents, first_rows, incidents_of
from lbg_pipeline.verify.page import report_page
from lbg_pipeline.verify.publishers import lost_messages, published_copies
from lbg_pipeline.verify.report import SHOWN, Report
from lbg_pipeline.verify.settings import ValidationSettings
from lbg_pipeline.verify.shuffle import PIECES, KeyStep, PackingStep, RecordStep, unpacked
from lbg_pipeline.verify.tables import (
    BREAKING,
    COPIES,
    COUNTS,
    FINDINGS,
    KINDS,
    RUNS,
    STREAM_COUNTS,
    VERDICTS,
)
from lbg_pipeline.verify.unchecked import unchecked_groups

_STREAM = ("group", "publisher", "hash")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Tables as in `tables`."""

    verdicts: DataFrame
    offences: DataFrame
    lost: DataFrame
    gaps: DataFrame
    moves: DataFrame
    runs: DataFrame
    completeness: DataFrame
    broken: DataFrame


def check_records(
    pieces: DataFrame, settings: ValidationSettings, *, tasks: int, by_key: bool = False
) -> DataFrame:
    """FINDINGS of PIECES: one shuffle brings all records of a hash to one worker, which runs all checks. `by_key`: the
    pieces are of `KeyStep`, all records of a key come to one worker, which checks overlap and order."""
    assert pieces.schema.names == PIECES.names
    checker = LaneChecker(settings, by_key=by_key)

    def findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from checker(unpacked(batches))

    return pieces.repartition(tasks, "bucket").mapInArrow(findings, FINDINGS)


def check_result(findings: DataFrame, settings: ValidationSettings) -> CheckResult:
    """Reads `findings` once for each table: persist them."""
    settled = _settled(findings, settings)
    return CheckResult(
        verdicts=_verdicts(_distinct(settled), settings),
        offences=_table(_distinct(findings), "offence"),
        lost=_ranges(settled, settings),
        gaps=_table(findings, "gap"),
        moves=_table(findings, "move"),
        runs=_table(findings, "run")
        .groupBy(*RUNS.names[:4])
        .agg(F.min("first_us").alias("first_us"), F.max("last_us").alias("last_us")),
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
    """With `is_pending`, of ranges that are missing."""
    if not settings.settle_us:
        return findings.withColumn("is_pending", F.lit(False))
    latest = findings.agg(F.max("clock.latest_us").alias("latest_us"))
    is_pending = F.col("missing.confirmed_at_us") > F.col("latest_us") - settings.settle_us
    return findings.crossJoin(F.broadcast(latest)).withColumn("is_pending", is_pending).drop("latest_us")


def _ranges(findings: DataFrame, settings: ValidationSettings) -> DataFrame:
    lost = _table(findings.where(~F.col("is_pending")), "missing").drop("confirmed_at_us")
    if settings.settle_us:
        # A range for each time of confirm: what follows one another is one range. `island` is the same throughout it.
        before = Window.partitionBy(*_STREAM).orderBy("first")
        sizes = F.sum(F.col("last") - F.col("first") + 1).over(before)
        lost = (
            lost.withColumn("island", F.col("last") - sizes)
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
        *(_sum(F.col(f"stream.{name}")).alias(name) for name in STREAM_COUNTS[2:]),
    ]


def _completeness(findings: DataFrame) -> DataFrame:
    stream = [F.coalesce(f"stream.{name}", f"missing.{name}").alias(name) for name in _STREAM]
    of_streams = findings.where("stream is not null or missing is not null")
    return of_streams.groupBy(*stream).agg(*_of_streams())


def _verdicts(findings: DataFrame, settings: ValidationSettings) -> DataFrame:
    group = F.coalesce(*(f"{column}.group" for column in ("offence", "missing", "move", "stream", "tally")))
    is_broken = F.greatest(*BREAKING, *(["repeated"] if settings.exactly_once else [])) > 0
    # Unknown is not sound: without deliveries nothing is known, and without a publisher's records loss is not.
    verdict = F.when(F.col("delivered") == 0, "unchecked").when(is_broken, "broken")
    verdict = verdict.when(F.col("published") == 0, "unchecked").otherwise("sound")
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
        .select("*", verdict.alias("verdict"))
        .select(VERDICTS.names)
    )


def _is(column: str) -> Column:
    kind, view = KINDS[column]
    is_violation = (F.col("offence.kind") == kind) & ~F.col("offence.uncertain")
    return is_violation if view is None else is_violation & (F.col("offence.view") == view)


BUCKET_BYTES = 96 << 20
BUCKETS_MAX = 64


def buckets_of(read_bytes: int, *, cores: int) -> int:
    """Tasks that check: each holds its share of all deliveries, and costs some 30 ms however little that is."""
    return max(cores, min(BUCKETS_MAX, math.ceil(read_bytes / BUCKET_BYTES)))


FEW = 100_000
"""Findings that the driver holds: each table of them is then a task, not a stage."""

TABLES = ("offences", "lost", "gaps", "moves", "completeness", "broken")

RUNS_MAX = 10_000
"""Runs of members beside which findings are seen: the latest."""


def validate_journals(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    settings: ValidationSettings,
    *,
    progress: Progress,
    made_by: str = "",
) -> Report:
    """Raises JournalNotFound and OutputRefused; a record of a newer version ends it before a table is written."""
    output = Output(spark, out)
    progress.begin("reading and checking")
    buckets = buckets_of(journals_bytes(spark, paths), cores=spark.sparkContext.defaultParallelism)
    pieces = scan_journals(spark, paths, PackingStep(RecordStep(settings), buckets), PIECES)
    findings = check_records(pieces, settings, tasks=buckets)
    findings.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        groups = sorted({row["group"] for row in _groups_of_rehashed(findings, buckets).collect()})
        found = findings.where("keys is null")
        if groups:
            progress.begin("checking keys that have two hashes")
            found = (
                _without_order(found, groups)
                .unionAll(_checked_by_key(spark, paths, groups, settings, buckets))
                .persist()
            )
        if found.count() <= FEW:
            gathered = spark.createDataFrame(found.toArrow(), FINDINGS).coalesce(1)
        else:  # they lie in as many pieces as there were tasks
            gathered = found.coalesce(2 * spark.sparkContext.defaultParallelism)
        progress.begin("writing")
        report, incidents, broken = _written(spark, output, gathered, settings, paths)
        output.text("report.json", json.dumps(report.as_json(), indent=2) + "\n")
        output.text("report.html", report_page(report, incidents, broken, journals=paths, made_by=made_by))
        return report
    finally:
        findings.unpersist()


def _groups_of_rehashed(findings: DataFrame, buckets: int) -> DataFrame:
    keys = _table(findings, "keys").repartition(min(buckets, KEY_BUCKETS), "bucket")
    return keys.mapInArrow(groups_of_rehashed, "group string")


def _without_order(findings: DataFrame, groups: Sequence[str]) -> DataFrame:
    """Without what `_checked_by_key` finds anew."""
    is_of_key = (
        F.col("offence.kind").isin("inverted", "rewound", "overlap") & F.col("offence.session").isNull()
    )
    return findings.where(~F.coalesce(is_of_key & F.col("offence.group").isin(*groups), F.lit(False)))


def _checked_by_key(
    spark: SparkSession,
    paths: Sequence[str],
    groups: Sequence[str],
    settings: ValidationSettings,
    buckets: int,
) -> DataFrame:
    pieces = scan_journals(spark, paths, PackingStep(KeyStep(groups), buckets), PIECES)
    return check_records(pieces, settings, tasks=buckets, by_key=True)


def _written(
    spark: SparkSession,
    output: Output,
    findings: DataFrame,
    settings: ValidationSettings,
    paths: Sequence[str],
) -> tuple[Report, Incidents, list[dict[str, Any]]]:
    """The last: the first rows of the table `broken`."""
    result = check_result(findings, settings)
    jobs: list[Callable[[], Any]] = [
        result.verdicts.collect,
        result.broken.count,
        findings.where("copy is not null or published_in is not null").select("copy", "published_in").collect,
        partial(first_rows, result.runs, RUNS_MAX, F.desc("last_us")),
    ]
    jobs += [partial(output.table, name, getattr(result, name)) for name in TABLES]
    verdict_rows, broken_lines, in_two_files, runs, *_ = run_concurrently(jobs)
    verdicts = sorted((row.asDict() for row in verdict_rows), key=lambda row: row["group"])
    copies = _copies(spark, in_two_files, settings)
    for row in verdicts:
        of_group = (one for one in copies if (one["group"], one["kind"]) == (row["group"], "published"))
        row["published"] -= sum(one["count"] for one in of_group)
    has_lost = any(row["lost"] for row in verdicts)
    # From Arrow: rows of Python's take Spark a worker to convert.
    table = spark.createDataFrame(pa.Table.from_pylist(verdicts, arrow_schema(VERDICTS)), VERDICTS)
    jobs = [
        partial(first_rows, output.read("broken") if broken_lines else None, LISTED, "file", "line"),
        partial(output.table, "verdicts", table.coalesce(1)),
    ]
    if has_lost:
        messages = lost_messages(spark, result.lost, _table(findings, "missing_in"))
        jobs.append(partial(output.table, "lost_messages", messages.coalesce(1)))
    else:
        output.without("lost_messages")
    broken_rows, *_ = run_concurrently(jobs)
    incidents = incidents_of(
        spark,
        verdicts,
        offences=output.read("offences"),
        lost=output.read("lost"),
        lost_messages=output.read("lost_messages") if has_lost else None,
        moves=output.read("moves"),
        runs=runs,
        exactly_once=settings.exactly_once,
    )
    report = Report(
        verdicts=verdicts,
        broken_lines=broken_lines,
        copies=sorted(copies, key=lambda one: (one["group"], -one["count"], one["file"], one["other"]))[
            :SHOWN
        ],
        affected=incidents.affected,
        first_keys=incidents.keys[:SHOWN],
        first_offences=incidents.offences[:SHOWN],
        first_lost=incidents.lost[:SHOWN],
        first_broken_lines=broken_rows[:SHOWN],
        unchecked=unchecked_groups(spark, paths, settings.groups or (), verdicts),
    )
    return report, incidents, broken_rows


def _copies(
    spark: SparkSession, in_two_files: Sequence[Row], settings: ValidationSettings
) -> list[dict[str, Any]]:
    """Rows of COPIES, each pair of files once."""
    counts: Counter[tuple[str, ...]] = Counter()
    rows = [row["copy"] for row in in_two_files if row["copy"]]
    if files := {file for row in in_two_files for file in row["published_in"] or ()}:
        rows += published_copies(spark, files, settings).collect()
    for row in rows:
        counts[tuple(row)[:-1]] += row["count"]
    return [dict(zip(COPIES.names, (*names, count), strict=True)) for names, count in sorted(counts.items())]
