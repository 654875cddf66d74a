"""Spark's errors as one line: what, where, what to do."""

from __future__ import annotations

import pytest

from lbg_pipeline.errors import CheckpointRefused, JobFailed, JournalNotFound, SparkUnusable, error_of

WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "worker.py", line 4207, in invoke_udf
    func, profiler = read_udfs(
                     ^^^^^^^^^^
{raised}
"""


@pytest.mark.parametrize(
    ("raised", "kind", "line"),
    [
        (
            "ModuleNotFoundError: No module named 'pyarrow.lib'",
            SparkUnusable,
            "the Python of Spark's executors has no module pyarrow: install pyarrow, numpy and pandas there",
        ),
        (
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
            "different version: 3.12 than that in driver: 3.11, PySpark cannot run with different minor versions.\n"
            "Please check environment variables",
            SparkUnusable,
            "the Python of Spark's executors is 3.12, and this one is 3.11: name one of the same version",
        ),
        ("lbg_pipeline.errors.CheckpointRefused: of another LBG", CheckpointRefused, "of another LBG"),
        ("lbg_pipeline.errors.JournalNotFound: /x: gone", JournalNotFound, "/x: gone"),
        ("ValueError: line one\n  line two", JobFailed, "the Spark job failed: ValueError: line one"),
    ],
)
def test_the_exception_of_a_worker_is_the_reason(raised: str, kind: type[Exception], line: str) -> None:
    error = error_of(RuntimeError(WORKER.format(raised=raised)))
    assert type(error) is kind
    assert str(error).startswith(line)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "An error occurred while calling o85.count.\n: org.apache.spark.SparkException: Job aborted due to stage "
            "failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0 (TID 3) "
            '(10.0.0.7 executor 0): java.io.IOException: Cannot run program "/opt/python": error=2\n\tat java.lang…',
            "Spark's executors cannot run /opt/python: name their Python with --conf spark.pyspark.python=PATH",
        ),
        (
            "Job aborted due to stage failure: Task 3 in stage 0.0 failed 4 times, most recent failure: Lost task 3.3 "
            "in stage 0.0 (TID 7) (10.0.0.7 executor 3): ExecutorLostFailure (executor 3 exited caused by one of the "
            "running tasks) Reason: Command exited with code 137\nDriver stacktrace:",
            "the Spark job failed: Command exited with code 137",
        ),
        (
            "An error occurred while calling o7.collectToPython.\n: java.lang.IllegalStateException: no file",
            "the Spark job failed: no file",
        ),
    ],
)
def test_the_cause_of_a_lost_task_is_the_reason(text: str, line: str) -> None:
    assert str(error_of(RuntimeError(text))) == line
