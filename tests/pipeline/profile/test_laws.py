"""Spark's results for any rows equal plain Python's.
An example is many groups, as a job costs seconds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from itertools import chain

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.exploration import example_count
from testing.journal.rows import START_US, delivered


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global BINS_PER_DECADE, Histogram, PERMILLES, SparkSession, added_up, counted, densities, percentiles
    global kept_records, lorenz, rounded, skew, utilisation
    from pyspark.sql import SparkSession

    from lbg_pipeline.profile.histograms import (
        BINS_PER_DECADE,
        PERMILLES,
        Histogram,
        added_up,
        counted,
        densities,
        percentiles,
        rounded,
    )
    from lbg_pipeline.profile.skew import lorenz, skew
    from lbg_pipeline.profile.utilisation import utilisation
    from testing.journal.tables import kept_records


few = settings(
    max_examples=example_count(3), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def groups_of(values: st.SearchStrategy[int]) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(values, min_size=1, max_size=25), min_size=10, max_size=30)


values = st.lists(
    st.tuples(st.integers(0, 3), st.one_of(st.integers(-3000, 3000), st.integers(0, 10**13))), min_size=1
)


@given(parts=st.lists(values, min_size=1, max_size=4))
def test_percentiles_are_within_a_256th_and_the_rest_is_exact(parts: list[list[tuple[int, int]]]) -> None:
    each = [counted(*np.array(part, np.int64).T) for part in parts]
    together = added_up(
        *(np.concatenate([getattr(part, one.name) for part in each]) for one in fields(Histogram))
    )
    places, found = percentiles(together)
    by_place: dict[int, list[int]] = defaultdict(list)
    for place, value in sorted(chain.from_iterable(parts)):
        by_place[place].append(value)
    assert places.tolist() == sorted(by_place)
    for row, ordered in enumerate(by_place[place] for place in sorted(by_place)):
        told = {name: column[row] for name, column in found.items()}
        assert (told["messages"], told["least"], told["greatest"]) == (len(ordered), ordered[0], ordered[-1])
        assert told["mean"] == pytest.approx(sum(ordered) / len(ordered))
        for name, permille in PERMILLES.items():
            exact = ordered[math.ceil(len(ordered) * permille / 1000) - 1]
            assert abs(told[name] - exact) <= abs(exact) / 256
            assert abs(exact) >= 256 or told[name] == exact


@given(exact=st.lists(st.integers(-(10**6), 10**9), min_size=1))
def test_densities_count_every_value_between_its_powers_of_ten(exact: list[int]) -> None:
    [bins] = densities(counted(np.zeros(len(exact), np.int64), np.array(exact, np.int64)))
    assert sum(messages for _, messages in bins) == len(exact)
    least = 10 ** (bins[0][0] / BINS_PER_DECADE)
    assert (
        least <= max(1, rounded(np.array([min(exact)]))[0]) < least * 10 ** (1 / BINS_PER_DECADE) * (1 + 1e-9)
    )


def gini(loads: Sequence[int]) -> float:
    """The mean of all differences, over twice the mean."""
    total = sum(loads)
    apart = sum(abs(one - other) for one in loads for other in loads)
    return apart / (2 * len(loads) * total) if total else 0.0


@pytest.mark.slow
@few
@given(groups=groups_of(st.one_of(st.integers(0, 5), st.integers(0, 10**12))))
def test_gini_is_the_mean_difference_and_lorenz_curves_sag(
    spark: SparkSession, groups: list[list[int]]
) -> None:
    loads = spark.createDataFrame(
        [
            (str(group), "key", f"k{number}", load, load * 2)
            for group, values in enumerate(groups)
            for number, load in enumerate(values)
        ],
        "group string, unit string, name string, messages long, busy_us long",
    )
    found = {int(row.group): row for row in skew(loads).collect()}
    for group, values in enumerate(groups):
        row = found[group]
        assert row["count"] == len(values)
        assert row.gini_messages == pytest.approx(gini(values), abs=1e-9)
        assert row.gini_busy == pytest.approx(row.gini_messages, abs=1e-9)
        assert values[int(row.hottest[1:])] == max(values)
    for point in lorenz(loads).collect():
        values = groups[int(point.group)]
        assert 0 <= point.share_of_load <= point.share_of_count + 1e-9
        least = sorted(values)[: round(point.share_of_count * len(values))]
        assert point.share_of_load == pytest.approx(sum(least) / (sum(values) or 1))


spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), min_size=1, max_size=12)


@few
@given(groups=st.lists(spans, min_size=10, max_size=25))
def test_busy_is_the_sum_of_spans_and_occupied_their_union(
    spark: SparkSession, groups: list[list[tuple[int, int]]]
) -> None:
    records = [
        delivered(
            number,
            at_us=0,
            group=str(group),
            started_at_us=START_US + start,
            finished_at_us=START_US + start + took,
            settled_at_us=START_US + start + took,
        )
        for group, each in enumerate(groups)
        for number, (start, took) in enumerate(each)
    ]
    found = {int(row.group): row for row in utilisation(kept_records(spark, records)).collect()}
    for group, each in enumerate(groups):
        row = found[group]
        assert row.busy_us == sum(took for _, took in each)
        assert row.occupied_us == len({at for start, took in each for at in range(start, start + took)})
        assert row.presence_us == max(start + took for start, took in each)
