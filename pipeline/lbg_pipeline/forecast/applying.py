"""The schedule into the cluster: `spec.scaling.schedule` of a LoadBalancedGroup, and nothing else of it.

By server-side apply, so that the field is ours and every other stays its owner's (Kubernetes: "Server-Side Apply"). The
list has one owner: forced, as a schedule that somebody wrote by hand and one that is forecast cannot both hold.
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

from ..errors import ClusterRefused
from .manifest import Entry, patch

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
    """By the pod's service account, or else as KUBECONFIG says. Each method raises ClusterRefused."""

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

    def find(self, group: str, *, name: str | None = None) -> Target:
        """The LoadBalancedGroup of a group's name on the broker, which by default is NAMESPACE-NAME, or of its own
        name."""
        names = [name] if name else [*self._from_broker(group), group]
        for one in names:
            found = self._asked(f"get LoadBalancedGroup {self.namespace}/{one}", one)
            if found is None:
                continue
            scaling = found["spec"].get("scaling")
            if scaling is None:
                raise ClusterRefused(
                    f"LoadBalancedGroup {self.namespace}/{one} has no spec.scaling, so it has no floor to raise: "
                    "set scaling.maxReplicas and a target"
                )
            return Target(self.namespace, one, int(scaling["maxReplicas"]))
        tried = " and ".join(names)
        raise ClusterRefused(
            f"there is no LoadBalancedGroup for group {group} in namespace {self.namespace} (tried {tried}): "
            "say --namespace, or its name with --apply-to"
        )

    def apply(self, target: Target, schedule: Sequence[Entry]) -> None:
        body = {
            "apiVersion": "/".join(API),
            "kind": "LoadBalancedGroup",
            "metadata": {"name": target.name, "namespace": target.namespace},
            **patch(schedule),
        }
        what = f"apply the schedule to LoadBalancedGroup {target}"
        applied = self._asked(what, target.name, body)
        if applied is None:
            raise ClusterRefused(f"{what}: it is gone")
        # An API server may drop what its CRD does not know, without a word.
        if schedule and not applied["spec"]["scaling"].get("schedule"):
            raise ClusterRefused(_too_old(what))

    def _from_broker(self, group: str) -> list[str]:
        prefix = f"{self.namespace}-"
        return [group.removeprefix(prefix)] if group.startswith(prefix) and group != prefix else []

    def _asked(self, what: str, name: str, body: Entry | None = None) -> dict[str, Any] | None:
        """The object as it is then, None for one that is not there."""
        place = (*API, self.namespace, PLURAL, name)
        found: dict[str, Any]
        try:
            if body is None:
                found = self._api.get_namespaced_custom_object(*place, _request_timeout=REQUEST_TIMEOUT_S)
            else:
                found = self._api.patch_namespaced_custom_object(
                    *place,
                    body,
                    field_manager=MANAGER,
                    force=True,
                    _content_type=APPLY,
                    _request_timeout=REQUEST_TIMEOUT_S,
                )
        except ApiException as error:
            if error.status == 404 and _is_of_object(error):
                return None
            raise ClusterRefused(_refused(what, self.namespace, error)) from None
        except (HTTPError, OSError) as error:
            raise ClusterRefused(
                f"{what}: the API server at {self._host} does not answer: {_one_line(error)}"
            ) from None
        return found


def _is_of_object(error: ApiException) -> bool:
    """Whether the object is not there, rather than its kind (Kubernetes API: "Status")."""
    return bool(_told(error).get("details", {}).get("name")) or "not found" in _told(error).get("message", "")


def _refused(what: str, namespace: str, error: ApiException) -> str:
    why = str(_told(error).get("message") or error.reason or f"HTTP {error.status}")
    if error.status in (401, 403):
        verbs = "get and patch on loadbalancedgroups.lbg.dev"
        return f"{what}: {_one_line(why)}: allow {verbs} in namespace {namespace} to who runs this"
    if error.status == 404:
        return f"{what}: the cluster has no LoadBalancedGroups: install LBG's chart"
    if ".schedule" in why and ("not declared in schema" in why or "unknown field" in why):
        return _too_old(what)
    return f"{what}: {_one_line(why)}"


def _too_old(what: str) -> str:
    return f"{what}: the cluster's CRD is older and has no scaling.schedule: upgrade LBG's chart"


def _told(error: ApiException) -> dict[str, Any]:
    try:
        told = json.loads(error.body or "")
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:300]
