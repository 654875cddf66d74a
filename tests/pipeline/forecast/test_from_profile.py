"""The tables of a profile are as good a history as its journals."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbg_pipeline.errors import HistoryRefused
from lbg_pipeline.forecast.model import HOUR_S, ForecastSettings
from lbg_pipeline.forecast.result import Scheduling
from testing.journal.rows import START_US, delivered, published, write_journal
from testing.pipeline.demand_series import HOUR_US


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global Capacity, FromJournals, FromProfiles, Request, Row, Source, SparkSession, answer, collected
    global counted, demand, profile, sourced
    from pyspark.sql import Row, SparkSession

    from lbg_pipeline.forecast.history import FromJournals, FromProfiles, Source, counted, demand, sourced
    from lbg_pipeline.forecast.job import Capacity, Request, answer, collected
    from lbg_pipeline.profile import job as profile


pytestmark = pytest.mark.slow

HOURS = 60
MINUTE_US = 60_000_000


@pytest.fixture(scope="module")
def kept(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`journal`, and `profile` of it: sixty hours that begin and end within a minute."""
    directory = tmp_path_factory.mktemp("kept")
    sent_us = [
        hour * HOUR_US + 7_000_000 + place * 11 * MINUTE_US
        for hour in range(HOURS)
        for place in range(1 + hour % 5)
    ]
    records: list = [published(seq, at_us=at_us, group="orders") for seq, at_us in enumerate(sent_us)]
    records += [
        delivered(seq, at_us=at_us + 2000, published_at_us=START_US + at_us, group="orders", member=seq % 2)
        for seq, at_us in enumerate(sent_us)
    ]
    write_journal(directory / "journal", records)
    profile.run(spark, profile.Request(journals=(str(directory / "journal"),)), str(directory / "profile"))
    return directory


def asked_of(spark: SparkSession, source: Source, settings: ForecastSettings) -> list[Row]:
    found = sourced(spark, source, groups=(), rates=())
    return demand(counted(found.arrived, settings), settings).orderBy("start_us").collect()


@pytest.mark.parametrize("interval_s", [60, HOUR_S])
def test_its_table_of_demand_says_the_same_as_the_journals(
    spark: SparkSession, kept: Path, interval_s: int
) -> None:
    settings = ForecastSettings(now_us=START_US + (HOURS + 1) * HOUR_US, interval_s=interval_s)
    of_journals = asked_of(spark, FromJournals((f"{kept}/journal",)), settings)
    assert of_journals == asked_of(spark, FromProfiles((f"{kept}/profile/demand",)), settings)
    assert of_journals[0]["start_us"] >= START_US, "what was recorded in part is left out"


def test_its_table_of_rates_says_the_same_of_the_service_time(spark: SparkSession, kept: Path) -> None:
    journals, tables = FromJournals((f"{kept}/journal",)), FromProfiles((f"{kept}/profile/demand",))
    of_journals = sourced(spark, journals, groups=(), rates=()).measured
    of_rates = sourced(spark, tables, groups=(), rates=(f"{kept}/profile/rates",)).measured
    assert of_journals is not None
    assert of_rates is not None
    assert collected(of_journals) == collected(of_rates)


def test_a_forecast_is_made_from_the_tables_alone(spark: SparkSession, kept: Path, tmp_path: Path) -> None:
    request = Request(
        FromProfiles((f"{kept}/*/demand",)),
        ("orders",),
        (f"{kept}/profile/rates",),
        ForecastSettings(now_us=START_US + HOURS * HOUR_US, horizon_s=4 * HOUR_S, backtest_periods=1),
        Capacity(None, 0.7, 1, 1, 5),
        Scheduling(300, False),
        None,
    )
    (told,) = answer(spark, request, str(tmp_path / "out")).document["groups"]
    assert told["history"]["messages"] == sum(1 + hour % 5 for hour in range(1, HOURS - 1))
    assert (tmp_path / "out" / "patch.yaml").exists()


def test_a_profile_that_had_no_publishers_is_told_what_to_name_instead(
    spark: SparkSession, kept: Path, tmp_path: Path
) -> None:
    spark.read.parquet(f"{kept}/profile/demand").limit(0).write.parquet(f"{tmp_path}/demand")
    with pytest.raises(HistoryRefused, match="had no journal of a publisher"):
        sourced(spark, FromProfiles((f"{tmp_path}/demand",)), groups=(), rates=())
    rates = sourced(spark, FromProfiles((f"{kept}/profile/rates",)), groups=(), rates=())
    assert rates.arrived.groupBy().sum("messages").collect() == [
        (sum(1 + hour % 5 for hour in range(HOURS)),)
    ]


def test_a_whole_profile_in_place_of_its_table_is_told_which_table(spark: SparkSession, kept: Path) -> None:
    with pytest.raises(HistoryRefused, match=r"cannot be read as Parquet: .+: name tables `demand` with"):
        sourced(spark, FromProfiles((f"{kept}/profile",)), groups=(), rates=())
