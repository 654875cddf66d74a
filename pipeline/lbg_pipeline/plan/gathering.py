"""Where Spark is asked for numbers: little comes back, as much as there are hashes and not as there are keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from ..errors import PlanRefused
from ..keeping import Kept
from .demand import Demand
from .hashes import loads
from .observing import (
    MINUTE_US,
    WHOLE,
    busiest_minutes,
    counted_delivered,
    counted_published,
    keys,
    servable,
    slices,
    totals,
    work,
)
from .recognising import Stamp

BUSIEST_MINUTES = 10
"""In more than one of them, so that a chance of a single minute does not decide."""

_STAMPS = 10_000
_NAMED = 10
_SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Observed:
    """What the journals say of one group. Its tables lie in Spark's memory; `release` them in the end.

    - `span_us`: from the first message that was published to the last.
    - `service_time_us`: of a message in the mean.
    - `minutes`: the busiest, counted from the epoch.
    - `stamps`: some of its keys, with the hash and queue that they have got; `modes`: of their deliveries.
    """

    group: str
    counted: DataFrame
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
        self.counted.unpersist()


def observe(
    kept: Kept,
    *,
    group: str | None = None,
    service_time_us: float | None = None,
) -> Observed:
    """Of `group`, or of the only one there is. What was worked off says what it cost; where nothing was, or
    `service_time_us` is given, that is what a message costs. Raises PlanRefused."""
    is_timed = service_time_us is None
    for counted in (counted_delivered(kept, is_timed=is_timed), counted_published(kept)):
        found = (counted if group is None else counted.where(F.col("group") == group)).persist()
        groups = totals(found).collect()
        if groups:
            break
        found.unpersist()
    told = _only(groups, group, kept)
    if service_time_us is None and told["timed"] == 0:
        found.unpersist()
        raise PlanRefused(
            "the journals do not say how long the application takes: add those of the members with --journal, or say "
            "it with --service-time MILLISECONDS"
        )
    mean_us = float(service_time_us if service_time_us is not None else told["busy_us"] / told["timed"])
    worked = work(found.where(F.col("group") == told["group"]), mean_us)
    minutes = [row["minute"] for row in busiest_minutes(worked, BUSIEST_MINUTES).collect()]
    keyed = found.where((F.col("group") == told["group"]) & F.col("key").isNotNull())
    rows = keyed.select("key", "hash", "queue", "mode").limit(_STAMPS).collect()
    return Observed(
        group=told["group"],
        counted=found,
        work=worked,
        keys=keys(worked).persist(),
        span_us=max(_SECOND_US, told["last_us"] - told["first_us"]),
        messages=told["messages"],
        keyless=told["keyless"],
        service_time_us=mean_us,
        minutes=tuple(minutes),
        modes=tuple(sorted({row["mode"] for row in rows} - {None})),
        stamps=tuple({row["key"]: Stamp(row["key"], row["hash"], row["queue"]) for row in rows}.values()),
    )


def _only(groups: Sequence[Row], group: str | None, kept: Kept) -> Row:
    if len(groups) == 1:
        return groups[0]
    if groups:
        raise PlanRefused(f"the journals have the groups {_listed(groups)}: name one of them with --group")
    others = [
        one for each in (counted_published(kept), counted_delivered(kept)) for one in totals(each).collect()
    ]
    if group is not None and others:
        raise PlanRefused(
            f"the journals have no messages of group {group}, but of {_listed(others)}: correct --group"
        )
    raise PlanRefused("the journals have no messages to plan with: name others with --journal")


def _listed(groups: Sequence[Row]) -> str:
    names = sorted({row["group"] for row in groups})
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def demands(
    observed: Observed, hash_counts: Sequence[int], function: str, *, growth: float, has_order: bool = True
) -> list[Demand]:
    """One for each count, in one pass over the keys. Where keys have order, one that is too hot counts as the one call
    that it can have: for the rest of it nothing can be planned. Raises PlanRefused for keys that `function` cannot
    take."""
    sliced = slices(observed.keys, observed.work, list(observed.minutes))
    if has_order:
        sliced = servable(
            sliced, whole_us=observed.span_us / growth, minute_us=observed.peak_span_us / growth
        )
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
