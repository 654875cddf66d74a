"""The whole job, on small histories."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml

from lbg_pipeline.errors import ForecastRefused
from lbg_pipeline.forecast.calendar import read_calendar
from lbg_pipeline.forecast.model import ForecastSettings
from lbg_pipeline.forecast.result import Scheduling
from testing.journal.rows import START_US, delivered, published, write_journal
from testing.output_documents import checked
from testing.pipeline.demand_series import HOUR_US, MONDAY, micros, office


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Applying, Capacity, FromJournals, FromTable, Request, SparkSession, Target, answer
    from pyspark.sql import SparkSession

    from lbg_pipeline.forecast.apply import Target
    from lbg_pipeline.forecast.history import FromJournals, FromTable
    from lbg_pipeline.forecast.job import Applying, Capacity, Request, answer


pytestmark = pytest.mark.slow

BERLIN = "Europe/Berlin"
NOW = MONDAY + timedelta(weeks=3)


def asked(source: FromTable | FromJournals, **told: object) -> Request:
    groups = (source.group,) if isinstance(source, FromTable) else ()
    settings = ForecastSettings(now_us=micros(NOW, BERLIN), time_zone=BERLIN)
    usual = Request(
        source, groups, (), settings, Capacity(0.01, 0.7, None, 1, 3), Scheduling(300, False), None
    )
    return replace(usual, **told)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> FromTable:
    """Three weeks of office hours in Berlin, counted by the hour."""
    path = tmp_path_factory.mktemp("history") / "events.csv"
    walls = [MONDAY + timedelta(hours=hour) for hour in range(3 * 168)]
    rows = [f"{wall:%Y-%m-%dT%H:%M:%S}+01:00,{office(wall):.0f}" for wall in walls if office(wall)]
    path.write_text("\n".join(["at,n", *rows]) + "\n")
    return FromTable(str(path), "orders", "at", "n")


def test_a_table_becomes_a_schedule_with_everything_beside_it(
    spark: SparkSession, history: FromTable, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    found = answer(spark, asked(history), str(out))
    told = found.document["groups"][0]
    assert told["history"]["messages"] == sum(
        office(MONDAY + timedelta(hours=hour)) for hour in range(3 * 168)
    )
    assert told["backtest"]["seasonal"]["weighted_mape"] == pytest.approx(0)
    patch = yaml.safe_load((out / "patch.yaml").read_text())
    assert patch == {"spec": {"scaling": {"schedule": told["schedule"]}}}
    monday = {"minReplicas": 2, "from": "2026-03-23T05:55:00Z", "until": "2026-03-23T07:55:00Z"}
    assert told["schedule"][:2] == [
        monday,
        {"minReplicas": 3, "from": "2026-03-23T07:55:00Z", "until": "2026-03-23T10:00:00Z"},
    ], "from 7:00 in Berlin with a lead of five minutes"
    assert checked("pipeline forecast", (out / "forecast.json").read_text()) == found.document
    assert "Floor of replicas" in (out / "report.html").read_text()
    by_replicas = spark.read.parquet(str(out / "forecast")).groupBy("replicas").count().collect()
    assert {row["replicas"]: row["count"] for row in by_replicas} == {1: 108, 2: 45, 3: 15}
    assert spark.read.parquet(str(out / "schedule")).count() == len(told["schedule"])
    assert spark.read.parquet(str(out / "backtest")).count() == 2 * 168, "of one origin"


def test_a_day_of_the_calendar_is_in_the_notes_and_the_tables(
    spark: SparkSession, history: FromTable, tmp_path: Path
) -> None:
    wednesday = (NOW + timedelta(days=2)).date()
    calendar = tmp_path / "calendar.csv"
    calendar.write_text(f"date,name\n{wednesday},Fair\n")
    settings = replace(asked(history).settings, calendar=read_calendar(calendar))
    found = answer(spark, asked(history, settings=settings), str(tmp_path / "out"))
    note = f"Wed {wednesday} is Fair: like Sun"
    assert f"- {note}" in found.lines
    assert note in (tmp_path / "out/report.html").read_text()
    days = spark.read.parquet(str(tmp_path / "out/forecast")).where("event = 'Fair: like Sun'").collect()
    assert (len(days), max(row["expected"] for row in days)) == (
        24,
        office(MONDAY + timedelta(days=6, hours=9)),
    )


class Shop:
    """A cluster with a LoadBalancedGroup for orders alone."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.applied: list[tuple[Target, list[dict]]] = []

    def find(self, groups: list[str]) -> tuple[dict[str, Target], dict[str, str]]:
        assert groups == ["idle", "orders"]
        return {"orders": Target("shop", "orders", 3)}, {"idle": "there is none for idle"}

    def apply(self, target: Target, schedule: list[dict]) -> None:
        assert (self.out / "report.html").exists(), "everything is written first"
        self.applied.append((target, schedule))


def test_journals_tell_demand_and_what_a_member_can_do_and_the_schedule_is_applied(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two groups, ten messages an hour for three days, each half an hour of work; one of them was never consumed."""
    half_hour_us = HOUR_US // 2
    records: list = [
        published(hour * 10 + seq, at_us=hour * HOUR_US + seq * 60_000_000, group=group)
        for group in ("idle", "orders")
        for hour in range(72)
        for seq in range(10)
    ]
    records += [
        delivered(
            seq,
            at_us=seq * half_hour_us,
            started_at_us=START_US + seq * half_hour_us,
            finished_at_us=START_US + (seq + 1) * half_hour_us,
            group="orders",
        )
        for seq in range(5)
    ]
    out = tmp_path / "out"
    shop = Shop(out)
    monkeypatch.setattr("lbg_pipeline.forecast.apply.Cluster", lambda _: shop)
    journal = write_journal(tmp_path / "journal", records)
    (journal / "cut.jsonl").write_text('{"v":1,"kind":"publ\n')
    request = asked(
        FromJournals((str(journal),)),
        settings=ForecastSettings(now_us=START_US + 72 * HOUR_US),
        capacity=Capacity(None, 0.5, 1, 1, None),
        applying=Applying(None),
    )
    reply = answer(spark, request, str(out))
    found = reply.document
    assert found["broken_lines"] == spark.read.parquet(str(out / "broken")).count() == 1
    assert reply.lines[0].startswith("1 line is not a record")
    told = {one["group"]: one for one in found["groups"]}
    assert told["orders"]["capacity_messages_per_second"] == pytest.approx(0.5 / 1800)
    assert told["orders"]["season"] == "hour of day"
    assert {entry["minReplicas"] for entry in told["orders"]["schedule"]} == {3}, (
        "the most of the group, not ten"
    )
    assert shop.applied == [(Target("shop", "orders", 3), told["orders"]["schedule"])]
    assert (found["applied"], found["not_applied"]) == (
        {"orders": "shop/orders"},
        {"idle": "there is none for idle"},
    )
    assert told["idle"]["schedule"] == []
    assert any("give --capacity" in note for note in told["idle"]["notes"])
    assert (out / "patch-orders.yaml").exists()
    assert not (out / "patch.yaml").exists()


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (
            datetime(2026, 6, 1),
            "the history ends 70 days before now, too long ago for a forecast: .* or give --now TIME",
        ),
        (datetime(2026, 3, 1), "the history has no records before now: correct --now, or the paths"),
        (datetime(2026, 3, 2, 7, 30), "the history has no whole interval before now"),
    ],
)
def test_a_history_that_tells_nothing_of_now_is_refused(
    spark: SparkSession, history: FromTable, tmp_path: Path, now: datetime, why: str
) -> None:
    settings = ForecastSettings(now_us=micros(now, BERLIN), time_zone=BERLIN)
    with pytest.raises(ForecastRefused, match=why):
        answer(spark, asked(history, settings=settings), str(tmp_path / "out"))
