"""Where history comes from: journals, tables that profiles have kept, or a table of another system."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from ..errors import HistoryRefused
from ..keeping import keep_journals
from ..schemas import DELIVERED, PUBLISHED
from .demand import arrived_of_delivered, arrived_of_minutes, arrived_of_published
from .history import arrived_of_table, read_kept, read_table
from .measuring import measured_of_delivered, measured_of_rates

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
"""What of a delivery tells of demand, and of what a member can do."""


@dataclass(frozen=True, slots=True)
class FromJournals:
    paths: tuple[str, ...]
    default_group: str


@dataclass(frozen=True, slots=True)
class FromProfiles:
    """`demand` of one or many profiles."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FromTable:
    """A row for each event of `group`, at `time`; or for as many as column `messages` says."""

    path: str
    group: str
    time: str
    messages: str | None


Source = FromJournals | FromProfiles | FromTable


@dataclass(frozen=True, slots=True)
class Sourced:
    """ARRIVED, what members can do where that is known, and lines of journals that are no records."""

    arrived: DataFrame
    measured: DataFrame | None
    broken: DataFrame | None


def sourced(
    spark: SparkSession, source: Source, *, groups: tuple[str, ...], rates: tuple[str, ...]
) -> Sourced:
    """Of these groups, of all if there are none. Raises PipelineError."""
    measured = broken = None
    if rates:
        table = read_kept(spark, rates, ("group", "messages", "busy_us"), "tables `rates` with --rates")
        measured = measured_of_rates(table)
    match source:
        case FromJournals(paths, default_group):
            kept = keep_journals(
                spark,
                paths,
                published=_PUBLISHED.names,
                delivered=_DELIVERED.names,
                default_group=default_group,
            )
            published = kept.published(lambda rows: [rows], _PUBLISHED)
            delivered = kept.delivered(lambda rows: [rows], _DELIVERED)
            # Members' journals alone know of each message too, but only of what was consumed.
            arrived = (
                arrived_of_delivered(delivered) if published.isEmpty() else arrived_of_published(published)
            )
            measured = measured_of_delivered(delivered)
            broken = kept.broken
        case FromProfiles(paths):
            columns = ("group", "minute", "messages")
            minutes = read_kept(spark, paths, columns, "tables `demand` with --demand")
            if minutes.isEmpty():
                raise HistoryRefused(
                    f"{', '.join(paths)} has no rows: its profile had no journal of a publisher. Name tables `rates` "
                    "with --demand, for what members were done with"
                )
            arrived = arrived_of_minutes(minutes)
        case FromTable(path, group, time, messages):
            table = read_table(spark, path)
            arrived = arrived_of_table(table, where=path, group=group, time=time, messages=messages)
    if groups:
        arrived = arrived.where(F.col("group").isin(*groups))
    return Sourced(arrived, measured, broken)
