"""Where Spark is asked for numbers: little comes back, as much as there are hashes and not as there are keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from ..errors import PlanRefused
from .demand import Demand
from .hashes import loads
from .observing import MINUTE_US, WHOLE, busiest_minutes, finished, keys, service_us, slices, work
from .recognising import Stamp

BUSIEST_MINUTES = 10
"""In more than one of them, so that a chance of a single minute does not decide."""

_STAMPS = 10_000
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Observed:
    """What the journals say of one group. `work` and `keys` are persisted; `release` them in the end.

    - `span_us`: from the first message that was published to the last.
    - `service_time_us`: of a message in the mean.
    - `peak_minute`: the busiest, counted from the epoch.
    - `modes`: that members have told.
    """

    work: DataFrame
    keys: DataFrame
    span_us: int
    messages: int
    keyless: int
    service_time_us: float
    minutes: tuple[int, ...]
    modes: tuple[str, ...]
    stamps: tuple[Stamp, ...]

    @property
    def peak_span_us(self) -> int:
        """How long a minute is of what was observed."""
        return min(MINUTE_US, self.span_us)

    def release(self) -> None:
        self.keys.unpersist()
        self.work.unpersist()


def observe(published: DataFrame, delivered: DataFrame, *, service_time_us: float | None) -> Observed:
    """Of one group's records. What was worked off says what it cost; where nothing was, or `service_time_us` is given,
    what was published says how much there was. Raises PlanRefused."""
    done = finished(delivered)
    told = done.agg(
        F.count("*").alias("messages"),
        F.count_if(F.col("key").isNull()).alias("keyless"),
        F.avg(service_us()).alias("service_us"),
        F.min("published_at_us").alias("first_us"),
        F.max("published_at_us").alias("last_us"),
        F.collect_set("mode").alias("modes"),
    ).first()
    assert told is not None
    modes = tuple(sorted(told["modes"]))
    records = done
    if told["messages"] == 0:
        records = published
        told = published.agg(
            F.count("*").alias("messages"),
            F.count_if(F.col("key").isNull()).alias("keyless"),
            F.lit(None).cast("double").alias("service_us"),
            F.min("published_at_us").alias("first_us"),
            F.max("published_at_us").alias("last_us"),
        ).first()
        assert told is not None
    if told["messages"] == 0:
        raise PlanRefused(
            "the journals have no messages of the group to plan for: name others with --journal"
        )
    mean_us = service_time_us if service_time_us is not None else told["service_us"]
    if mean_us is None:
        raise PlanRefused(
            "the journals do not say how long the application takes: add those of the members with "
            "--journal, or say it with --service-time MILLISECONDS"
        )
    cost = F.lit(service_time_us) if service_time_us is not None else F.coalesce(service_us(), F.lit(mean_us))
    worked = work(records, cost).persist()
    by_key = keys(worked).persist()
    minutes = [row["minute"] for row in busiest_minutes(worked, BUSIEST_MINUTES).collect()]
    stamps = records.where(F.col("key").isNotNull()).select("key", "hash", "queue").limit(_STAMPS).collect()
    return Observed(
        work=worked,
        keys=by_key,
        span_us=max(_SECOND_US, told["last_us"] - told["first_us"]),
        messages=told["messages"],
        keyless=told["keyless"],
        service_time_us=float(mean_us),
        minutes=tuple(minutes),
        modes=modes,
        stamps=tuple({row["key"]: Stamp(row["key"], row["hash"], row["queue"]) for row in stamps}.values()),
    )


def demands(observed: Observed, hash_counts: Sequence[int], function: str, *, growth: float) -> list[Demand]:
    """One for each count, in one pass over the keys. Raises PlanRefused for keys that `function` cannot take."""
    sliced = slices(observed.keys, observed.work, list(observed.minutes))
    table = loads(sliced, hash_counts, function).toArrow()
    columns = {name: table.column(name).to_numpy() for name in table.column_names if name != "hash"}
    hashes = table.column("hash").fill_null(-1).to_numpy()
    lost = (hashes < 0) & (columns["is_keyless"] == 0)
    if lost.any():
        raise PlanRefused(
            f"--function {function} cannot take some of the keys: it is for whole numbers. Leave it out to "
            "plan with the group's own"
        )
    rows = 1 + len(observed.minutes)
    spans_us = np.full((rows, 1), float(observed.peak_span_us))
    spans_us[WHOLE] = observed.span_us
    return [_demand(count, hashes, columns, rows=rows, scale=growth / spans_us) for count in hash_counts]


def _demand(
    hash_count: int,
    hashes: np.ndarray[tuple[int], np.dtype[np.int64]],
    columns: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]],
    *,
    rows: int,
    scale: np.ndarray[tuple[int, int], np.dtype[np.float64]],
) -> Demand:
    """Messages without a key get a hash by chance: each hash has its share of them."""
    mine = columns["hash_count"] == hash_count
    keyed, keyless = mine & (hashes >= 0), mine & (hashes < 0)
    tables = []
    for name in ("busy_us", "messages"):
        table = np.zeros((rows, hash_count))
        np.add.at(table, (columns["slice"][keyed], hashes[keyed]), columns[name][keyed])
        np.add.at(table, columns["slice"][keyless], columns[name][keyless, None] / hash_count)
        tables.append(table * scale)
    calls, messages = tables
    return Demand(hash_count, calls, messages * 1_000_000)
