"""Families of frozen words, each with the function that collects it from the product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from testing.frozen_words import broker, command_line, listeners, members, operator, pipeline
from testing.frozen_words.words import Words, failure, read_frozen

PARQUET = "Parquet tables"
"""The family that five jobs of Spark write."""
FAMILIES: Mapping[str, Callable[[Path], Words]] = {
    "environment": command_line.environment,
    "command line": command_line.command_line,
    "output": command_line.output_documents,
    "exit codes": command_line.exit_codes,
    "objects on the broker": broker.broker_objects_of_a_group,
    "headers": broker.headers,
    "group record": broker.group_record,
    "messages between members": members.messages_between_members,
    "journal": members.journal,
    PARQUET: pipeline.parquet_tables,
    "metrics": listeners.metrics,
    "conditions": operator.condition_words,
    "HTTP paths": listeners.http_paths,
    "SQLite store": broker.sqlite_store,
    "stored bytes": members.stored_bytes,
    "Python": command_line.python_names,
    "custom resources": operator.crd_fields,
    "Kubernetes objects": operator.kubernetes_objects,
    "application": members.application,
}


def difference(family: str, place: Path) -> str:
    """Failure of a test; empty if the product has the frozen words and no others."""
    return failure(family, read_frozen().get(family, {}), FAMILIES[family](place))
