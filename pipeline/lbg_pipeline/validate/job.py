"""The job: reads journals, judges them, writes the tables and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lbg_pipeline.progress import Progress
from lbg_pipeline.reading import scan_journals
from lbg_pipeline.schemas import arrow_schema
from lbg_pipeline.together import together
from lbg_pipeline.writing import Output

from .evidence import EvidenceStep
from .judging import Judgement, judge, judgement
from .packing import PIECES, PackingStep
from .reporting import SHOWN, Report
from .settings import ValidationSettings
from .tables import KINDS, VERDICTS

BUCKETS = 64
"""So many tasks judge: each holds its share of all deliveries, and costs some 30 ms however little that is."""

TABLES = ("offences", "lost", "moves", "completeness", "broken")
_WORST_FIRST = ("inverted", "overlap", "misplaced", "repeated", "rewound")


def validate_journals(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    settings: ValidationSettings,
    *,
    default_group: str,
    progress: Progress,
) -> Report:
    """Raises JournalNotFound and OutputRefused; a record of a newer version ends it before a table is written."""
    output = Output(spark, out)
    progress.says("reading and judging")
    step = PackingStep(EvidenceStep(settings), BUCKETS)
    pieces = scan_journals(spark, paths, step, PIECES, default_group=default_group)
    findings = judge(pieces, settings, tasks=BUCKETS)
    findings.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        findings.count()
        # Findings are few where journals are sound, and lie in as many pieces as there were tasks.
        gathered = findings.coalesce(2 * spark.sparkContext.defaultParallelism)
        progress.says("writing")
        return _written(spark, output, judgement(gathered, settings))
    finally:
        findings.unpersist()


def _written(spark: SparkSession, output: Output, judged: Judgement) -> Report:
    jobs: list[Callable[[], Any]] = [judged.verdicts.collect, judged.broken.count]
    jobs += [partial(output.table, name, getattr(judged, name)) for name in TABLES]
    found, broken_lines, *_ = together(jobs)
    verdicts = sorted((row.asDict() for row in found), key=lambda row: row["group"])
    has_offences = any(row[kind] for row in verdicts for kind in (*KINDS, "uncertain"))
    has_lost = any(row["lost"] for row in verdicts)
    # From Arrow: rows of Python's take Spark a worker to convert.
    table = spark.createDataFrame(pa.Table.from_pylist(verdicts, arrow_schema(VERDICTS)), VERDICTS)
    jobs = [
        partial(first_rows, judged.offences if has_offences else None, severity(), "group", "at_us"),
        partial(first_rows, judged.lost if has_lost else None, "group", "publisher", "hash", "first"),
        partial(first_rows, judged.broken if broken_lines else None, "file", "text"),
        partial(output.table, "verdicts", table.coalesce(1)),
    ]
    first_offences, first_lost, first_broken_lines, _ = together(jobs)
    report = Report(
        verdicts=verdicts,
        broken_lines=broken_lines,
        first_offences=first_offences,
        first_lost=first_lost,
        first_broken_lines=first_broken_lines,
    )
    output.text("report.json", json.dumps(report.as_json(), indent=2) + "\n")
    return report


def first_rows(table: DataFrame | None, *by: Column | str) -> list[dict[str, Any]]:
    if table is None:
        return []
    return [row.asDict() for row in table.orderBy(*by).limit(SHOWN).collect()]


def severity() -> Column:
    place = F.array_position(F.array(*(F.lit(kind) for kind in _WORST_FIRST)), F.col("kind"))
    return F.col("uncertain").cast("int") * len(_WORST_FIRST) + place
