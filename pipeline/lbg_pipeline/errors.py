"""Errors of the pipeline; `str()` is one line with the place and the remedy.

    PipelineError
    ├── SparkUnusable      no PySpark, no Java, a master that does not answer, or executors without a module
    ├── JournalNotFound    a path that holds no journal, or cannot be read
    ├── NoRecords          journals without a record, or without one of a named group or key
    ├── NewerSchema        a journal of a newer LBG: `file`, `version`
    ├── CheckpointRefused  a checkpoint of a stream that another LBG wrote
    ├── JobFailed          Spark failed a job, with Spark's reason
    ├── OutputRefused      the output directory holds something else, or cannot be written
    ├── PlanRefused        nothing to plan with, or a manifest that is not of the group in the journals
    ├── HistoryRefused     a table that is no history of demand, or has rows without a time or a count
    ├── ForecastRefused    a history that ended long ago, or nothing to make a schedule with
    └── ClusterRefused     the API server does not answer or allow, or has no group for a schedule

All of them need an operator's correction.
"""

from __future__ import annotations

import re


class PipelineError(Exception):
    """Base of every error of this package."""


class SparkUnusable(PipelineError):
    pass


class JournalNotFound(PipelineError):
    pass


class NoRecords(PipelineError):
    pass


class NewerSchema(PipelineError):
    def __init__(self, file: str, version: int, newest: int) -> None:
        super().__init__(
            f"journal {file} has records of version {version}, and this LBG reads version {newest}: upgrade it"
        )
        self.file = file
        self.version = version


class CheckpointRefused(PipelineError):
    pass


class OutputRefused(PipelineError):
    pass


class PlanRefused(PipelineError):
    pass


class HistoryRefused(PipelineError):
    pass


class ForecastRefused(PipelineError):
    pass


class ClusterRefused(PipelineError):
    pass


class JobFailed(PipelineError):
    """Spark failed a job; the message has Spark's reason."""


_OURS = re.compile(r"lbg_pipeline\.errors\.(?P<name>\w+): (?P<message>.+)")
_MODULE = re.compile(r"No module named '(?P<name>[^'.]+)")
_VERSIONS = re.compile(r"different version:? (?P<theirs>[\d.]+) than that in driver:? (?P<ours>[\d.]+)")
_PROGRAM = re.compile(r'Cannot run program "(?P<name>[^"]+)"')
_TRACEBACK = "Traceback (most recent call last):"
_TASK = re.compile(r"most recent failure: Lost task [^:]*: (?P<cause>.+)")
_LOST = re.compile(r"ExecutorLostFailure .*Reason: (?P<cause>.+)")
_JAVA_CLASS = re.compile(r"^(: )?([a-z]\w*\.)+[A-Z][\w$]*: ")


def error_of(error: Exception) -> PipelineError:
    """The error of a job for one of Spark's: our own that a worker or an epoch raised, or Spark's reason in one
    line."""
    text = str(error)
    if match := _OURS.search(text):
        kind: type[PipelineError] = globals()[match["name"]]
        refused = kind.__new__(kind)
        Exception.__init__(refused, match["message"].strip())
        return refused
    reason = reason_of(text)
    if match := _VERSIONS.search(reason):
        return SparkUnusable(
            f"the Python of Spark's executors is {match['theirs']}, and this one is {match['ours']}: name one of the "
            "same version with --conf spark.pyspark.python=PATH"
        )
    if match := _PROGRAM.search(reason):
        return SparkUnusable(
            f"Spark's executors cannot run {match['name']}: name their Python with --conf spark.pyspark.python=PATH"
        )
    if match := _MODULE.search(reason):
        return SparkUnusable(
            f"the Python of Spark's executors has no module {match['name']}: install pyarrow, numpy and pandas there "
            "(LBG itself is sent to them), or name another Python with --conf spark.pyspark.python=PATH"
        )
    return JobFailed(f"the Spark job failed: {reason}")


def reason_of(text: str) -> str:
    """The cause in the text of an error of Spark's: the exception of a Python worker, or the first line of Java's."""
    _, traceback, frames = text.rpartition(_TRACEBACK)
    if traceback:
        raised = (line for line in frames.splitlines() if line and not line[0].isspace())
        return next(raised, traceback).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (_LOST, _TASK):
        for line in lines:
            if match := pattern.search(line):
                return _JAVA_CLASS.sub("", match["cause"]).strip()
    causes = [
        line for line in lines if ("Exception:" in line or "Error:" in line) and not line.startswith("at ")
    ]
    return _JAVA_CLASS.sub("", (causes or lines or ["no reason"])[0])
