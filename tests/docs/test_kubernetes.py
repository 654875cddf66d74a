"""The quick start of docs/kubernetes.md: its manifests are followed, its values are the chart's, its app runs."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
import time
import urllib.request
from typing import Any

import kubernetes_validate
import pytest
import yaml

from lbg_operator.crds import App, BrokerManifest, GroupManifest, Journal, RabbitMQ
from lbg_operator.resources.names import credentials_name
from lbg_operator.resources.workload import deployment_of
from lbg_operator.settings import OperatorSettings
from testing import ROOT
from testing.kubernetes.chart import named, of_kind, rendered
from testing.kubernetes.manifests import fill_in, schema_of
from testing.ports import free_port
from testing.waiting import GUARD_S


@pytest.fixture(scope="module", autouse=True)
def _large_imports() -> None:
    """Loads what takes long when the first test runs, and not when the tests are collected."""
    global helm
    import helm_python as helm


PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
GROUP = yaml.safe_load((ROOT / "examples" / "flights-group.yaml").read_text())
SETTINGS = OperatorSettings(sidecar_image="lbg-sidecar:0.1.0", broker_image="lbg-broker:0.1.0")


def parsed_group() -> GroupManifest:
    told = copy.deepcopy(GROUP)
    fill_in(told["spec"], schema_of("loadbalancedgroups")["properties"]["spec"])
    told["metadata"]["namespace"] = "default"
    return GroupManifest.parse(told)


def shown() -> list[dict[str, Any]]:
    """The manifests in the page, whole and in part."""
    return [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S)]


def container() -> dict[str, Any]:
    (found,) = GROUP["spec"]["consumer"]["template"]["spec"]["containers"]
    return dict(found)


def test_the_group_is_followed_and_its_pods_are_what_kubernetes_takes() -> None:
    group = parsed_group()
    deployment = deployment_of(group, SETTINGS, has_ca=True)
    kubernetes_validate.validate(deployment, "1.29", strict=True)
    assert """--group "$(kubectl get lbg flights -o jsonpath='{.status.groupName}')\"""" in PAGE
    assert group.spec.name.startswith("default-flights-")
    assert f"deploy/{deployment['metadata']['name']}" in PAGE


def test_its_application_runs_in_an_image_that_the_page_builds() -> None:
    """A cluster that cannot pull from the world has no other one."""
    assert container()["image"] == SETTINGS.sidecar_image
    assert container()["image"] in PAGE


def test_its_broker_is_the_one_that_the_chart_makes_as_the_page_installs_it() -> None:
    install = re.search(r"helm install lbg charts/lbg --namespace (\S+) (.*?)--wait", PAGE, re.S)
    assert install is not None
    sets = re.findall(r"--set '?([^\s']+)'?", install[2])
    (broker,) = of_kind(rendered(helm.parse_set_string(",".join(sets)), namespace=install[1]), "Broker")
    fill_in(broker["spec"], schema_of("brokers")["properties"]["spec"])
    broker["metadata"]["namespace"] = install[1]
    group = parsed_group()
    assert (group.broker.namespace, group.broker.name) == (install[1], broker["metadata"]["name"])
    assert BrokerManifest.parse(broker).allows("default")


def test_the_broker_that_it_shows_is_followed() -> None:
    (told,) = (one for one in shown() if one.get("kind") == "Broker")
    fill_in(told["spec"], schema_of("brokers")["properties"]["spec"])
    told["metadata"]["namespace"] = "shop"
    engine = BrokerManifest.parse(told).engine
    assert isinstance(engine, RabbitMQ)
    assert engine.ca_secret == "rabbitmq-ca"


def test_the_journal_that_it_shows_is_kept() -> None:
    (told,) = (one for one in shown() if one.keys() == {"spec"} and "consumer" in one["spec"])
    consumer = {**GROUP["spec"]["consumer"], **told["spec"]["consumer"]}
    manifest = {**copy.deepcopy(GROUP), "spec": {**GROUP["spec"], "consumer": copy.deepcopy(consumer)}}
    fill_in(manifest["spec"], schema_of("loadbalancedgroups")["properties"]["spec"])
    manifest["metadata"]["namespace"] = "default"
    group = GroupManifest.parse(manifest)
    assert group.consumer is not None
    assert group.consumer.sidecar.journal == Journal(volume_claim="journals")


def test_the_parking_that_the_page_of_parked_keys_shows_is_the_default() -> None:
    page = (ROOT / "docs" / "parked-keys.md").read_text()
    (text,) = re.findall(r"```yaml\n(.*?)```", page, re.S)
    app = {**GROUP["spec"]["consumer"]["app"], **yaml.safe_load(text)["spec"]["consumer"]["app"]}
    assert parsed_app({**app, "parking": {}}).parking == parsed_app(app).parking
    assert parsed_app(app).when_exhausted == "Park"


def parsed_app(app: dict[str, Any]) -> App:
    told = copy.deepcopy(GROUP)
    told["spec"]["consumer"]["app"] = copy.deepcopy(app)
    fill_in(told["spec"], schema_of("loadbalancedgroups")["properties"]["spec"])
    told["metadata"]["namespace"] = "default"
    consumer = GroupManifest.parse(told).consumer
    assert consumer is not None
    return consumer.app


@pytest.mark.process
def test_its_application_acknowledges_a_flight_and_ends_when_it_is_asked_to() -> None:
    port = free_port()
    (script,) = container()["args"]
    command = [sys.executable, *container()["command"][1:], script.replace("8080", str(port))]
    flight = b'{"tailnum": "N554JB", "dest": "BQN", "time_hour": "2013-02-01T10:00:00Z"}'
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as app:
        try:
            assert posted(f"http://127.0.0.1:{port}/flights", flight) == 204
            assert app.stdout is not None
            assert app.stdout.readline() == "N554JB to BQN at 2013-02-01T10:00:00Z\n"
        finally:
            app.terminate()
        assert app.wait(timeout=GUARD_S) == 0


def posted(url: str, body: bytes) -> int:
    """The status of the first answer."""
    deadline = time.monotonic() + GUARD_S
    while True:
        try:
            with urllib.request.urlopen(url, body, timeout=GUARD_S) as answer:
                return int(answer.status)
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_every_page_that_it_leads_to_is_there() -> None:
    for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", PAGE):
        assert (ROOT / "docs" / link).resolve().is_file(), link


def test_the_console_that_it_shows_is_made() -> None:
    (values,) = (one for one in shown() if one.keys() == {"console"})
    objects = rendered(values)
    (ingress,) = of_kind(objects, "Ingress")
    assert ingress["spec"]["rules"][0]["host"] == values["console"]["ingress"]["host"]
    assert named(objects, "Service", "lbg-console")["spec"]["ports"][0]["port"] == 80
    assert "port-forward service/lbg-console 8780:80" in PAGE


def test_the_roles_for_the_plug_in_are_those_of_a_group_and_of_the_chart() -> None:
    role, binding = (one for one in shown() if one.get("kind") in ("Role", "RoleBinding"))
    for one in (role, binding):
        kubernetes_validate.validate(one, "1.29", strict=True)
    assert role["rules"][1]["resourceNames"] == [credentials_name(GROUP["metadata"]["name"])]
    assert named(rendered(), "ClusterRole", binding["roleRef"]["name"])


def test_the_jobs_on_journals_that_it_shows_are_made() -> None:
    (values,) = (one for one in shown() if one.keys() == {"pipeline"})
    jobs = of_kind(rendered(values), "CronJob")
    assert [one["metadata"]["name"] for one in jobs] == [
        "lbg-pipeline-forecast",
        "lbg-pipeline-profile",
        "lbg-pipeline-validate",
    ]
    assert f"cronjob/{jobs[-1]['metadata']['name']}" in PAGE
