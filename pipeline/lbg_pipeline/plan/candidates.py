"""Candidates as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DoubleType,
    IntegerType,
    StructField,
    StructType,
)

from .simulating import Candidate

_INT, _NUMBER, _FLAG = IntegerType(), DoubleType(), BooleanType()
_LOADS = ArrayType(DoubleType(), containsNull=False)

CANDIDATES = StructType(
    [
        StructField("hash_count", _INT, nullable=False),
        StructField("queue_count", _INT, nullable=False),
        StructField("members", _INT, nullable=False),
        StructField("is_recommended", _FLAG, nullable=False),
        StructField("is_existing", _FLAG, nullable=False),
        StructField("meets", _FLAG, nullable=False),  # at most as busy as the target
        StructField("max_queue_load_mean", _NUMBER, nullable=False),  # loads: calls at once
        StructField("max_queue_load_peak", _NUMBER, nullable=False),
        StructField("max_member_load_mean", _NUMBER, nullable=False),
        StructField("max_member_load_peak", _NUMBER, nullable=False),
        StructField("max_queue_messages_peak", _NUMBER, nullable=False),  # messages a second
        StructField("max_member_messages_peak", _NUMBER, nullable=False),
        StructField("utilisation_mean", _NUMBER, nullable=False),  # of the busiest, 1 is all that it can
        StructField("utilisation_peak", _NUMBER, nullable=False),
        StructField("utilisation_away", _NUMBER),  # at the peak, the worst member away; null for one member
        StructField("spread", _NUMBER, nullable=False),  # busiest member's mean load, divided by that of all
        StructField("moved_by_join", _INT, nullable=False),  # queues, when the last of the members joins
        StructField("moved_by_leave", _INT, nullable=False),  # queues, when the worst one to lose leaves
        StructField("queue_loads_mean", _LOADS, nullable=False),
        StructField("queue_loads_peak", _LOADS, nullable=False),
        StructField("member_loads_mean", _LOADS, nullable=False),
        StructField("member_loads_peak", _LOADS, nullable=False),
    ]
)


def candidates_table(
    spark: SparkSession,
    candidates: Sequence[Candidate],
    *,
    recommended: Candidate,
    existing: Candidate | None,
) -> DataFrame:
    """CANDIDATES."""
    rows = [
        {
            **summary(one),
            "is_recommended": one == recommended,
            "is_existing": one == existing,
            "queue_loads_mean": list(one.queue_calls_mean),
            "queue_loads_peak": list(one.queue_calls_peak),
            "member_loads_mean": list(one.member_calls_mean),
            "member_loads_peak": list(one.member_calls_peak),
        }
        for one in candidates
    ]
    return spark.createDataFrame(
        [tuple(row[name] for name in CANDIDATES.names) for row in rows], schema=CANDIDATES
    ).coalesce(1)


def summary(one: Candidate) -> dict[str, Any]:
    """By the names of the columns, without what is told of each queue and member."""
    return {
        "hash_count": one.hash_count,
        "queue_count": one.queue_count,
        "members": one.members,
        "meets": one.meets,
        "max_queue_load_mean": max(one.queue_calls_mean),
        "max_queue_load_peak": max(one.queue_calls_peak),
        "max_member_load_mean": max(one.member_calls_mean),
        "max_member_load_peak": max(one.member_calls_peak),
        "max_queue_messages_peak": one.queue_messages_peak,
        "max_member_messages_peak": one.member_messages_peak,
        "utilisation_mean": one.utilisation_mean,
        "utilisation_peak": one.utilisation_peak,
        "utilisation_away": one.away_utilisation,
        "spread": one.spread,
        "moved_by_join": one.moved.join,
        "moved_by_leave": one.moved.leave_max,
    }
