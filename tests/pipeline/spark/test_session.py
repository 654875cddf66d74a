"""The Spark session: what it is set to, and what is said where it cannot start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lbg_pipeline.errors import SparkUnusable


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global SparkConf, SparkSession, fit_shuffles, spark_session
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    from lbg_pipeline.spark.session import fit_shuffles, spark_session


def test_times_are_utc_and_nothing_listens_beyond_this_machine(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.getConf().get("spark.ui.enabled") == "false"


def test_a_machine_without_java_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SparkUnusable, match="Spark needs Java 17 or 21, and none is installed: install a JRE"
    ):
        spark_session("tests")


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnusable, match=f"JAVA_HOME is {tmp_path}, which has no bin/java"):
        spark_session("tests")


class Session:
    """Stand-in for the parts of a session that `fit_shuffles` reads."""

    class Conf:
        def __init__(self) -> None:
            self.told: dict[str, Any] = {}

        def set(self, name: str, value: Any) -> None:
            self.told[name] = value

    def __init__(self, master: str, *, cores: int, settings: dict[str, str]) -> None:
        self.sparkContext = self
        self.master = master
        self.defaultParallelism = cores
        self.conf = self.Conf()
        self._settings = settings

    def getConf(self) -> SparkConf:
        return SparkConf(loadDefaults=False).setAll(list(self._settings.items()))


def test_shuffles_fit_what_is_read_unless_the_user_has_said_otherwise() -> None:
    session = Session("local[2]", cores=2, settings={})
    fit_shuffles(session)
    assert session.conf.told == {"spark.sql.shuffle.partitions": 4}
    fit_shuffles(session, read_bytes=10 << 30)
    assert session.conf.told == {"spark.sql.shuffle.partitions": 160}
    for other in (
        Session("local[2]", cores=2, settings={"spark.sql.shuffle.partitions": "9"}),
        Session("spark://somewhere:7077", cores=2, settings={}),
    ):
        fit_shuffles(other, read_bytes=10 << 30)
        assert other.conf.told == {}
