"""Applies a schedule: `spec.scaling.schedule` of a LoadBalancedGroup, and nothing else.

By server-side apply, so that the field is ours and every other stays its owner's (Kubernetes: "Server-Side Apply"). The
list has one owner: forced, as a schedule written by hand and a forecast one cannot both hold.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes import config
from kubernetes.client import ApiClient, Configuration, CustomObjectsApi
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from lbg_core.group import group_name_of
from lbg_pipeline.errors import ClusterRefused
from lbg_pipeline.forecast.schedule import Entry, patch

MANAGER = "lbg-forecast"
API = ("lbg.dev", "v1alpha1")
PLURAL = "loadbalancedgroups"
APPLY = "application/apply-patch+yaml"
REQUEST_TIMEOUT_S = 20.0
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


@dataclass(frozen=True, slots=True)
class Target:
    """A LoadBalancedGroup that scales."""

    namespace: str
    name: str
    max_replicas: int

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Cluster:
    """LoadBalancedGroups of a cluster, by the pod's service account or KUBECONFIG. Methods raise ClusterRefused."""

    def __init__(self, namespace: str | None) -> None:
        settings = Configuration()
        try:
            config.load_incluster_config(client_configuration=settings)
            usual = POD_NAMESPACE.read_text().strip()
        except config.ConfigException:
            try:
                config.load_kube_config(client_configuration=settings)
                usual = config.list_kube_config_contexts()[1]["context"].get("namespace", "default")
            except (config.ConfigException, OSError) as error:
                raise ClusterRefused(
                    f"the Kubernetes API: {_one_line(error)}: run in a pod with a service account, or set KUBECONFIG "
                    "to a file"
                ) from None
        settings.retries = False
        self.namespace = namespace or usual
        self._host = settings.host
        self._api = CustomObjectsApi(ApiClient(settings))

    def find(self, groups: Sequence[str]) -> tuple[dict[str, Target], dict[str, str]]:
        """The LoadBalancedGroup of each group, by its name on the broker or else by its own; and why others have none
        that a schedule could be set of."""
        action = f"list LoadBalancedGroups in namespace {self.namespace}"
        objects = self._request(action, "list_namespaced_custom_object")["items"]
        named = {one["metadata"]["name"]: one for one in objects}
        named |= {group_name_of(one): one for one in objects}
        targets: dict[str, Target] = {}
        unfit: dict[str, str] = {}
        for group in groups:
            if group not in named:
                unfit[group] = (
                    f"there is no LoadBalancedGroup for group {group} in namespace {self.namespace}"
                )
                continue
            name, spec = named[group]["metadata"]["name"], named[group]["spec"]
            if "scaling" not in spec:
                unfit[group] = (
                    f"LoadBalancedGroup {self.namespace}/{name} has no spec.scaling, so there is no minimum to raise"
                )
                continue
            targets[group] = Target(self.namespace, name, int(spec["scaling"]["maxReplicas"]))
        return targets, unfit

    def apply(self, target: Target, schedule: Sequence[Entry]) -> None:
        body = {
            "apiVersion": "/".join(API),
            "kind": "LoadBalancedGroup",
            "metadata": {"name": target.name, "namespace": target.namespace},
            **patch(schedule),
        }
        action = f"apply the schedule to LoadBalancedGroup {target}"
        self._request(
            action,
            "patch_namespaced_custom_object",
            target.name,
            body,
            field_manager=MANAGER,
            force=True,
            _content_type=APPLY,
        )

    def _request(self, action: str, method: str, *arguments: object, **options: object) -> dict[str, Any]:
        place = (*API, self.namespace, PLURAL)
        response: dict[str, Any]
        try:
            response = getattr(self._api, method)(
                *place, *arguments, _request_timeout=REQUEST_TIMEOUT_S, **options
            )
        except ApiException as error:
            raise ClusterRefused(_refused(action, self.namespace, error)) from None
        except (HTTPError, OSError) as error:
            reason = _one_line(error)
            raise ClusterRefused(
                f"{action}: the API server at {self._host} does not answer: {reason}"
            ) from None
        return response


def _refused(action: str, namespace: str, error: ApiException) -> str:
    reason = _one_line(_message(error) or error.reason or f"HTTP {error.status}")
    if error.status in (401, 403):
        return (
            f"{action}: {reason}: allow list and patch on loadbalancedgroups.lbg.dev in namespace {namespace}"
        )
    if error.status == 404:
        return f"{action}: {reason}: if the cluster has no LoadBalancedGroups, install LBG's chart"
    return f"{action}: {reason}"


def _message(error: ApiException) -> str:
    """From the answer's Status object (Kubernetes API: "Status")."""
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
