"""Plan job: journals in, a directory with the plan out."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from lbg_pipeline.journal.cached import cache_journals
from lbg_pipeline.plan.candidates import HOT_KEYS, candidates_table
from lbg_pipeline.plan.load import observe
from lbg_pipeline.plan.manifest import Declared
from lbg_pipeline.plan.page import plan_page
from lbg_pipeline.plan.recommend import Wishes, plan_for
from lbg_pipeline.plan.report import patch_yaml, plan_json, plan_lines
from lbg_pipeline.spark.jobs import run_concurrently
from lbg_pipeline.spark.output import Output

_PUBLISHED = ("group", "key", "hash", "queue", "published_at_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """`declared`: the group's manifest. `group`: by default the manifest's, or the only one in the journals."""

    journals: tuple[str, ...]
    group: str | None = None
    declared: Declared | None = None
    service_time_us: float | None = None
    wishes: Wishes = field(default_factory=Wishes)


@dataclass(frozen=True, slots=True)
class Report:
    lines: tuple[str, ...]
    document: dict[str, Any]


def answer(
    spark: SparkSession,
    question: Question,
    out: str,
    *,
    on_phase: Callable[[str], None] = lambda phase: None,
) -> Report:
    """Raises PipelineError. `on_phase` hears what begins."""
    declared = question.declared
    group = question.group or (None if declared is None else declared.group)
    journals = cache_journals(
        spark,
        question.journals,
        published=_PUBLISHED,
        delivered=(*_PUBLISHED, "mode", "verdict", "started_at_us", "finished_at_us"),
    )
    output = Output(spark, out)
    with ExitStack() as cleanup:
        cleanup.callback(journals.release)
        on_phase("counting the work of keys")
        observed = observe(journals, group=group, service_time_us=question.service_time_us)
        cleanup.callback(observed.release)
        plan = plan_for(observed, question.wishes, declared, on_phase=on_phase)
        on_phase("writing the plan")
        choice = plan.choice
        candidates = candidates_table(
            spark, choice.candidates, recommended=choice.recommended, existing=choice.existing
        )
        hottest = spark.createDataFrame(list(plan.hottest), HOT_KEYS).coalesce(1)
        written = {"candidates": candidates, "hot_keys": hottest, "broken": journals.broken}
        run_concurrently(partial(output.table, name, table) for name, table in written.items())
        broken = journals.broken.count()
    if plan.proposal.patch is None:
        output.without("patch.yaml")
    else:
        output.text("patch.yaml", patch_yaml(plan))
    report = plan_json(plan, observed, broken=broken)
    output.text("plan.json", json.dumps(report, indent=2) + "\n")
    output.text("report.html", plan_page(plan, observed))
    return Report(tuple(plan_lines(plan, observed, broken=broken)), report)
