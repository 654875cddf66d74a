"""Journals of pods, and the chart's jobs that judge them and forecast by them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import helm_python as helm
import yaml

from e2e import stage
from e2e.conftest import CHART, RELEASE
from e2e.kubectl import Kubectl, Object, until
from lbg_core.group import default_group_name

ROWS = 3000
VALIDATE, FORECAST = "lbg-pipeline-validate", "lbg-pipeline-forecast"
HOURS, HOURLY = 15 * 24, 60
"""Of history that is forecast by, and the messages of each hour."""
PER_MEMBER_S = 0.008
"""Messages a second: three members do what an hour brings, and two do not."""


def jobs(namespace: str, steps: Object) -> list[Object]:
    """Objects of the chart for the pipeline, as after an upgrade."""
    small = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    values = {
        "images": {"pipeline": stage.image("pipeline")},
        "pipeline": {
            "enabled": True,
            "namespace": namespace,
            "schedule": "@yearly",
            "journals": {"claim": "journals"},
            "out": {"claim": "reports"},
            "steps": {"validate": {"enabled": False}, "profile": {"enabled": False}, **steps},
            "resources": small,
            "master": "local[1]",
        },
    }
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name=RELEASE, namespace=namespace)
    (text,) = (text for path, text in texts.items() if path.endswith("/pipeline.yaml"))
    return [one for one in yaml.safe_load_all(text) if one]


def is_over(shop: Kubectl, job: str) -> str:
    """End of a job: Complete or Failed."""
    told = shop.get("job", job).get("status", {}).get("conditions", ())
    return "".join(
        one["type"] for one in told if one["status"] == "True" and one["type"] in ("Complete", "Failed")
    )


def ended(shop: Kubectl, cron_job: str, job: str) -> str:
    """End of a job of the CronJob."""
    shop("create", "job", f"--from=cronjob/{cron_job}", job)
    return until(lambda: is_over(shop, job), what=f"the end of {job}", timeout_s=300)


def history(group: str) -> str:
    """A publisher's journal of the last days, with as many messages each hour."""
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    lines = []
    for at in range(HOURS * HOURLY):
        sent = end - timedelta(hours=HOURS) + at * timedelta(hours=1) / HOURLY
        sent_us = int(sent.timestamp() * 1e6)
        lines.append(
            {
                "v": 1,
                "kind": "published",
                "publisher": "past-1",
                "key": f"key-{at % 50}",
                "hash": 0,
                "queue": 0,
                "seq": at,
                "published_at_us": sent_us,
                "confirmed_at_us": sent_us + 900,
                "resends": 0,
                "group": group,
                "body_bytes": 100,
            }
        )
    return "".join(f"{json.dumps(one)}\n" for one in lines)


def test_what_was_published_and_consumed_is_proved_from_journals_and_a_missing_one_is_found(
    shop: Kubectl,
) -> None:
    folder = default_group_name(shop.namespace, "flights")
    shop.apply(
        stage.claim("journals"),
        stage.claim("reports"),
        *jobs(shop.namespace, {"validate": {"enabled": True}}),
    )
    group = stage.group("flights", replicas=2, republish=False)
    group["spec"]["consumer"]["sidecar"]["journal"] = {"volumeClaim": "journals"}
    shop.apply(group)
    until(lambda: stage.is_condition(shop, "lbg", "flights", "Ready"), what="a group that is served")
    shop.apply(stage.publisher("flights", rows=ROWS, journal=folder, claim="journals"))
    shop.apply(stage.shell("flights", claim="journals"))
    stage.published(shop)
    until(lambda: shop.get("lbg", "flights")["status"].get("lag") == 0, what="all to be worked off")
    shop("scale", "lbg/flights", "--replicas=0")
    until(lambda: not shop.select("pod", "lbg.dev/group=flights"), what="the consumers to be gone")

    assert ended(shop, VALIDATE, f"first-{VALIDATE}-1") == "Complete", shop("logs", f"job/first-{VALIDATE}-1")
    delivered = f"/journals/{folder}/delivered-*"
    shop("exec", "shell", "--", "sh", "-c", f"rm $(ls {delivered} | head -n 1)")
    assert ended(shop, VALIDATE, f"second-{VALIDATE}-2") == "Failed"
    assert "lost" in shop("logs", f"job/second-{VALIDATE}-2")


def test_a_job_forecasts_from_journals_and_sets_the_schedule_that_consumers_follow(shop: Kubectl) -> None:
    forecast = {"enabled": True, "apply": True, "args": ["--capacity", str(PER_MEMBER_S)]}
    shop.apply(stage.claim("journals"), stage.claim("reports"), *jobs(shop.namespace, {"forecast": forecast}))
    shop.apply(stage.group("flights", scaling={"maxReplicas": 4, "targetLag": 1000}))
    until(lambda: stage.is_condition(shop, "lbg", "flights", "Ready"), what="a group that is served")
    shop.apply(stage.shell("flights", claim="journals"))
    until(lambda: shop.get("pod", "shell")["status"].get("phase") == "Running", what="the shell")
    group = default_group_name(shop.namespace, "flights")
    folder = f"/journals/{group}"
    write = f"mkdir {folder} && cat > {folder}/published-past-1-20260101T000000000000Z-000000.jsonl"
    shop("exec", "-i", "shell", "--", "sh", "-c", write, given=history(group))

    job = f"now-{FORECAST}-1"
    assert ended(shop, FORECAST, job) == "Complete", shop("logs", f"job/{job}")
    group = json.loads(shop("get", "lbg", "flights", "-o", "json", "--show-managed-fields"))
    assert {one["minReplicas"] for one in group["spec"]["scaling"]["schedule"]} == {3}
    (owner,) = (one for one in group["metadata"]["managedFields"] if one["manager"] == "lbg-forecast")
    assert owner["fieldsV1"] == {"f:spec": {"f:scaling": {"f:schedule": {}}}}, "it owns the schedule alone"
    until(lambda: shop.get("lbg", "flights")["status"].get("memberCount") == 3, what="three consumers")
    assert shop.get("lbg", "flights")["status"]["scaling"]["why"] == "Schedule"
