"""Damaged sessions of a real client against a broker process."""

from __future__ import annotations

from pathlib import Path

from testing.broker.embedded import EmbeddedBroker
from testing.exploration import repetitions
from testing.mutated_sessions import run


def test_damaged_sessions_cause_no_error_and_stop_nobody(process: None, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data") as broker:
        assert run(broker, numbers=range(repetitions(500, few=200)), seed=1).lines == []
