"""A profile in a few lines, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Row

from ..pages.escaping import shown
from ..pages.formatting import duration, rate, ratio, share, whole
from .digesting import Digest
from .histograms import AGE, CONFIRM, SERVICE, WAIT

_PERCENTILES = ("messages", "least", "mean", "p50", "p90", "p95", "p99", "p999", "greatest")


def lines(digest: Digest) -> Iterator[str]:
    """For a terminal."""
    yield f"group {shown(digest.group)}"
    if digest.published is not None:
        yield f"  published  {whole(digest.published.messages)} by {whole(digest.published.publishers)} publishers"
    if digest.delivered is not None:
        total = digest.delivered
        peak = max((row.messages for row in digest.done_over_time), default=0) * 1e6 / digest.interval_us
        yield f"  done       {whole(total.ack + total.dead)}, {whole(total.dead)} of them dead; peak {rate(peak)}"
    told = {row.metric: row for row in digest.latencies}
    for metric in (CONFIRM, AGE, WAIT, SERVICE):
        if metric in told:
            p50, p99, greatest = (duration(told[metric][name]) for name in ("p50", "p99", "greatest"))
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
        told: dict[str, Any] = {
            "published": _plain(published.get(name)),
            "delivered": _plain(delivered.get(name)),
        }
        if name in drawn:
            told |= _drawn(drawn[name])
        groups[name] = told
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
