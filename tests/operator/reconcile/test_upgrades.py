"""An operator that is upgraded restarts nobody: what it makes of a manifest is what the release before made of it.

The images are another matter: the settings name them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testing.operator.recorded_workloads import workloads

RECORDED = dict(map(json.loads, (Path(__file__).parent / "workloads_0afc101.jsonl").read_text().splitlines()))
"""Of the release before."""


@pytest.fixture(scope="module")
def made() -> dict[str, Any]:
    """Objects of the present code, as JSON."""
    return dict(json.loads(json.dumps(list(workloads().items()))))


def test_all_that_is_recorded_is_made_today(made: dict[str, Any]) -> None:
    assert RECORDED.keys() == made.keys()


@pytest.mark.parametrize("what", RECORDED)
def test_a_workload_is_what_the_release_before_made_of_the_same_manifest(
    what: str, made: dict[str, Any]
) -> None:
    assert made[what] == RECORDED[what]


def test_the_recorded_workloads_have_all_modes_channels_and_kinds() -> None:
    told = json.dumps(RECORDED)
    for word in (
        "http-batch",
        "stream",
        "LBG_COMMITS",
        "LBG_CLIENTS",
        "LBG_JOURNAL",
        "fsGroup",
        "LBG_CAFILE",
    ):
        assert word in told
    assert {one["kind"] for one in RECORDED.values()} == {"Deployment", "StatefulSet"}
