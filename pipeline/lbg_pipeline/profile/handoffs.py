"""Handoffs as the journal shows them: a hash, or a queue, is delivered to another member than before."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lbg_broker.group import EXCLUSIVE, PARTITIONED

from ..keeping import Kept
from ..schemas import DELIVERED

MOVED = ("hash", "queue")
OWNED = StructType(
    [
        DELIVERED[name]
        for name in (
            *("group", "queue", "hash", "member", "member_name", "incarnation", "delivery"),
            *("published_at_us", "delivered_at_us"),
        )
    ]
)
"""Deliveries in a mode in which one member has a queue at a time."""


def handoffs(kept: Kept) -> DataFrame:
    """Table `handoffs`: a row for each hash and each queue that moved, in modes where one member has it at a time.

    `pause_us` is the time between the last delivery to the one member and the first to the other; `idle_us` is that
    part of it in which nothing was there to be delivered, as the message that ended it was not published yet.
    """
    owned = kept.delivered(_owned, OWNED)
    return reduce(DataFrame.unionByName, (_moves(owned, unit) for unit in MOVED))


def _owned(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    yield rows.filter(pc.is_in(rows["mode"], pa.array([EXCLUSIVE, PARTITIONED]))).select(OWNED.names)


def _moves(owned: DataFrame, unit: str) -> DataFrame:
    in_turn = Window.partitionBy("group", unit).orderBy("delivered_at_us", "incarnation", "delivery")
    before = {
        f"from_{name}": F.lag(name).over(in_turn) for name in ("member", "member_name", "delivered_at_us")
    }
    pause = F.col("delivered_at_us") - F.col("from_delivered_at_us")
    idle = F.col("published_at_us") - F.col("from_delivered_at_us")
    return (
        owned.withColumns(before)
        .where(F.col("from_member") != F.col("member"))
        .select(
            "group",
            F.lit(unit).alias("unit"),
            "queue",
            (F.col("hash") if unit == "hash" else F.lit(None).cast("int")).alias("hash"),
            "from_member",
            "from_member_name",
            F.col("member").alias("to_member"),
            F.col("member_name").alias("to_member_name"),
            F.col("delivered_at_us").alias("at_us"),
            pause.alias("pause_us"),
            F.greatest(F.least(idle, pause), F.lit(0)).alias("idle_us"),
        )
    )
