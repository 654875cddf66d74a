"""Quantiles from misses: they hold as often as they say, by class of hour, and are never below nothing."""

from __future__ import annotations

import numpy as np
import pytest

from lbg_pipeline.forecast.model import DAY_S, classes_of, misses_of, quantiles_of, scale_of

LEVELS = (0.1, 0.5, 0.9)


def test_hours_are_of_one_class_by_what_is_expected_and_by_weekend() -> None:
    expected = np.array([0.0, 1.0, 5.0, 9.0] * 2)
    walls = np.array([0] * 4 + [5 * DAY_S] * 4)
    assert classes_of(expected, walls).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_nothing_expected_anywhere_is_one_class_a_kind_of_day() -> None:
    assert classes_of(np.zeros(3), np.array([0, DAY_S, 6 * DAY_S])).tolist() == [0, 0, 4]


def test_new_demand_stays_below_a_quantile_as_often_as_it_says() -> None:
    chance = np.random.default_rng(7)
    expected = chance.uniform(50, 500, 4000)
    actual = expected * chance.lognormal(0, 0.3, 4000)
    walls = np.zeros(4000, dtype=np.int64)
    old, new = slice(0, 2000), slice(2000, None)
    scale = scale_of(expected[old])
    told = quantiles_of(
        expected[new],
        classes_of(expected[new], walls[new]),
        misses=[misses_of(actual[old], expected[old], scale)],
        miss_classes=[classes_of(expected[old], walls[old])],
        scale=scale,
        levels=LEVELS,
    )
    assert (actual[new, None] <= told).mean(axis=0) == pytest.approx(LEVELS, abs=0.03)
    assert (np.diff(told, axis=1) >= 0).all()


def test_a_few_misses_tell_their_worst_for_a_high_quantile() -> None:
    told = quantiles_of(
        np.array([10.0]),
        np.array([1]),
        misses=[np.array([-0.5, 0.0, 2.0])],
        miss_classes=[np.array([1, 1, 1])],
        scale=1.0,
        levels=(0.1, 0.5, 0.99),
    )
    assert told.tolist() == [[10 - 5.5, 10.0, 10 + 22]]


def test_a_class_with_enough_misses_speaks_for_itself() -> None:
    told = quantiles_of(
        np.array([10.0, 10.0]),
        np.array([1, 2]),
        misses=[np.array([0.0] * 50 + [1.0] * 50)],
        miss_classes=[np.array([1] * 50 + [2] * 50)],
        scale=0.0,
        levels=(0.9,),
    )
    assert told.tolist() == [[10], [20]]


def test_a_quantile_is_never_below_nothing() -> None:
    told = quantiles_of(
        np.array([1.0]),
        np.array([1]),
        misses=[np.full(30, -3.0)],
        miss_classes=[np.full(30, 1)],
        scale=1.0,
        levels=LEVELS,
    )
    assert told.tolist() == [[0, 0, 0]]


def test_misses_that_go_together_by_origin_make_the_band_wider() -> None:
    """Each origin of eight has a miss of its own for all its hours: the next one is beyond all of them in two of nine
    cases, however many hours there are."""
    chance = np.random.default_rng(3)
    held = []
    for _ in range(300):
        errors = chance.normal(0, 0.2, 9)
        told = quantiles_of(
            np.array([100.0]),
            np.array([1]),
            misses=[error + chance.normal(0, 0.02, 40) for error in errors[:8]],
            miss_classes=[np.full(40, 1)] * 8,
            scale=0.0,
            levels=LEVELS,
        )
        held.append(told[0, 0] <= 100 * (1 + errors[8]) <= told[0, 2])
    assert 0.74 < np.mean(held) < 0.86, "0.68 by the quantiles of the sample"
