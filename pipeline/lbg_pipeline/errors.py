"""Errors of the pipeline; `str()` is one line with the place and the remedy.

    PipelineError
    ├── SparkUnusable      no PySpark, no Java, or a master that does not answer
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


_OURS = re.compile(r"lbg_pipeline\.errors\.(?P<name>NewerSchema|CheckpointRefused): (?P<message>.+)")


def error_of(error: Exception) -> PipelineError | None:
    """Our own error that a worker raised, out of the one that Spark makes of it; None if it is something else."""
    match = _OURS.search(str(error))
    if match is None:
        return None
    kind: type[PipelineError] = NewerSchema if match["name"] == "NewerSchema" else CheckpointRefused
    refused = kind.__new__(kind)
    Exception.__init__(refused, match["message"].strip())
    return refused
