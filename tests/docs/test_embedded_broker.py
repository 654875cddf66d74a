"""The manifests of docs/embedded-broker.md are what Kubernetes takes, and name what the operator makes."""

from __future__ import annotations

import re
from typing import Any

import click
import jsonschema
import kubernetes_validate
import yaml

from lbg_broker.management.server import METRICS
from lbg_core.client import Credentials
from lbg_operator.crds import BrokerManifest
from lbg_operator.resources.embedded_broker import embedded_of
from lbg_operator.settings import OperatorSettings
from lbgroup.broker import broker as broker_command
from testing import ROOT
from testing.kubernetes.manifests import broker_manifest, schema_of

PAGE = (ROOT / "docs" / "embedded-broker.md").read_text()
SETTINGS = OperatorSettings(sidecar_image="s", broker_image="lbg-broker:0.1.0", namespace="lbg-system")
BROKER, RESTORE = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.S))


def objects() -> list[dict[str, Any]]:
    broker = BrokerManifest.parse(broker_manifest(BROKER["spec"]))
    return embedded_of(broker, SETTINGS, login=Credentials("admin", "x"), certificate=None)


def test_the_broker_is_one() -> None:
    jsonschema.validate(BROKER, schema_of("brokers"))
    assert (BROKER["metadata"]["name"], BROKER["metadata"]["namespace"]) == ("main", "shop")


def test_the_table_names_what_the_operator_makes() -> None:
    for made in objects():
        assert f"{made['kind']} `{made['metadata']['name']}`" in PAGE
    assert "Secret `main-lbg-tls`" in PAGE


def test_a_pod_that_restores_is_taken_and_has_the_brokers_volume_and_user() -> None:
    kubernetes_validate.validate(RESTORE, "1.29", strict=True)
    (pod,) = (one["spec"]["template"]["spec"] for one in objects() if one["kind"] == "StatefulSet")
    (volume,) = RESTORE["spec"]["volumes"]
    assert volume in pod["volumes"]
    assert RESTORE["spec"]["securityContext"].items() <= pod["securityContext"].items()
    (restoring,), (running,) = RESTORE["spec"]["containers"], pod["containers"]
    assert restoring["image"] == running["image"]
    assert restoring["volumeMounts"][0] in running["volumeMounts"]
    assert restoring["securityContext"].items() <= running["securityContext"].items()


def test_what_it_runs_is_a_command() -> None:
    command = RESTORE["spec"]["containers"][0]["command"]
    assert command[:3] == ["lbg", "broker", "restore"]
    restore = broker_command.commands["restore"]
    known = {option for parameter in restore.params for option in parameter.opts}
    assert {word for word in command if word.startswith("--")} <= known
    with click.Context(
        restore, help_option_names=["-h", "--help"]
    ) as context:  # a command remembers its help option
        assert restore.make_parser(context).parse_args(list(command[3:]))[0]["replace"] is True


def test_the_page_has_every_series_of_the_brokers_metrics() -> None:
    rows = re.findall(r"^\| `(lbg_broker_\w+)` \| (\w+) \| (.*) \|$", PAGE, re.MULTILINE)
    expected = {
        name: ("counter" if name.endswith("_total") else "gauge", about)
        for name, (about, _) in METRICS.items()
    }
    assert {name: (kind, about) for name, kind, about in rows} == expected
