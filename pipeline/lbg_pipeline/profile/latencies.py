"""Percentiles of every metric, from the whole group down to a member's minute on a queue.

The deliveries of a minute come together in one task. Its histograms are complete for the minute; of longer
scopes they are parts, which are added up in a second step.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from lbg_pipeline.columns import IntArray, dense, ints_of
from lbg_pipeline.journal.cached import PIECES, CachedJournals, packed, unpacked
from lbg_pipeline.profile.histograms import (
    METRICS,
    NOBODY,
    OF_A_MINUTE,
    PERMILLES,
    SCOPES,
    SIZE,
    Histogram,
    added_up,
    by_minute,
    counted,
    densities,
    measured_got,
    measured_sent,
    percentiles,
)
from lbg_pipeline.profile.tables import MINUTE_US

PERCENTILES = ("messages", "least", "mean", *PERMILLES, "greatest")
MEASURED = StructType(
    [
        StructField("scope", StringType()),
        StructField("group", StringType()),
        StructField("queue", IntegerType()),
        StructField("member", IntegerType()),
        StructField("at_us", LongType()),  # when the minute, or the interval, began
        StructField("metric", StringType()),
        *(StructField(name, DoubleType() if name == "mean" else LongType()) for name in PERCENTILES),
        StructField("bins", ArrayType(ArrayType(LongType()))),  # `densities`, of whole groups alone
        *(StructField(field.name, field.dataType) for field in PIECES),
    ]
)
"""A row is of one place and metric, or it is a part of histograms, packed: of a scope, a group and a metric."""

_MEASURED = pa.schema(
    [
        *((name, pa.string()) for name in ("scope", "group")),
        *((name, pa.int32()) for name in ("queue", "member")),
        ("at_us", pa.int64()),
        ("metric", pa.string()),
        *((name, pa.float64() if name == "mean" else pa.int64()) for name in PERCENTILES),
        ("bins", pa.list_(pa.list_(pa.int64()))),
        ("part", pa.int32()),
        ("rows", pa.binary()),
    ]
)
_VALUES = ("value", "messages", "total", "least", "greatest")


def of_minutes(pieces: Iterable[pa.RecordBatch], interval_us: int, lanes: int) -> Iterator[pa.RecordBatch]:
    """MEASURED of the pieces of `histograms.by_minute`; all of a minute is there. Parts are sent to `lanes`."""
    there = [pa.Table.from_batches([rows]) for rows in unpacked(pieces)]
    if not there:
        return
    rows = pa.concat_tables(there, promote_options="default")
    groups = rows["group"].combine_chunks().dictionary_encode()
    names = groups.dictionary.to_pylist()
    at_us = ints_of(rows["at_us"])
    columns = {
        "group": ints_of(groups.indices),
        "queue": ints_of(rows["queue"]),
        "member": ints_of(rows["member"]),
        "minute": at_us - at_us % MINUTE_US,
        "interval": at_us - at_us % interval_us,
    }
    finest, first = dense(*columns.values())
    columns = {name: column[first] for name, column in columns.items()}
    scopes = {scope: dense(columns["group"], *(columns[name] for name in SCOPES[scope])) for scope in SCOPES}
    for metric in METRICS:
        if metric not in rows.schema.names:
            continue
        is_valid = rows[metric].is_valid().to_numpy()
        every = counted(finest[is_valid], ints_of(rows[metric].drop_null()))
        for scope, (place, at) in scopes.items():
            # A confirm has no member: it is not part of what members did.
            is_in = columns["member"][every.place] != NOBODY if scope == "member" else slice(None)
            parts = [getattr(every, name)[is_in] for name in _VALUES]
            histogram = added_up(place[every.place[is_in]], *parts)
            where = {name: column[at] for name, column in columns.items()}
            if scope in OF_A_MINUTE:
                yield _measured_rows(
                    scope, metric, [names[code] for code in where["group"]], where, histogram
                )
            else:
                yield from _parts(scope, metric, names, where, histogram, lanes)


def of_parts(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """MEASURED of parts; all of a scope, a group and a metric are there."""
    there: dict[tuple[str, str, str], list[pa.RecordBatch]] = {}
    for rows in unpacked(pieces):
        scope, group, metric = (rows[name][0].as_py() for name in ("scope", "group", "metric"))
        there.setdefault((scope, group, metric), []).append(rows)
    for (scope, group, metric), parts in there.items():
        rows = pa.Table.from_batches(parts)
        columns = {name: ints_of(rows[name]) for name in ("queue", "member", "interval", *_VALUES)}
        place, first = dense(*(columns[name] for name in SCOPES[scope] or ("interval",)))
        histogram = added_up(place, *(columns[name] for name in _VALUES))
        where = {name: columns[name][first] for name in ("queue", "member", "interval")}
        yield _measured_rows(scope, metric, [group] * len(first), where, histogram)


def _parts(
    scope: str,
    metric: str,
    names: Sequence[str],
    where: dict[str, IntArray],
    histogram: Histogram,
    lanes: int,
) -> Iterator[pa.RecordBatch]:
    group_of = where["group"][histogram.place]
    for code in np.unique(group_of).tolist():
        mine = group_of == code
        identity = {"scope": scope, "group": names[code], "metric": metric}
        columns = {name: pa.repeat(value, int(mine.sum())) for name, value in identity.items()}
        for name in ("queue", "member", "interval"):
            column = where[name] if name in SCOPES[scope] else np.zeros_like(where["group"])
            columns[name] = pa.array(column[histogram.place[mine]])
        columns |= {name: pa.array(getattr(histogram, name)[mine]) for name in _VALUES}
        lane = zlib.crc32(" ".join(identity.values()).encode()) % lanes
        yield _filled(packed(lane, pa.RecordBatch.from_pydict(columns)))


def _measured_rows(
    scope: str, metric: str, groups: Sequence[str], where: dict[str, IntArray], histogram: Histogram
) -> pa.RecordBatch:
    """`groups` and `where` by place."""
    place, of_place = percentiles(histogram)
    columns = {name: pa.array(values) for name, values in of_place.items()}
    columns |= {
        name: pa.repeat(value, len(place)) for name, value in {"scope": scope, "metric": metric}.items()
    }
    columns["group"] = pa.array([groups[one] for one in place], pa.string())
    for name in SCOPES[scope]:
        column = pa.array(where[name][place])
        if name in ("minute", "interval"):
            columns["at_us"] = column
        else:
            columns[name] = pa.array(where[name][place], mask=where[name][place] == NOBODY)
    if scope == "group":
        columns["bins"] = pa.array(densities(histogram), _MEASURED.field("bins").type)
    return _filled(pa.RecordBatch.from_pydict(columns))


def _filled(rows: pa.RecordBatch) -> pa.RecordBatch:
    there = set(rows.schema.names)
    return pa.RecordBatch.from_arrays(
        [
            rows[field.name].cast(field.type) if field.name in there else pa.nulls(rows.num_rows, field.type)
            for field in _MEASURED
        ],
        schema=_MEASURED,
    )


def of_minutes_and_parts(journals: CachedJournals, interval_us: int) -> DataFrame:
    """MEASURED of minutes, and the parts of everything else. It is read twice: persist it."""
    lanes = int(str(journals.pieces.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    sent = journals.published(lambda rows: by_minute(measured_sent(rows), lanes), PIECES)
    got = journals.delivered(lambda rows: by_minute(measured_got(rows), lanes), PIECES)

    def count(pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return of_minutes(pieces, interval_us, lanes)

    return sent.unionAll(got).repartition(lanes, "part").mapInArrow(count, MEASURED)


def measured(minutes: DataFrame) -> DataFrame:
    """MEASURED of every scope, without its parts, and with the unit of the metric."""
    parts = minutes.where(F.col("rows").isNotNull()).select(*PIECES.names)
    lanes = int(str(minutes.sparkSession.conf.get("spark.sql.shuffle.partitions")))
    together = parts.repartition(lanes, "part").mapInArrow(of_parts, MEASURED)
    unit = F.when(F.col("metric") == SIZE, "bytes").otherwise("us")
    rows = minutes.where(F.col("rows").isNull()).unionAll(together)
    return rows.drop(*PIECES.names).withColumn("unit", unit)


def latencies(measured: DataFrame) -> DataFrame:
    """Table `latencies`."""
    return measured.where(F.col("scope").isin([scope for scope in SCOPES if scope != "interval"])).select(
        *("scope", "group", "queue", "member"),
        F.timestamp_micros("at_us").alias("minute"),
        *("metric", "unit", *PERCENTILES),
    )
