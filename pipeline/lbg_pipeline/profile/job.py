"""The whole job: journals in, a directory with tables and pages out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from ..keeping import keep_journals
from ..reading.journals import DEFAULT_GROUP
from ..schemas import DELIVERED
from ..together import together
from ..writing import Output
from .digesting import Digest, digests
from .profiling import profile
from .report import report
from .spanning import interval_us, totals_delivered, totals_published
from .summing import lines, summary

_PUBLISHED = ("group", "publisher", "queue", "resends", "body_bytes", "published_at_us", "confirmed_at_us")
_NOT_USED = ("publisher", "seq", "attempts", "session", "sequence")
_DELIVERED = tuple(name for name in DELIVERED.names if name not in _NOT_USED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`groups`: only these, by default all. `default_group`: of records that name none. `made_by`: a page's footer."""

    journals: tuple[str, ...]
    groups: tuple[str, ...] = ()
    default_group: str = DEFAULT_GROUP
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`lines` are for people, `told` for programs. `broken` lines were set aside."""

    lines: tuple[str, ...]
    told: dict[str, Any]
    broken: int


def run(
    spark: SparkSession, request: Request, out: str, *, says: Callable[[str], None] = lambda phase: None
) -> Outcome:
    """Raises PipelineError. `says` hears what begins."""
    journals = keep_journals(
        spark,
        request.journals,
        published=_PUBLISHED,
        delivered=_DELIVERED,
        groups=request.groups,
        default_group=request.default_group,
    )
    output = Output(spark, out)
    with ExitStack() as kept:
        kept.callback(journals.release)

        def keep(table: DataFrame) -> DataFrame:
            kept.callback(table.unpersist)
            return table.persist()

        says("reading")
        sent, got = together(
            partial(_by_group, total(journals)) for total in (totals_published, totals_delivered)
        )
        interval = _interval([*sent.values(), *got.values()])
        made = profile(journals, interval)
        for table in made.used_often():
            keep(table)
        says("writing tables")
        written = {**made.tables.named(), "broken": journals.broken}
        together(partial(output.table, name, table) for name, table in written.items())
        broken = journals.broken.count()
        says("report")
        drawn = digests(made, interval, sent, got)
    page = report(drawn, sent, got, journals=request.journals, broken=broken, made_by=request.made_by)
    output.text("report.html", page)
    told = summary(drawn, sent, got, broken=broken)
    output.text("report.json", json.dumps(told, indent=2) + "\n")
    return Outcome(tuple(_said(drawn, broken, out)), told, broken)


def _by_group(totals: DataFrame) -> dict[str, Row]:
    return {row.group: row for row in totals.collect()}


def _interval(totals: Sequence[Row]) -> int:
    first = min((row.first_us for row in totals), default=0)
    return interval_us(first, max((row.last_us for row in totals), default=0))


def _said(drawn: Sequence[Digest], broken: int, out: str) -> list[str]:
    said = [line for digest in drawn for line in lines(digest)] or ["no records"]
    if broken:
        said.append(f"broken lines: {broken:,}, set aside in {out}/broken with the reasons")
    return [*said, f"the report: {out}/report.html"]
