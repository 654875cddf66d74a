"""Findings that break a verdict, beside the moves of hashes and the ends of members' runs at the time.

Rows of tables, the first ones of each, with two more fields: `move`, the row of MOVES of their hash that is nearest in
time, and `ended`, a run of a member that ended before (`Ended`). Both are None where nothing is near.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypedDict

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lbg_pipeline.spark.jobs import run_concurrently
from lbg_pipeline.verify.tables import BREAKING, KINDS

Row = dict[str, Any]

LISTED = 200
"""Rows of each kind that are kept."""

DETAILED_GROUPS = 12
"""Groups whose incidents are shown over time: the broken ones first."""

SLICES = 120
"""Parts of a group's time in which incidents and moves are counted."""

NEAR_US = 60_000_000
"""Time from a finding within which a move is near it."""

SILENT_US = 10_000_000
"""A run without a later one of its member has ended if the group went on for so long after it."""

_WORST_FIRST = (
    *("inverted", "overlap", "misplaced", "rehashed", "rekeyed", "resized"),
    *("repeated", "rerouted", "rewound"),
)
_BREAKING = {KINDS[column][0] for column in BREAKING if column in KINDS}
_STREAM = ("group", "publisher", "hash")


class Ended(TypedDict):
    """A member's run, its last record, and the next run of the member; None if there is none."""

    member: int
    member_name: str
    incarnation: str
    at_us: int
    next_incarnation: str | None
    next_at_us: int | None


@dataclass(frozen=True, slots=True)
class Incidents:
    """`affected`: a row for each group with the number of different keys, of offences and lost messages, their first
    and last time and their members; `keys`: the same for each key, most first, with `kinds`. `lost` has the first and
    the last lost message of each range as `first_message` and `last_message`, where they are known. `moves` and
    `found`: counts in each of SLICES, by kind (`kind` lost: by the time of publishing). `spans`: first and last time of
    the detailed groups. `runs`: rows of RUNS."""

    offences: Sequence[Row] = ()
    lost: Sequence[Row] = ()
    affected: Sequence[Row] = ()
    keys: Sequence[Row] = ()
    runs: Sequence[Row] = ()
    moves: Sequence[Row] = ()
    found: Sequence[Row] = ()
    spans: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def incidents_of(
    spark: SparkSession,
    verdicts: Sequence[Row],
    *,
    offences: DataFrame,
    lost: DataFrame,
    lost_messages: DataFrame | None,
    moves: DataFrame,
    runs: Sequence[Row],
    exactly_once: bool,
) -> Incidents:
    """Reads the tables more than once: give them as they were written. `lost_messages`: None if nothing is lost."""
    spans = _spans(verdicts, runs)
    if not any(row["verdict"] == "broken" for row in verdicts):
        return Incidents(runs=runs, moves=_over_time(spark, moves, spans, "was", "now"), spans=spans)
    kinds = (*_BREAKING, *(["repeated"] if exactly_once else []))
    breaking = offences.where(F.col("kind").isin(*kinds) & ~F.col("uncertain"))
    affected = _affected(breaking, lost_messages)
    jobs: list[Callable[[], list[Row]]] = [
        partial(first_rows, breaking, LISTED, severity(), "group", "at_us"),
        partial(first_rows, lost, LISTED, *_STREAM, "first"),
        partial(first_rows, _summed(affected, "group"), LISTED, "group"),
        partial(
            first_rows,
            _summed(affected.where("key is not null"), "group", "key"),
            LISTED,
            *("group", F.desc("findings"), "first_us", "key"),
        ),
        partial(_over_time, spark, moves, spans, "was", "now"),
        partial(_over_time, spark, affected, spans, "kind"),
    ]
    if lost_messages is not None:
        jobs.append(partial(first_rows, lost_messages, None, *_STREAM, "seq"))
    first_offences, first_lost, of_groups, keys, over_time, found, *messages = run_concurrently(jobs)
    _add_messages(first_lost, messages[0] if messages else ())
    findings = [*first_offences, *first_lost]
    _add_moves(spark, findings, moves)
    by_group: dict[str, list[Row]] = defaultdict(list)
    for run in runs:
        by_group[run["group"]].append(run)
    for row in findings:
        row["ended"] = ended(row, by_group[row["group"]])
    return Incidents(first_offences, first_lost, of_groups, keys, runs, over_time, found, spans)


def first_rows(table: DataFrame | None, limit: int | None, *by: Column | str) -> list[Row]:
    if table is None:
        return []
    ordered = table.orderBy(*by)
    return [row.asDict() for row in (ordered if limit is None else ordered.limit(limit)).collect()]


def severity() -> Column:
    place = F.array_position(F.array(*(F.lit(kind) for kind in _WORST_FIRST)), F.col("kind"))
    return F.col("uncertain").cast("int") * len(_WORST_FIRST) + place


def _affected(breaking: DataFrame, lost_messages: DataFrame | None) -> DataFrame:
    members = F.array_compact(F.array("member", "other_member"))
    affected = breaking.select("group", "key", "kind", "at_us", members.alias("members"))
    if lost_messages is None:
        return affected
    nobody = F.array().cast("array<int>")
    lost = lost_messages.select(
        *("group", "key", F.lit("lost").alias("kind")),
        *(F.col("published_at_us").alias("at_us"), nobody.alias("members")),
    )
    return affected.unionAll(lost)


def _summed(affected: DataFrame, *by: str) -> DataFrame:
    return affected.groupBy(*by).agg(
        F.count_distinct("key").alias("keys"),
        F.count("*").alias("findings"),
        F.sort_array(F.collect_set("kind")).alias("kinds"),
        F.min("at_us").alias("first_us"),
        F.max("at_us").alias("last_us"),
        F.array_sort(F.array_distinct(F.flatten(F.collect_set("members")))).alias("members"),
    )


def _spans(verdicts: Sequence[Row], runs: Iterable[Row]) -> dict[str, tuple[int, int]]:
    order = sorted(verdicts, key=lambda row: (row["verdict"] == "sound", row["group"]))
    detailed = {row["group"] for row in order[:DETAILED_GROUPS]}
    spans: dict[str, tuple[int, int]] = {}
    for run in runs:
        if (group := run["group"]) in detailed:
            first_us, last_us = spans.get(group, (run["first_us"], run["last_us"]))
            spans[group] = min(first_us, run["first_us"]), max(last_us, run["last_us"])
    return spans


def slice_us(span: tuple[int, int]) -> int:
    """Length of one of SLICES."""
    return (span[1] - span[0]) // SLICES + 1


def _over_time(
    spark: SparkSession, table: DataFrame, spans: Mapping[str, tuple[int, int]], *by: str
) -> list[Row]:
    """Rows of a table with `at_us`, counted by `slice` and these columns."""
    if not spans:
        return []
    wanted = pa.Table.from_pylist(
        [{"group": group, "since_us": span[0], "slice_us": slice_us(span)} for group, span in spans.items()]
    )
    part = F.floor((F.col("at_us") - F.col("since_us")) / F.col("slice_us")).cast("int")
    placed = table.join(F.broadcast(spark.createDataFrame(wanted)), "group").withColumn("slice", part)
    placed = placed.withColumn("slice", F.greatest(F.lit(0), F.least(F.lit(SLICES - 1), "slice")))
    return first_rows(placed.groupBy("group", "slice", *by).count(), None, "group", "slice", *by)


def _add_messages(lost: Iterable[Row], messages: Iterable[Row]) -> None:
    by_stream: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for one in messages:
        by_stream[tuple(one[name] for name in _STREAM)].append(one)
    for row in lost:
        there = by_stream[tuple(row[name] for name in _STREAM)]
        inside = [one for one in there if row["first"] <= one["seq"] <= row["last"]]
        for name, at in (("first_message", 0), ("last_message", -1)):
            row[name] = (
                {field: inside[at][field] for field in ("seq", "key", "published_at_us")} if inside else None
            )


def times(row: Row) -> tuple[int, int] | None:
    """Time of an offence; those of the first and the last message of a lost range, if known."""
    if "at_us" in row:
        return None if row["at_us"] is None else (row["at_us"], row["at_us"])
    if row["first_message"] is None:
        return None
    return row["first_message"]["published_at_us"], row["last_message"]["published_at_us"]


def _add_moves(spark: SparkSession, findings: Sequence[Row], moves: DataFrame) -> None:
    placed = [
        {
            "place": place,
            "group": row["group"],
            "hash": row["hash"],
            "from_us": span[0],
            "until_us": span[1],
            "is_lost": "at_us" not in row,
        }
        for place, row in enumerate(findings)
        if (span := times(row)) is not None
    ]
    nearest: dict[int, Row] = {}
    if placed:
        wanted = F.broadcast(spark.createDataFrame(pa.Table.from_pylist(placed)))
        before_us, after_us = F.col("from_us") - F.col("at_us"), F.col("at_us") - F.col("until_us")
        distance = F.greatest(before_us, after_us, F.lit(0))
        # A move causes what is delivered after it, and loses what waits before it.
        is_other = F.when(F.col("is_lost"), before_us > 0).otherwise(after_us > 0)
        near = moves.join(wanted, ["group", "hash"]).where(distance <= NEAR_US)
        move, rank = F.struct("was", "now", "at_us", "pause_us"), F.struct(is_other, distance, "at_us")
        chosen = near.groupBy("place").agg(F.min_by(move, rank).alias("move"))
        nearest = {row["place"]: row["move"].asDict() for row in chosen.collect()}
    for place, row in enumerate(findings):
        row["move"] = nearest.get(place)


def ended(row: Row, runs: Sequence[Row]) -> Ended | None:
    """The run of the member that the move of this finding left, if it ended before; else, without a move, the one
    before the run that the finding is of. `runs`: those of the group."""
    move = row["move"]
    if move is not None:
        return _ended_before(move["at_us"], [run for run in runs if run["member"] == move["was"]], runs)
    if row.get("incarnation") is None or row["at_us"] is None:
        return None
    of_member = [run for run in runs if run["member"] == row["member"]]
    for run in of_member:
        if run["incarnation"] == row["incarnation"] and row["at_us"] - run["first_us"] <= NEAR_US:
            return _ended_before(run["first_us"], of_member, runs)
    return None


def _ended_before(at_us: int, of_member: Sequence[Row], runs: Sequence[Row]) -> Ended | None:
    """The member's last run that began before `at_us`, if it had ended by then."""
    of_member = sorted(of_member, key=lambda run: int(run["first_us"]))
    for run, following in pairwise([*of_member, None]):
        if following is not None and following["first_us"] < at_us:
            continue
        if run is None or not run["first_us"] < at_us or run["last_us"] > at_us:
            return None
        if following is None and max(one["last_us"] for one in runs) - run["last_us"] < SILENT_US:
            return None
        return {
            "member": run["member"],
            "member_name": run["member_name"],
            "incarnation": run["incarnation"],
            "at_us": run["last_us"],
            "next_incarnation": None if following is None else following["incarnation"],
            "next_at_us": None if following is None else following["first_us"],
        }
    return None
