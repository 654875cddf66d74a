"""Journals of pods, and the chart's job that judges them."""

from __future__ import annotations

import helm_python as helm
import yaml

from e2e import stage
from e2e.conftest import CHART, RELEASE
from e2e.kubectl import Kubectl, Object, until

ROWS = 3000
VALIDATE = "lbg-pipeline-validate"


def jobs(namespace: str) -> list[Object]:
    """What the chart makes of the pipeline, as an upgrade would bring it."""
    small = {"requests": {"cpu": "100m", "memory": "1Gi"}}
    values = {
        "images": {"pipeline": stage.image("pipeline")},
        "pipeline": {
            "enabled": True,
            "namespace": namespace,
            "schedule": "@yearly",
            "journals": {"claim": "journals"},
            "out": {"claim": "reports"},
            "steps": {"profile": {"enabled": False}},
            "resources": small,
            "master": "local[1]",
        },
    }
    with helm.Chart.load(CHART) as chart:
        texts = chart.render(values, name=RELEASE, namespace=namespace)
    (text,) = (text for path, text in texts.items() if path.endswith("/pipeline.yaml"))
    return [one for one in yaml.safe_load_all(text) if one]


def is_over(shop: Kubectl, job: str) -> str:
    """How a job ended: Complete or Failed."""
    told = shop.get("job", job).get("status", {}).get("conditions", ())
    return "".join(
        one["type"] for one in told if one["status"] == "True" and one["type"] in ("Complete", "Failed")
    )


def validated(shop: Kubectl, job: str) -> str:
    shop("create", "job", f"--from=cronjob/{VALIDATE}", job)
    return until(lambda: is_over(shop, job), what=f"the end of {job}", timeout_s=300)


def test_what_was_published_and_consumed_is_proved_from_journals_and_a_missing_one_is_found(
    shop: Kubectl,
) -> None:
    folder = f"{shop.namespace}-flights"
    shop.apply(stage.claim("journals"), stage.claim("reports"), *jobs(shop.namespace))
    group = stage.group("flights", replicas=2)
    group["spec"]["consumer"]["sidecar"] |= {"journal": {"volumeClaim": "journals"}, "republish": False}
    shop.apply(group)
    until(lambda: stage.is_condition(shop, "lbg", "flights", "Ready"), what="a group that is served")
    shop.apply(stage.publisher("flights", rows=ROWS, journal=folder, claim="journals"))
    shop.apply(stage.shell("flights", claim="journals"))
    stage.published(shop)
    until(lambda: shop.get("lbg", "flights")["status"].get("lag") == 0, what="all to be worked off")
    shop("scale", "lbg/flights", "--replicas=0")
    until(lambda: not shop.select("pod", "lbg.dev/group=flights"), what="the consumers to be gone")

    assert validated(shop, f"first-{VALIDATE}-1") == "Complete", shop("logs", f"job/first-{VALIDATE}-1")
    delivered = f"/journals/{folder}/delivered-*"
    shop("exec", "shell", "--", "sh", "-c", f"rm $(ls {delivered} | head -n 1)")
    assert validated(shop, f"second-{VALIDATE}-2") == "Failed"
    assert "lost" in shop("logs", f"job/second-{VALIDATE}-2")
