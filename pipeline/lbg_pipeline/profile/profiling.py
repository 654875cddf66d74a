"""The whole profile: its tables, and what the pictures are drawn from."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pyspark.sql import DataFrame

from .handoffs import handoffs
from .histograms import histogram, measures
from .keys import keys, shards
from .latencies import latencies
from .rating import demand, rates, work
from .skewing import loads, skew
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
    """`histogram` and `work` are by intervals of `grain_us`, a divisor of a minute."""

    tables: Tables
    grain_us: int
    histogram: DataFrame
    work: DataFrame
    shards: DataFrame
    loads: DataFrame

    def used_often(self) -> tuple[DataFrame, ...]:
        """What several others are made from: worth keeping once it is computed."""
        tables = self.tables
        return (self.histogram, self.work, self.shards, tables.keys, tables.handoffs, tables.utilisation)


def profile(published: DataFrame, delivered: DataFrame, grain_us: int) -> Profile:
    """Nothing is computed yet. The arguments are read several times: keep them, if reading is dear."""
    counted = histogram(measures(published, delivered, grain_us))
    done = work(delivered, grain_us)
    by_key, by_hash = keys(delivered), shards(delivered)
    borne = loads(by_key, by_hash, done)
    tables = Tables(
        rates=rates(done),
        demand=demand(published),
        keys=by_key,
        latencies=latencies(counted),
        skew=skew(borne),
        handoffs=handoffs(delivered),
        utilisation=utilisation(delivered),
    )
    return Profile(tables, grain_us, counted, done, by_hash, borne)
