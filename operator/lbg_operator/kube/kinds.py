"""Kinds of object that the operator touches, and its verbs on each.

All requests go through this table, and the chart's rules are held against it: the operator can do what is here, and
may do no more. One request more, `get` of the ConfigMap that says whose requests the metrics API takes, is granted by a
Role of Kubernetes' own: extension-apiserver-authentication-reader in kube-system.
"""

from __future__ import annotations

from dataclasses import dataclass

READ, WRITE = frozenset({"get"}), frozenset({"patch", "create"})
"""Server-side apply is a patch, and a create where the object is not there yet (RBAC asks for both)."""
LIST = frozenset({"list"})
WATCH = LIST | {"watch"}
DELETE = frozenset({"delete"})
OWN = frozenset({"update"})
"""On an owner's finalizers: what its objects need in a cluster whose admission asks who may block its deletion
(Kubernetes: "OwnerReferencesPermissionEnforcement", which OpenShift has on)."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`verbs` on the resource and, by name, on its subresources (RBAC's `resource/subresource`)."""

    api_version: str
    kind: str
    plural: str
    verbs: frozenset[str]
    status_verbs: frozenset[str] = frozenset()
    finalizers_verbs: frozenset[str] = frozenset()
    namespaced: bool = True

    @property
    def api_group(self) -> str:
        """As RBAC rules name it: empty for the core group."""
        group, slash, _ = self.api_version.partition("/")
        return group if slash else ""

    def path(self, namespace: str | None = None, name: str | None = None, subresource: str = "") -> str:
        """Of the collection, or of one object (Kubernetes: "API Concepts", resource URIs)."""
        root = f"/apis/{self.api_version}" if self.api_group else f"/api/{self.api_version}"
        inside = f"/namespaces/{namespace}" if namespace is not None else ""
        end = f"/{name}" if name is not None else ""
        return f"{root}{inside}/{self.plural}{end}" + (f"/{subresource}" if subresource else "")


GROUP = Kind(
    "lbg.dev/v1alpha1",
    "LoadBalancedGroup",
    "loadbalancedgroups",
    WATCH | {"patch"},
    frozenset({"patch"}),
    OWN,
)
BROKER = Kind("lbg.dev/v1alpha1", "Broker", "brokers", WATCH, frozenset({"patch"}), OWN)
SECRET = Kind("v1", "Secret", "secrets", READ | WRITE | WATCH)
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps", WRITE | WATCH)
SERVICE = Kind("v1", "Service", "services", WRITE | WATCH)
VOLUME_CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims", WRITE | WATCH)
POD = Kind("v1", "Pod", "pods", WATCH | DELETE | {"patch"})
NAMESPACE = Kind("v1", "Namespace", "namespaces", READ, namespaced=False)
"""Namespace kube-system alone, whose UID is the cluster's."""
EVENT = Kind("v1", "Event", "events", frozenset({"create"}))
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments", WRITE | WATCH | DELETE)
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets", WRITE | WATCH | DELETE)
AUTOSCALER = Kind(
    "autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", WRITE | WATCH | DELETE
)
BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", WRITE | WATCH | DELETE)
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", WRITE | WATCH | DELETE)
API_SERVICE = Kind(
    "apiregistration.k8s.io/v1", "APIService", "apiservices", READ | {"patch"}, namespaced=False
)
SCALED_OBJECT = Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects", LIST | WRITE | DELETE)
TRIGGER_AUTHENTICATION = Kind(
    "keda.sh/v1alpha1", "TriggerAuthentication", "triggerauthentications", LIST | WRITE | DELETE
)

KEDA_KINDS = frozenset({SCALED_OBJECT, TRIGGER_AUTHENTICATION})
"""Of a cluster that has KEDA: elsewhere the chart grants nothing on them."""

KINDS = (
    GROUP,
    BROKER,
    SECRET,
    CONFIG_MAP,
    SERVICE,
    VOLUME_CLAIM,
    POD,
    NAMESPACE,
    EVENT,
    DEPLOYMENT,
    STATEFUL_SET,
    AUTOSCALER,
    BUDGET,
    NETWORK_POLICY,
    API_SERVICE,
    SCALED_OBJECT,
    TRIGGER_AUTHENTICATION,
)

_BY_NAME = {(kind.api_version, kind.kind): kind for kind in KINDS}


def kind_of(api_version: str, kind: str) -> Kind:
    """Raises KeyError for what the operator has nothing to do with."""
    return _BY_NAME[api_version, kind]
