"""Commands of the pages on scaling, brokers, ownership and planning, as they stand, each beside what its page says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from e2e import stage
from e2e.conftest import SYSTEM
from e2e.documents import Shell, blocks
from e2e.kubectl import Kubectl, Object, until
from lbg_core.group import default_group_name

MESSAGES = 200


@pytest.fixture
def shell(shop: Kubectl, tmp_path: Path) -> Shell:
    return Shell(tmp_path, shop.namespace, {"lbg-system": SYSTEM, "shop": shop.namespace})


def ready(shop: Kubectl, group: str) -> None:
    until(lambda: stage.is_condition(shop, "lbg", group, "Ready"), what=f"group {group} to be ready")


def test_more_consumers_than_queues_raise_the_number_of_queues(shop: Kubectl, shell: Shell) -> None:
    group = stage.group("orders", queues=2, replicas=4)
    group["spec"]["queues"]["max"] = 4
    shop.apply(group)
    until(lambda: shop.get("lbg", "orders")["status"].get("queueCount") == 4, what="four queues")
    (look,) = blocks("balance-and-scale.md", "What to look at")
    assert "QueuesScaled" in shell.run(look)


def test_scaling_by_lag_and_by_schedule_is_looked_at(shop: Kubectl, shell: Shell) -> None:
    weekly = {"days": ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], "from": "00:00", "until": "00:00"}
    entry = {"minReplicas": 2, "weekly": weekly}
    shop.apply(stage.group("orders", scaling={"maxReplicas": 3, "targetLag": 500, "schedule": [entry]}))
    ready(shop, "orders")
    (look,) = blocks("kubernetes.md", "Autoscaling")
    metrics = [line for line in shell.text(look).splitlines() if "--raw" in line]
    until(lambda: json.loads(shop(*metrics_words(metrics)))["items"], what="the metric of the lag")
    shown = shell.run(look)
    assert "ScalingActive" in shown
    values = json.loads(shown.splitlines()[-1])
    assert [one["metricName"] for one in values["items"]] == ["lbg_group_lag"]
    until(lambda: shop.get("lbg", "orders")["status"].get("scaling", {}).get("why") == "Schedule", what="it")
    (look,) = blocks("balance-and-scale.md", "What to look at")
    shown = shell.run(look)
    assert '"minReplicas":2' in shown
    assert re.search(r"\bLEAST\b", shown)
    assert "ScheduledReplicas" in shown


def metrics_words(lines: list[str]) -> tuple[str, ...]:
    (line,) = lines
    return ("get", "--raw", line.split("'")[1])


def test_the_volume_of_a_broker_grows_or_the_class_that_cannot_is_named(shop: Kubectl, shell: Shell) -> None:
    """The default class of kind cannot grow a volume."""
    before = shop.get("pvc", "main-lbg-data")["spec"]
    (grow,) = blocks("embedded-broker.md", "Growing its volume")
    shell.watch(grow, seconds=3)
    if shop.get("storageclass", before["storageClassName"]).get("allowVolumeExpansion"):
        until(lambda: requested(shop) == "50Gi", what="the claim to ask for more")
        return
    until(
        lambda: stage.condition(shop.get("broker", "main"), "Degraded").get("reason") == "VolumeRefused",
        what="the Broker to name the class's refusal",
    )
    assert requested(shop) == before["resources"]["requests"]["storage"]
    assert shop.get("statefulset", "main")["status"]["readyReplicas"] == 1


def requested(shop: Kubectl) -> str:
    return str(shop.get("pvc", "main-lbg-data")["spec"]["resources"]["requests"]["storage"])


def test_a_broker_is_restored_from_a_backup(shop: Kubectl, shell: Shell) -> None:
    shop.apply(stage.group("orders", replicas=0, republish=False))
    until(lambda: stage.is_condition(shop, "lbg", "orders", "Provisioned"), what="the queues")
    shop.apply(stage.publisher("orders", rows=MESSAGES))
    stage.published(shop)
    assert stage.waiting(shop, "orders") == MESSAGES
    backup, restore = blocks("embedded-broker.md", "Backup and restore")
    shell.run(backup)
    shop("scale", "lbg/orders", "--replicas=1")
    until(lambda: stage.waiting(shop, "orders") == 0, what="all messages to be consumed")
    shop("scale", "lbg/orders", "--replicas=0")
    until(lambda: not shop.select("pod", "lbg.dev/group=orders"), what="the consumers to be gone")
    (manifest,) = (one for one in blocks("embedded-broker.md", "Backup and restore", language="yaml"))
    text = shell.text(manifest)
    assert text.count("lbg-broker:0.1.0") == 1
    (shell.folder / "main-restore.yaml").write_text(text.replace("lbg-broker:0.1.0", stage.image("broker")))
    shell.run(restore)
    until(lambda: stage.is_condition(shop, "broker", "main", "Ready"), what="the broker to be ready")
    until(lambda: stage.waiting(shop, "orders") == MESSAGES, what="the messages of the backup")


def test_a_group_of_a_deleted_object_is_adopted(shop: Kubectl, shell: Shell) -> None:
    group = stage.group("flights", deletionPolicy="Retain")
    shop.apply(group)
    ready(shop, "flights")
    shop("delete", "lbg", "flights", "--timeout=90s")
    shop.apply(group)
    until(
        lambda: stage.condition(shop.get("lbg", "flights"), "Provisioned").get("reason") == "NotOwned",
        what="the group to have another owner",
    )
    (adopt,) = blocks("kubernetes.md", "Groups of another owner")
    # The Broker of the page is the installation's, and its groups are in the namespace default.
    here = shop.namespace
    shell.replaced = {"lbg-system": here, '"default"': f'"{here}"'}
    shell.run(adopt)
    ready(shop, "flights")


def test_a_plan_is_made_from_journals_and_a_manifest(shop: Kubectl, shell: Shell) -> None:
    folder = default_group_name(shop.namespace, "orders")
    shop.apply(stage.claim("journals"))
    group: Object = stage.group("orders", replicas=2, republish=False)
    group["spec"]["consumer"]["sidecar"]["journal"] = {"volumeClaim": "journals"}
    shop.apply(group)
    ready(shop, "orders")
    shop.apply(stage.publisher("orders", rows=MESSAGES, journal=folder, claim="journals"))
    shop.apply(stage.shell("orders", claim="journals"))
    stage.published(shop)
    until(lambda: shop.get("lbg", "orders")["status"].get("lag") == 0, what="all to be consumed")
    # A journal is read when its process has closed it.
    shop("scale", "lbg/orders", "--replicas=0")
    until(lambda: not shop.select("pod", "lbg.dev/group=orders"), what="the consumers to be gone")
    shell.run("mkdir journal")
    shell.run(
        f"kubectl exec shell -- tar -C {stage.JOURNALS} -c {folder} | tar -C journal -x --strip-components=1"
    )
    (plan,) = blocks("pipeline.md", "plan")
    shown = shell.run(plan)
    assert f"{MESSAGES} messages" in shown, shown
    assert (shell.folder / "plan" / "patch.yaml").is_file(), shown
