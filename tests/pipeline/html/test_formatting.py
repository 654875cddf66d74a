"""Numbers have three figures and a unit."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global numbers
    from lbg_pipeline.html import numbers


@pytest.mark.parametrize(
    ("value_us", "said"),
    [
        (None, "–"),
        (0, "0"),
        (7, "7 µs"),
        (999, "999 µs"),
        (1000, "1 ms"),
        (1234, "1.23 ms"),
        (99_960, "100 ms"),
        (999_999, "1.00 s"),
        (-1500, "-1.50 ms"),
        (90_000_000, "1.50 min"),
        (7_200_000_000, "2 h"),
        (86_400_000_000 * 400, "400 d"),
    ],
)
def test_durations(value_us: float | None, said: str) -> None:
    assert numbers.duration(value_us) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"),
        (0, "0"),
        (0.25, "0.25"),
        (0.002778, "0.00278"),
        (9994, "9,994"),
        (12_345, "12.3 k"),
        (4_560_000, "4.56 M"),
        (9_999_900, "10.0 M"),
    ],
)
def test_counts(value: float | None, said: str) -> None:
    assert numbers.count(value) == said
    assert numbers.rate(value) == ("–" if value is None else f"{said}/s")


@pytest.mark.parametrize(
    ("value", "said"), [(None, "–"), (0, "0.0 %"), (0.0001, "< 0.1 %"), (0.123, "12.3 %"), (1, "100.0 %")]
)
def test_shares(value: float | None, said: str) -> None:
    assert numbers.share(value) == said


@pytest.mark.parametrize(
    ("value", "said"), [(None, "–"), (0, "0 B"), (999, "999 B"), (1500, "1.50 kB"), (2e9, "2 GB")]
)
def test_sizes(value: float | None, said: str) -> None:
    assert numbers.size(value) == said


def test_moments_are_utc() -> None:
    assert numbers.moment(1_700_000_000_000_000) == "2023-11-14 22:13:20"
