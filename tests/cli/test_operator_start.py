"""`lbg operator run` with a missing or wrong setting: one line with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from testing.command_line import Lbg, end_started, start_lbg
from testing.waiting import GUARD_S

NEEDED = {"LBG_OPERATOR_SIDECAR_IMAGE": "s:1", "LBG_OPERATOR_BROKER_IMAGE": "b:1"}


@pytest.mark.parametrize(
    ("told", "line"),
    [
        ({"LBG_OPERATOR_BROKER_IMAGE": ""}, "LBG_OPERATOR_BROKER_IMAGE is not set: name the image"),
        (
            {"LBG_OPERATOR_METRICS": "all"},
            "LBG_OPERATOR_METRICS 'all' must be one of auto, external, keda, none",
        ),
        ({"LBG_OPERATOR_SIDECAR_RESOURCES": "{"}, "LBG_OPERATOR_SIDECAR_RESOURCES is not JSON"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_2(
    lbg: Lbg, monkeypatch: pytest.MonkeyPatch, told: dict[str, str], line: str
) -> None:
    for name, value in (NEEDED | told).items():
        monkeypatch.setenv(name, value)
    said = lbg("operator", "run")
    assert (said.status, said.out, len(said.err.splitlines())) == (2, "", 1)
    assert said.err.startswith(f"lbg: error: {line}")


@pytest.mark.process
def test_a_cluster_that_nobody_named_is_one_line_too(tmp_path: Path) -> None:
    environment = {**NEEDED, "KUBECONFIG": str(tmp_path / "none"), "HOME": str(tmp_path)}
    process = start_lbg("operator", "run", "--port", "0", environment=environment)
    try:
        out, err = process.communicate(timeout=GUARD_S)
    finally:
        end_started()
    assert (process.returncode, out) == (1, "")
    assert err.splitlines()[-1].endswith("run in a pod with a service account, or set KUBECONFIG to a file")
