"""Profile job: journals in, a directory with tables and pages out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from lbg_core.counted_nouns import counted
from lbg_pipeline.html.numbers import duration, rate, ratio, share, whole
from lbg_pipeline.html.page import shown
from lbg_pipeline.journal.cached import cache_journals
from lbg_pipeline.journal.contents import require_groups
from lbg_pipeline.profile.digest import (
    Digest,
    digests,
    interval_us,
    profile,
    totals_delivered,
    totals_published,
)
from lbg_pipeline.profile.histograms import AGE, CONFIRM, SERVICE, WAIT
from lbg_pipeline.profile.page import report
from lbg_pipeline.schemas import DELIVERED
from lbg_pipeline.spark.jobs import run_concurrently
from lbg_pipeline.spark.output import Output

_PERCENTILES = ("messages", "least", "mean", "p50", "p90", "p95", "p99", "p999", "greatest")


def lines(digest: Digest) -> Iterator[str]:
    """For a terminal."""
    yield f"group {shown(digest.group)}"
    if digest.published is not None:
        yield f"  published  {whole(digest.published.messages)} by {counted(digest.published.publishers, 'publisher')}"
    if digest.delivered is not None:
        total = digest.delivered
        peak = max((row.messages for row in digest.done_over_time), default=0) * 1e6 / digest.interval_us
        yield f"  done       {whole(total.ack + total.dead)}, {whole(total.dead)} of them dead; peak {rate(peak)}"
    by_metric = {row.metric: row for row in digest.latencies}
    for metric in (CONFIRM, AGE, WAIT, SERVICE):
        if metric in by_metric:
            p50, p99, greatest = (duration(by_metric[metric][name]) for name in ("p50", "p99", "greatest"))
            yield f"  {metric:9}  median {p50}, 99 % {p99}, greatest {greatest}"
    for row in sorted(digest.skew, key=lambda row: str(row.unit)):
        yield (
            f"  {row.unit:9}  {whole(row['count'])}; hottest {shown(row.hottest, 30)} with {share(row.hottest_share)}; "
            f"Gini {ratio(row.gini_messages)}"
        )
    for row in sorted(digest.pauses, key=lambda row: str(row.unit)):
        yield (
            f"  handoffs   {whole(row['count'])} of a {row.unit}; a message waited {duration(row.waited_p50)} at the "
            f"median, {duration(row.waited_greatest)} at most"
        )


def summary(
    digests: Sequence[Digest], published: Mapping[str, Row], delivered: Mapping[str, Row], *, broken: int
) -> dict[str, Any]:
    """For programs: totals of every group, and more of those that the page draws."""
    drawn = {digest.group: digest for digest in digests}
    groups = {}
    for name in sorted({*published, *delivered}):
        document: dict[str, Any] = {
            "published": _plain(published.get(name)),
            "delivered": _plain(delivered.get(name)),
        }
        if name in drawn:
            document |= _drawn(drawn[name])
        groups[name] = document
    return {"groups": groups, "broken": broken}


def _drawn(digest: Digest) -> dict[str, Any]:
    return {
        "latencies": {
            row.metric: {"unit": row.unit, **{name: row[name] for name in _PERCENTILES}}
            for row in digest.latencies
        },
        "skew": {row.unit: _plain(row, "unit") for row in digest.skew},
        "handoffs": {row.unit: _plain(row, "unit") for row in digest.pauses},
    }


def _plain(row: Row | None, *without: str) -> dict[str, Any] | None:
    if row is None:
        return None
    return {name: value for name, value in row.asDict().items() if name not in ("group", *without)}


_PUBLISHED = ("group", "publisher", "queue", "resends", "body_bytes", "published_at_us", "confirmed_at_us")
_NOT_USED = ("publisher", "seq", "attempts", "session", "sequence")
_DELIVERED = tuple(name for name in DELIVERED.names if name not in _NOT_USED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """`groups`: only these, by default all. `made_by`: a page's footer."""

    journals: tuple[str, ...]
    groups: tuple[str, ...] = ()
    made_by: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """`lines` are text for a terminal, `document` is JSON. `broken` lines were set aside."""

    lines: tuple[str, ...]
    document: dict[str, Any]
    broken: int


def run(
    spark: SparkSession, request: Request, out: str, *, on_phase: Callable[[str], None] = lambda phase: None
) -> Outcome:
    """Raises PipelineError. `on_phase` hears what begins."""
    journals = cache_journals(
        spark,
        request.journals,
        published=_PUBLISHED,
        delivered=_DELIVERED,
        groups=request.groups,
    )
    output = Output(spark, out)
    with ExitStack() as cleanup:
        cleanup.callback(journals.release)

        def persist(table: DataFrame) -> DataFrame:
            cleanup.callback(table.unpersist)
            return table.persist()

        on_phase("reading")
        sent, got = run_concurrently(
            partial(_by_group, total(journals)) for total in (totals_published, totals_delivered)
        )
        require_groups(spark, request.journals, request.groups, {*sent, *got})
        interval = _interval([*sent.values(), *got.values()])
        made = profile(journals, interval)
        for table in made.used_often():
            persist(table)
        on_phase("writing tables")
        written = {**made.tables.named(), "broken": journals.broken}
        run_concurrently(partial(output.table, name, table) for name, table in written.items())
        broken = journals.broken.count()
        on_phase("report")
        drawn = digests(made, interval, sent, got)
    page = report(drawn, sent, got, journals=request.journals, broken=broken, made_by=request.made_by)
    output.text("report.html", page)
    document = summary(drawn, sent, got, broken=broken)
    output.text("report.json", json.dumps(document, indent=2) + "\n")
    return Outcome(tuple(_outcome_lines(drawn, broken, out)), document, broken)


def _by_group(totals: DataFrame) -> dict[str, Row]:
    return {row.group: row for row in totals.collect()}


def _interval(totals: Sequence[Row]) -> int:
    first = min((row.first_us for row in totals), default=0)
    return interval_us(first, max((row.last_us for row in totals), default=0))


def _outcome_lines(drawn: Sequence[Digest], broken: int, out: str) -> list[str]:
    text_lines = [line for digest in drawn for line in lines(digest)]
    if broken:
        text_lines.append(f"broken lines: {broken:,}, in {out}/broken with the reasons")
    return [*text_lines, f"the report: {out}/report.html"]
