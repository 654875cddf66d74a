"""Some hundred malformed requests for each HTTP server (`python -m testing.http_fuzz` sends more)."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.exploration import repetitions
from testing.http_fuzz import STARTED, TARGETS, Findings, Fuzzer, fuzz, tracebacks


@pytest.mark.parametrize("target", TARGETS)
def test_malformed_requests_cause_no_500_and_no_traceback(process: None, tmp_path: Path, target: str) -> None:
    findings = Findings()
    with STARTED[target](tmp_path) as (routes, _pid, log):
        fuzz(routes, Fuzzer(7), findings, goes_on=lambda requests: requests < repetitions(500, few=250))
        text = log()
    assert findings.failures + tracebacks(text) == []
    assert findings.statuses[200] > 20  # those without a fault are answered
    assert findings.statuses[400] > 20
    assert len(text.splitlines()) < findings.requests
