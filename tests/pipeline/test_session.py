"""The Spark session: what it is set to, and what is said where it cannot start."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lbg_pipeline.errors import SparkUnusable
from lbg_pipeline.session import spark_session


def test_times_are_utc_and_nothing_listens_beyond_this_machine(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.getConf().get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.sparkContext.getConf().get("spark.ui.enabled") == "false"


def test_a_machine_without_java_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnusable, match="Spark needs Java 17 or 21, and there is none: install a JRE"):
        spark_session("tests")


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnusable, match=f"JAVA_HOME is {tmp_path}, and there is no bin/java in it"):
        spark_session("tests")
