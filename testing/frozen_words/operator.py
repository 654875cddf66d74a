"""Words of the operator: conditions, custom resources and the objects that it makes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lbg_core.client import Credentials
from lbg_operator import crds
from lbg_operator import settings as operator_settings
from lbg_operator.reconcile import desired as group_objects
from lbg_operator.reconcile import group_deletion as finalizer
from lbg_operator.reconcile import scale as session_end
from lbg_operator.resources import autoscaler
from lbg_operator.resources import autoscaler as keda
from lbg_operator.resources import embedded_broker as broker_objects
from lbg_operator.status import conditions
from testing.frozen_words.words import ROOT, Words
from testing.kubernetes import manifests as sample_manifests


def condition_words(place: Path) -> Words:
    """Types, and the reasons of each status."""
    found: Words = {
        "types": {str(one) for one in conditions.Type},
        "statuses": {str(one) for one in conditions.State},
    }
    for reason in conditions.Reason:
        told = conditions.Condition(reason).as_json(generation=1, since="")
        found.setdefault(told["type"], set()).add(f"{told['status']} {told['reason']}")
        found.setdefault("fields", set()).update(told)
    return found


def crd_fields(place: Path) -> Words:
    """Fields of every custom resource, with their enumerated values."""
    import yaml

    found: Words = {}
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        crd = yaml.safe_load(file.read_text())
        kinds, group = crd["spec"]["names"], crd["spec"]["group"]
        words = found.setdefault(f"{kinds['kind']}.{group}", {kinds["plural"], *kinds["shortNames"]})
        for version in crd["spec"]["versions"]:
            words.add(version["name"])
            words |= {f"column {one['name']}" for one in version["additionalPrinterColumns"]}
            words |= {f"subresource {one}" for one in version["subresources"]}
            words |= set(fields_of(version["schema"]["openAPIV3Schema"], ""))
    return found


def fields_of(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, field in schema.get("properties", {}).items():
        where = f"{path}.{name}".lstrip(".")
        yield where
        yield from (f"{where}={choice}" for choice in field.get("enum", ()))
        yield from fields_of(field, where)
        items = field.get("items", {})
        yield from (f"{where}[]={choice}" for choice in items.get("enum", ()))
        yield from fields_of(items, f"{where}[]")


def kubernetes_objects(place: Path) -> Words:
    """Names, labels, annotations, keys, ports and volumes of what the operator makes: selectors and Secrets depend."""
    found: Words = {"finalizers and annotations": {finalizer.FINALIZER, session_end.ENDING}}
    for made in cluster_objects():
        metadata = made["metadata"]
        words = found.setdefault(f"{made['kind']} {metadata['name']}", set())
        words |= {f"label {name}" for name in metadata.get("labels", {})}
        words |= {f"annotation {name}" for name in metadata.get("annotations", {})}
        words |= {f"key {name}" for part in ("data", "stringData") for name in made.get(part, {})}
        for container in containers_in(made):
            words.add(f"container {container['name']}")
            words |= {f"port {one['name']}" for one in container.get("ports", ()) if "name" in one}
            words |= {f"mount {one['mountPath']}" for one in container.get("volumeMounts", ())}
            if container["name"] != "app":
                words |= {f"argument {one}" for one in container.get("args", container.get("command", ()))}
    return found


def cluster_objects() -> Iterator[dict[str, Any]]:
    """Objects of a group in two modes, of its autoscaling, and of a broker."""
    settings = operator_settings.OperatorSettings(sidecar_image="s", broker_image="b", namespace="lbg-system")
    scaling = {"minReplicas": 1, "maxReplicas": 3, "targetLag": 10, "targetCPUUtilizationPercentage": 70}
    scaling = {name: value for name, value in scaling.items() if name in scaling_fields()}
    for mode in ("Exclusive", "Sessions"):
        for channel in ("HTTP", "HTTPBatch"):
            told = {"mode": mode, "consumer": sample_manifests.consumer(channel)}
            told |= {"queues": {"count": 1}} if mode == "Sessions" else {"scaling": scaling}
            group = crds.GroupManifest.parse(sample_manifests.group_manifest(told))
            scalers = [one for one in (autoscaler.autoscaler_of(group),) if one is not None]
            yield from group_objects.children_of(group, settings, has_ca=True, scalers=scalers)
            scaled = keda.scaled_object_of(group, url="https://lbg")
            if scaled is not None:
                yield from (scaled, keda.authentication_of(group))
    broker = crds.BrokerManifest.parse(sample_manifests.broker_manifest())
    yield from broker_objects.embedded_of(broker, settings, login=Credentials("admin", "x"), certificate=None)


def scaling_fields() -> set[str]:
    schema = sample_manifests.schema_of("loadbalancedgroups")
    return set(schema["properties"]["spec"]["properties"]["scaling"]["properties"])


def containers_in(made: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    pod = made.get("spec", {}).get("template", {}).get("spec", {})
    yield from pod.get("initContainers", ())
    yield from pod.get("containers", ())
