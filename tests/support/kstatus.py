"""How tools that wait for objects judge one of ours: kstatus' rules for a kind without rules of its own, and Argo CD's
by the rules of docs/gitops.md.

kstatus (sigs.k8s.io/cli-utils, pkg/kstatus, README and package documentation) is what Flux, kpt and cli-utils go by.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gitops.md"
Object = Mapping[str, Any]


def kstatus(seen: Object) -> str:
    """Terminating, InProgress, Failed or Current, in the order in which these are looked for."""
    metadata, status = seen["metadata"], seen.get("status", {})
    if "deletionTimestamp" in metadata:
        return "Terminating"
    observed = status.get("observedGeneration")
    if observed is not None and observed != metadata["generation"]:
        return "InProgress"
    said = {one["type"]: one["status"] for one in status.get("conditions", ())}
    if said.get("Reconciling") == "True":
        return "InProgress"
    if said.get("Stalled") == "True":
        return "Failed"
    return "Current" if said.get("Ready", "True") == "True" else "InProgress"


def argo_health(seen: Object) -> str:
    """By the table of rules in the page's Lua: the first that a condition fits."""
    status = seen.get("status", {})
    if "conditions" not in status or status["observedGeneration"] != seen["metadata"]["generation"]:
        return "Progressing"
    for rule in argo_rules():
        wanted = {name: value for name, value in rule.items() if name != "health"}
        if any(wanted.items() <= one.items() for one in status["conditions"]):
            return rule["health"]
    return "Progressing"


def argo_rules() -> list[dict[str, str]]:
    lines = re.findall(r"^\s*\{(type = .*?)\},$", PAGE.read_text(), re.M)
    return [dict(re.findall(r'(\w+) = "(\w+)"', line)) for line in lines]
