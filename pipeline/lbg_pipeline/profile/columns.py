"""Columns that several tables have, from the rows of a journal: as workers have them, and as Spark adds them up."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column
from pyspark.sql import functions as F

MINUTE_US = 60_000_000
DONE = ("ack", "dead")
"""Verdicts of a delivery that the application has done its work for."""


VERDICTS = ("ack", "dead", "repeat", "released")


def done(delivered: pa.RecordBatch) -> pa.RecordBatch:
    """The deliveries that were work, with `service_us`: 0 where the application never had the message, or where its
    clock was set back meanwhile."""
    work = delivered.filter(pc.is_in(delivered["verdict"], pa.array(DONE)))
    took = pc.max_element_wise(pc.subtract(work["finished_at_us"], work["started_at_us"]), 0)
    return work.append_column("service_us", took)


def with_verdicts(delivered: pa.RecordBatch) -> pa.RecordBatch:
    """A column for each verdict that says whether it is that, and `last_us`, when the last thing was done about it."""
    last = pc.max_element_wise(*(delivered[f"{name}_at_us"] for name in ("delivered", "finished", "settled")))
    delivered = delivered.append_column("last_us", last)
    for verdict in VERDICTS:
        delivered = delivered.append_column(verdict, pc.equal(delivered["verdict"], verdict))
    return delivered


def started(time_us: pa.Array, every_us: int) -> pa.Array:
    """When the interval of `every_us` began that each time is in, in µs since the epoch."""
    times = np.asarray(time_us.to_numpy(zero_copy_only=False), np.int64)
    return pa.array(times - times % every_us)


def start_of(time_us: str, every_us: int) -> Column:
    """The same in Spark."""
    return F.col(time_us) - F.pmod(F.col(time_us), F.lit(every_us))


def minute_of(time_us: str) -> Column:
    """The minute that the time is in, as people read it."""
    return F.timestamp_micros(start_of(time_us, MINUTE_US))


def bytes_known() -> Column:
    """Size of all bodies; null where that of one is not known."""
    return F.when(F.sum("known") == F.sum("messages"), F.sum("bytes")).alias("bytes")


def summed(*names: str) -> list[Column]:
    return [F.sum(name).alias(name) for name in names]
