"""The job: follows journals, writes the tables by epoch, and at its end the verdicts and the report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from threading import Event
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from lbg_pipeline.schemas import BROKEN
from lbg_pipeline.stored import Stored
from lbg_pipeline.validate.job import first_rows, severity
from lbg_pipeline.validate.reporting import Report, report_lines
from lbg_pipeline.validate.tables import LOST, OFFENCES, VERDICTS
from lbg_pipeline.writing import Output

from .epochs import Front
from .memory import LONGEST_PAUSE
from .running import Tell, follow
from .settings import StreamSettings

_BREAKING = ("lost", "inverted_delivered", "inverted_acknowledged", "overlaps", "misplaced")


@dataclass(frozen=True, slots=True)
class StreamReport:
    """`late`: records that came after the watermark had passed them. `found`: messages told as lost that came after
    all; they are not among the lost of the verdicts."""

    report: Report
    late: int
    found: int

    def as_json(self) -> dict[str, Any]:
        return {**self.report.as_json(), "late": self.late, "found": self.found}

    def lines(self) -> Iterator[str]:
        yield from report_lines(self.report)
        if self.found:
            yield f"{self.found} messages that were told as lost came after all: table found"
        if self.late:
            yield (
                f"{self.late} RECORDS CAME AFTER THE WATERMARK and have no part in the order (table late): judge the "
                "journals without --stream, and give --watermark more seconds"
            )


def stream_journals(
    spark: SparkSession,
    paths: Sequence[str],
    out: str,
    *,
    checkpoint: str,
    settings: StreamSettings,
    trigger_s: float | None,
    stopped: Event,
    tell: Tell,
    exactly_once: bool = False,
) -> StreamReport:
    """Raises JournalNotFound and OutputRefused; a record of a newer version ends it before its epoch is written."""
    output = Output(spark, out)
    front = follow(
        spark,
        paths,
        checkpoint=checkpoint,
        out=out,
        settings=settings,
        trigger_s=trigger_s,
        stopped=stopped,
        tell=tell,
    )
    told = _report(spark, Stored(spark, out), front, exactly_once)
    output.table("verdicts", spark.createDataFrame(list(told.report.verdicts), VERDICTS).coalesce(1))
    output.text("report.json", json.dumps(told.as_json(), indent=2) + "\n")
    return told


def _report(spark: SparkSession, out: Stored, front: Front, exactly_once: bool) -> StreamReport:
    by_group = front.totals.by_group()
    verdicts = [_verdict(group, counts, exactly_once) for group, counts in by_group.items()]

    def table(name: str, schema: Any) -> DataFrame:
        if not out.exists(name):
            return spark.createDataFrame([], schema)
        return spark.read.schema(schema).parquet(out.path(name))

    broken = table("broken", BROKEN)
    lost = table("lost", LOST).join(
        table("found", LOST), ["group", "publisher", "hash", "first"], "left_anti"
    )
    report = Report(
        verdicts=verdicts,
        broken_lines=broken.count(),
        first_offences=first_rows(table("offences", OFFENCES), severity(), "group", "at_us"),
        first_lost=first_rows(lost, "group", "publisher", "hash", "first"),
        first_broken_lines=first_rows(broken, "file", "text"),
    )

    def total(what: str) -> int:
        return sum(counts.get(what, 0) for counts in by_group.values())

    return StreamReport(report, late=total("late"), found=total("found"))


def _verdict(group: str, counts: dict[str, int], exactly_once: bool) -> dict[str, Any]:
    row: dict[str, Any] = {name: counts.get(name, 0) for name in VERDICTS.names[2:]}
    row["lost"] = counts.get("lost", 0) - counts.get("found", 0)
    row[LONGEST_PAUSE] = counts.get(LONGEST_PAUSE)
    breaking = (*_BREAKING, "repeated") if exactly_once else _BREAKING
    is_broken = any(row[name] for name in breaking)
    return {"group": group, "verdict": "broken" if is_broken else "sound", **row}
