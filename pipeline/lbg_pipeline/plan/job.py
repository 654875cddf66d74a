"""The whole job: journals in, a directory with the plan out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from ..reading import read_journals
from ..reading.journals import DEFAULT_GROUP
from ..writing import Output
from .candidates import candidates_table
from .gathering import observe
from .manifest import Declared
from .planning import Wishes, plan_for
from .report_page import plan_page
from .reporting import patch_yaml, plan_json, plan_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """- `declared`: the group's manifest. `group`: by default the manifest's, or the only one in the journals.
    - `default_group`: of records that name none; by default the one that is asked for.
    """

    journals: tuple[str, ...]
    group: str | None = None
    default_group: str | None = None
    declared: Declared | None = None
    service_time_us: float | None = None
    wishes: Wishes = field(default_factory=Wishes)


@dataclass(frozen=True, slots=True)
class Report:
    lines: tuple[str, ...]
    told: dict[str, Any]


def answer(
    spark: SparkSession,
    question: Question,
    out: str,
    *,
    says: Callable[[str], None] = lambda phase: None,
) -> Report:
    """Raises PipelineError. `says` hears what begins."""
    declared = question.declared
    group = question.group or (None if declared is None else declared.group)
    default_group = question.default_group or group or DEFAULT_GROUP
    journals = read_journals(spark, question.journals, default_group=default_group)
    output = Output(spark, out)
    says("counting the work of keys")
    observed = observe(
        journals.published, journals.delivered, group=group, service_time_us=question.service_time_us
    )
    try:
        plan = plan_for(observed, question.wishes, declared, says=says)
        says("writing the plan")
        choice = plan.choice
        output.table(
            "candidates",
            candidates_table(
                spark, choice.candidates, recommended=choice.recommended, existing=choice.existing
            ),
        )
        output.table("hot_keys", plan.hot_keys.coalesce(1))
    finally:
        observed.release()
    output.table("broken", journals.broken)
    broken = output.read("broken").count()
    if plan.proposal.patch is None:
        output.without("patch.yaml")
    else:
        output.text("patch.yaml", patch_yaml(plan))
    report = plan_json(plan, observed, broken=broken)
    output.text("plan.json", json.dumps(report, indent=2) + "\n")
    output.text("report.html", plan_page(plan, observed))
    return Report(tuple(plan_lines(plan, observed, broken=broken)), report)
