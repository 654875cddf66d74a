"""The whole profile: its tables, and what the pictures are drawn from."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyspark.sql import DataFrame

from ..keeping import Kept
from .handoffs import handoffs
from .keys import keys, shards
from .latencies import latencies, measured, of_minutes_and_parts
from .rating import demand, rates, work
from .skewing import loads, skew
from .spanning import grain_us
from .utilising import utilisation


@dataclass(frozen=True, slots=True)
class Tables:
    """What is written, each under its name."""

    rates: DataFrame
    demand: DataFrame
    keys: DataFrame
    latencies: DataFrame
    skew: DataFrame
    handoffs: DataFrame
    utilisation: DataFrame

    def named(self) -> dict[str, DataFrame]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True, slots=True)
class Profile:
    """`work` is by intervals of `grain_us`, a divisor of a minute; `measured` has percentiles of more than is in the
    table."""

    tables: Tables
    minutes: DataFrame
    measured: DataFrame
    work: DataFrame
    shards: DataFrame
    loads: DataFrame

    def used_often(self) -> tuple[DataFrame, ...]:
        """What several others are made from: worth keeping once it is computed."""
        tables = self.tables
        made = self.minutes, self.measured, self.work, self.shards
        return (*made, tables.keys, tables.handoffs, tables.utilisation)


def profile(kept: Kept, interval_us: int) -> Profile:
    """For pictures in intervals of `interval_us`. Nothing is computed yet."""
    minutes = of_minutes_and_parts(kept, interval_us)
    percentiles = measured(minutes)
    done = work(kept, grain_us(interval_us))
    by_key, by_hash = keys(kept), shards(kept)
    borne = loads(by_key, by_hash, done)
    tables = Tables(
        rates=rates(done),
        demand=demand(kept),
        keys=by_key,
        latencies=latencies(percentiles),
        skew=skew(borne),
        handoffs=handoffs(kept),
        utilisation=utilisation(kept),
    )
    return Profile(tables, minutes, percentiles, done, by_hash, borne)
