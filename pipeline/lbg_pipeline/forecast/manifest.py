"""`scaling.schedule` of a LoadBalancedGroup, and the merge patch that sets it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from .scheduling import Need
from .settings import DAY_S
from .weekly import WeeklyNeed

Entry = dict[str, Any]


def dated_entry(need: Need) -> Entry:
    return {"minReplicas": need.replicas, "from": rfc3339(need.from_s), "until": rfc3339(need.until_s)}


def weekly_entry(need: WeeklyNeed, *, time_zone: str) -> Entry:
    times = {"from": _clock(need.from_s), "until": _clock(need.until_s)}
    return {"minReplicas": need.replicas, "weekly": {"days": list(need.days), **times, "timeZone": time_zone}}


def patch(schedule: Sequence[Entry]) -> Entry:
    return {"spec": {"scaling": {"schedule": list(schedule)}}}


def patch_yaml(group: str, schedule: Sequence[Entry], *, remarks: Iterable[str]) -> str:
    """With an entry a line. JSON is YAML, so each entry is written as JSON: no text of ours can break it."""
    told = f"group {_one_line(group)}: kubectl patch lbg NAME --type merge --patch-file FILE"
    lines = [f"# {line}" for line in (told, *remarks)]
    entries = [f"    - {_flow(entry)}" for entry in schedule]
    return (
        "\n".join([*lines, "spec:", "  scaling:", "    schedule:" + ("" if entries else " []"), *entries])
        + "\n"
    )


def rfc3339(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _clock(of_day_s: int) -> str:
    """Midnight at a day's end is its beginning: an `until` that is not after `from` is of the next day."""
    minutes = of_day_s % DAY_S // 60
    return f"{minutes // 60:02}:{minutes % 60:02}"


def _flow(entry: Mapping[str, Any]) -> str:
    return json.dumps(entry, ensure_ascii=True)


def _one_line(text: str) -> str:
    return json.dumps(text, ensure_ascii=True)
