"""The few rows of a profile that its page needs: aggregated in Spark, so that their number has a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from ..together import together
from . import picking
from .columns import start_of
from .histograms import CONFIRM
from .profiling import Profile
from .skewing import lorenz

DETAILED_GROUPS = 12
"""Groups that are drawn: those with the most messages. Every group is in the tables."""
SHOWN_MEMBERS, SHOWN_QUEUES, SHOWN_HASHES, SHOWN_KEYS = 60, 200, 40, 20
SHOWN_RUNS, SHOWN_HANDOFFS = 600, 3000


@dataclass(slots=True)
class Digest:
    """What the page says of one group. Queues, hashes and keys: hottest first."""

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
    """Of the groups with the most messages, by name. `published` and `delivered` are their totals (`spanning`)."""
    found = {group: Digest(group, interval_us) for group in sorted(_largest(published, delivered))}
    for digest in found.values():
        digest.published, digest.delivered = published.get(digest.group), delivered.get(digest.group)
        totals = [one for one in (digest.published, digest.delivered) if one is not None]
        digest.first_us = min(one.first_us for one in totals)
        digest.last_us = max(one.last_us for one in totals)
    _tell_percentiles(profile, found)
    tables = {
        name: table.where(F.col("group").isin(*found))
        for name, table in _tables(profile, interval_us).items()
    }
    collected = together(table.collect for table in tables.values())
    for name, rows in zip(tables, collected, strict=True):
        order = _ORDERS.get(name, ())
        # Sorted here: there are few of them, and to Spark an order is a job of its own.
        for row in sorted(rows, key=lambda row: tuple(row[column] for column in order)):
            getattr(found[row.group], name).append(row)
    for digest in found.values():
        for hottest_first in (digest.queues, digest.hashes, digest.keys):
            hottest_first.sort(key=lambda row: -row.messages)
    return list(found.values())


def _tell_percentiles(profile: Profile, found: Mapping[str, Digest]) -> None:
    drawn = F.col("scope").isin("group", "interval") & F.col("group").isin(*found)
    for row in profile.measured.where(drawn).collect():
        digest = found[row.group]
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
        "members_over_time": picking.over_time(work, "member", SHOWN_MEMBERS),
        "queues_over_time": picking.over_time(work, "queue", SHOWN_QUEUES),
        "queues": picking.made_of(profile.shards, "queue", "hash", SHOWN_QUEUES),
        "hashes": picking.made_of(tables.keys, "hash", "key", SHOWN_HASHES),
        "keys": picking.first(with_key, SHOWN_KEYS, F.desc("messages"), "key"),
        "skew": tables.skew,
        "lorenz": points,
        "pauses": picking.pauses(tables.handoffs),
        "handoffs": picking.first(
            tables.handoffs.where(is_queue), SHOWN_HANDOFFS, F.desc("pause_us"), "at_us"
        ),
        "runs": picking.first(tables.utilisation, SHOWN_RUNS, F.desc("busy_us"), "first_us"),
    }
