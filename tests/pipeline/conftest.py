"""One small Spark for all tests of the pipeline that run in a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(process: None) -> Iterator[SparkSession]:
    """Two cores, one gigabyte, and as few tasks as show that there is more than one.

    A test has a few rows: planning anew after each stage, and compiling what then runs once, would be most of its time.
    """
    from lbg_pipeline.spark.session import spark_session

    session = spark_session(
        "tests",
        master="local[2]",
        settings={
            "spark.driver.memory": "1g",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.adaptive.enabled": "false",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )
    yield session
    session.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure says how the JVM of this process ended, if it did: its last words go nowhere."""
    report = yield
    if report.failed and "spark" in getattr(item, "fixturenames", ()):
        report.sections += [("Spark's JVM", words) for words in _ended_jvms()]
    return report


def _ended_jvms() -> Iterator[str]:
    """Wait statuses of the ended children of this process that are Java and were not waited for (proc(5))."""
    for listed in Path("/proc/self/task").glob("*/children"):
        for child in listed.read_text().split():
            name, _, rest = Path("/proc", child, "stat").read_text().rpartition(") ")
            fields = rest.split()
            if "(java" in name and fields[0] == "Z":
                yield f"process {child} ended with wait status {fields[-1]} (below 128: that signal)"
