"""Health of an object in tools that wait for it: by kstatus' rules for a kind without
rules of its own, and in Argo CD by the script of examples/argo-cd-health.yaml.

kstatus (sigs.k8s.io/cli-utils, pkg/kstatus, README and package documentation) is what Flux, kpt and cli-utils go by.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from lupa.lua54 import LuaRuntime

from testing import ROOT

ARGO_CD = ROOT / "examples" / "argo-cd-health.yaml"
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
    """Result of the page's Lua, run as in Argo CD: `obj` is the object, the status its result."""
    runtime = LuaRuntime(unpack_returned_tuples=True)
    runtime.globals().obj = runtime.table_from(seen, recursive=True)
    return str(runtime.execute(argo_script()).status)


def argo_script() -> str:
    """The Lua of the file, as the API server would have it in the ConfigMap."""
    (script,) = yaml.safe_load(ARGO_CD.read_text())["data"].values()
    return str(script)
