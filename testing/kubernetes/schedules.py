"""Schedules as people write them, in the `scaling` of a group."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from lbg_operator.crds import GroupManifest, Scaling
from lbg_operator.crds.scaling import DAYS
from testing.kubernetes.manifests import group_manifest


def scaling(*schedule: Mapping[str, Any], least: int = 2) -> Scaling:
    manifest = group_manifest({"scaling": {"minReplicas": least, "maxReplicas": 8, "schedule": [*schedule]}})
    found = GroupManifest.parse(manifest).scaling
    assert found is not None
    return found


def dated(replicas: int, begins: str, ends: str) -> dict[str, Any]:
    return {"minReplicas": replicas, "from": begins, "until": ends}


def weekly(
    replicas: int, begins: str, ends: str, *days: str, zone: str | None = "Europe/Berlin"
) -> dict[str, Any]:
    told = {"days": list(days or DAYS), "from": begins, "until": ends}
    return {"minReplicas": replicas, "weekly": told if zone is None else {**told, "timeZone": zone}}


def at(moment: str) -> datetime:
    return datetime.fromisoformat(moment)
