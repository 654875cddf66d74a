"""Final forecast of a group: schedule, limits, and notes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from lbg_pipeline.forecast.model import ForecastSettings, Season
from lbg_pipeline.forecast.result import History, Interval, Planned, Scheduling, Score, planned
from lbg_pipeline.forecast.schedule import Sizing
from testing.pipeline.demand_series import HOUR_US, MONDAY, micros, office


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Drawable, report, telling
    from lbg_pipeline.forecast import report as telling
    from lbg_pipeline.forecast.page import Drawable, report


NOW_US = micros(MONDAY)
SETTINGS = ForecastSettings(now_us=NOW_US, time_zone="Europe/Berlin")
SCORES = (
    Score("seasonal", 8, 0.05, 2.0, 0.91, 0.8, True),
    Score("naive", 8, 0.08, 3.0, 0.9, 0.8, False),
)


def plan(name: str = "orders", **told: object) -> Planned:
    """A week of office hours; a member does a hundredth of a message a second."""
    defaults: dict = {
        "group": name,
        "season": Season.WEEK,
        "method": "seasonal",
        "variant": "half-life 1.5 weeks, no trend",
        "history": History(1_234_567, NOW_US - 70 * 24 * HOUR_US, NOW_US),
        "scores": SCORES,
        "intervals": [
            Interval(NOW_US + hour * HOUR_US, value, value * 0.8, value * 1.2, value * 1.2)
            for hour in range(168)
            for value in [office(MONDAY + timedelta(hours=hour))]
        ],
        "sizing": Sizing(0.01, 1, 20),
        "capacity_from": "given",
        "settings": SETTINGS,
        "scheduling": Scheduling(300, is_weekly=False),
    }
    return planned(**{**defaults, **told})


@pytest.mark.long
def test_replicas_of_the_busiest_hours_are_told_first() -> None:
    busiest = plan().busiest(3)
    assert [(one.planned, one.replicas) for one in busiest] == [(120, 4)] * 3
    assert [one.start_us for one in busiest] == [NOW_US + hour * HOUR_US for hour in (9, 10, 16)]


def test_an_hour_of_the_week_is_answered_on_the_terminal() -> None:
    """Friday, 17:00 by Berlin's clocks is 16:00 UTC, a busy hour."""
    text = list(telling.lines([plan()], SETTINGS))
    header = next(line for line in text if line.split()[:2] == ["Mon", "02"])
    friday = header.split()[0::3].index("Fri")
    assert next(line for line in text if line.startswith("17:00")).split()[1 + friday] == "4"
    assert any("naive, as last week" in line and "8.0 %" in line for line in text)
    assert any("seasonal" in line and "5.0 %" in line and line.endswith("used") for line in text)


@pytest.mark.parametrize(
    ("told", "note"),
    [
        ({"season": Season.DAY}, "70.0 days of history are less than two weeks: all days are forecast alike"),
        ({"season": Season.FLAT, "method": "flat"}, "all hours are forecast alike, and no backtest"),
        (
            {
                "method": "naive",
                "scores": (
                    Score("seasonal", 8, 0.09, 2.0, 0.9, 0.8, False),
                    Score("naive", 8, 0.08, 3.0, 0.9, 0.8, True),
                ),
            },
            "the naive forecast is used, as its error over the backtest is lower: 8.0 %, not 9.0 %",
        ),
        (
            {"sizing": Sizing(0.01, 1, 3)},
            "15 intervals need more than the 3 replicas that are allowed, up to 4",
        ),
        ({"sizing": None}, "no schedule, as the capacity of a member is unknown: give --capacity"),
        (
            {"history": History(5, NOW_US - 90 * 24 * HOUR_US, NOW_US - 36 * HOUR_US)},
            "the history ends 1.5 days before now: the forecast has no newer records",
        ),
    ],
)
def test_what_a_reader_must_know_is_noted(told: dict, note: str) -> None:
    found = plan(**told)
    assert any(note in one for one in found.notes)
    assert any(note in line for line in telling.lines([found], SETTINGS))


def test_a_usual_forecast_has_nothing_to_note() -> None:
    assert plan().notes == []


def test_every_entry_is_within_the_limits() -> None:
    entries = plan(sizing=Sizing(0.01, 2, 3)).schedule
    assert {entry["minReplicas"] for entry in entries} == {2, 3}


@pytest.mark.long
def test_a_schedule_of_minutes_is_shortened_and_says_so() -> None:
    minutes = ForecastSettings(now_us=NOW_US, interval_s=60)
    intervals = [
        Interval(NOW_US + minute * 60_000_000, 1, 1, 1, 1 + minute % 7) for minute in range(7 * 24 * 60)
    ]
    found = plan(settings=minutes, intervals=intervals, scheduling=Scheduling(0, is_weekly=False))
    assert 400 < len(found.schedule) <= 512
    assert any("changes of the minimum were merged into" in note for note in found.notes)


def test_many_groups_are_a_line_each() -> None:
    groups = [plan(f"g{number}") for number in range(5)]
    text = list(telling.lines(groups, SETTINGS))
    assert [line.split()[0] for line in text] == ["group", "g0", "g1", "g2", "g3", "g4"]


def test_json_has_what_people_are_told_and_the_schedule() -> None:
    found = telling.as_json([plan()], SETTINGS)["groups"][0]
    assert found["backtest"]["naive"]["weighted_mape"] == 0.08
    assert found["schedule"] == plan().schedule
    assert found["busiest"][0] == {
        "start": "2026-03-02T09:00:00Z",
        "expected": 100.0,
        "planned": 120.0,
        "replicas": 4,
    }


@pytest.mark.long
@pytest.mark.parametrize("is_weekly", [False, True])
def test_the_page_shows_forecast_backtest_floor_and_schedule(is_weekly: bool) -> None:
    drawable = Drawable(
        came=[(NOW_US - hour * HOUR_US, 5.0) for hour in range(48, 0, -1)],
        backtest=[(NOW_US - hour * HOUR_US, 5.0, 4.0, 6.0) for hour in range(48, 0, -1)],
    )
    group = plan("a<b>", scheduling=Scheduling(300, is_weekly))
    text = report([(group, drawable)], SETTINGS, left_out=3, made_by="me")
    for title in ("History and forecast", "Floor of replicas", "Backtest", "Busiest intervals", "Schedule"):
        assert title in text
    assert "a<b>" not in text
    assert "3 groups with fewer messages" in text
    assert ("Mon, Tue, Wed, Thu, Fri" in text) is is_weekly


@pytest.mark.long
def test_a_page_of_a_group_without_backtest_and_capacity_says_so() -> None:
    group = plan(season=Season.FLAT, method="flat", scores=(), sizing=None, variant=None)
    text = report([(group, Drawable([], []))], SETTINGS, left_out=0, made_by="me")
    assert "no backtest" in text
    assert "Floor of replicas" not in text
