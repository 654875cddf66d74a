"""Desired state of a group, from its manifest alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lbg_core.admin.describe import Description
from lbg_core.admin.record import Claim, kubernetes_owner
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.group.names import default_group_name
from lbg_operator.crds import BrokerManifest, GroupManifest
from lbg_operator.kube.kinds import (
    BUDGET,
    DEPLOYMENT,
    NETWORK_POLICY,
    STATEFUL_SET,
    TRIGGER_AUTHENTICATION,
    Kind,
)
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.resources.autoscaler import authentication_name
from lbg_operator.resources.credentials import attributes_of
from lbg_operator.resources.names import sessions_name
from lbg_operator.resources.network_policy import network_policy_of
from lbg_operator.resources.workload import budget_of, deployment_of, session_set_of
from lbg_operator.settings import OperatorSettings
from lbg_operator.status.condition_rules import Refusal
from lbg_operator.status.conditions import Reason

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
"""A ReplicaSet that scales in takes the pods of the lowest cost first (Kubernetes: "ReplicaSet")."""

PARKING = "lbg.dev/parking"
"""Annotation of the Deployment of a group that has a parking queue, which it keeps. An operator that starts while the
broker is away reads it there, and changes no pod."""

Object = dict[str, Any]

OF_PERMISSION = frozenset({Reason.BROKER_NOT_ALLOWED, Reason.NAME_TAKEN})
"""Refusals of a manifest from which the objects in the cluster can be rendered all the same."""


def refusal_of(
    group: GroupManifest, broker: BrokerManifest | None, rivals: Iterable[GroupManifest]
) -> Refusal | None:
    """Refusal of a manifest that can be parsed; None if it is followed. `rivals`: other groups of this name on the same
    broker that take precedence."""
    ref = group.broker
    if broker is None:
        return Refusal(
            Reason.BROKER_NOT_FOUND,
            f"there is no Broker {ref.name} in namespace {ref.namespace}: create it, or correct brokerRef",
        )
    if not broker.allows(group.metadata.namespace):
        return Refusal(
            Reason.BROKER_NOT_ALLOWED,
            f"Broker {ref.namespace}/{ref.name} does not list {group.metadata.namespace} in its allowedNamespaces",
        )
    for other in rivals:
        # One that may not use the broker has no name there.
        if broker.allows(other.metadata.namespace):
            metadata = other.metadata
            is_near = metadata.namespace == group.metadata.namespace
            who = metadata.name if is_near else "a LoadBalancedGroup of another namespace"
            return Refusal(
                Reason.NAME_TAKEN,
                f"{who} is group {other.spec.name} on this broker: recreate this one with another groupName",
            )
    return None


def claim_of(
    group: GroupManifest, broker: BrokerManifest | None, cluster_uid: str, *, password: str | None
) -> Claim:
    """Claim of a group's object to the group on its broker. `password`: of the Secret of the group's user."""
    metadata, ref = group.metadata, group.broker
    is_allowed = broker is not None and broker.allows_adoption(metadata.namespace)
    if group.adopts and not is_allowed:
        remedy = (
            f"adopt is set, and Broker {ref.namespace}/{ref.name} does not list {metadata.namespace} in its "
        )
        remedy += "allowAdoptionFrom"
    else:
        remedy = (
            "recreate this object with another groupName, or take the group over: set adopt here, and list "
            f"{metadata.namespace} in allowAdoptionFrom of Broker {ref.namespace}/{ref.name}"
        )
    owner = kubernetes_owner(cluster_uid, metadata.uid)
    is_default = group.spec.name == default_group_name(metadata.namespace, metadata.name)
    object_name = "" if is_default else f"{metadata.namespace}/{metadata.name}"
    return Claim(owner, password, group.adopts and is_allowed, remedy, object_name)


def children_of(
    group: GroupManifest,
    settings: OperatorSettings,
    *,
    has_ca: bool,
    scalers: Sequence[Object],
    has_parking: bool = False,
) -> list[Object]:
    """The group's objects in the cluster, in the order in which they are applied. Raises ManifestError.

    `scalers`: what changes its replicas, see `MetricsProviders`. `has_parking`: the group has a parking queue. Without
    one its consumers block keys that they are to park.
    """
    children = [attributes_of(group)]
    if group.consumer is not None:
        pods_of = session_set_of if group.has_sessions else deployment_of
        rendered = group if has_parking else group.without_parking()
        workload = pods_of(rendered, settings, has_ca=has_ca)
        if has_parking:
            workload["metadata"]["annotations"] = {PARKING: "true"}
        children += [budget_of(group), workload]
    if (policy := network_policy_of(group)) is not None:
        children.insert(1, policy)
    return [*children, *scalers]


def obsolete(
    group: GroupManifest, children: Sequence[Mapping[str, Any]], *, autoscalers: Sequence[Kind]
) -> list[tuple[Kind, str]]:
    """Objects that a former manifest or provider of metrics may have asked for and this one does not.

    `autoscalers`: the kinds of these that the cluster has, as far as that is known.
    """
    desired = {(child["kind"], child["metadata"]["name"]) for child in children}
    name = group.metadata.name
    possible = [
        (kind, authentication_name(name) if kind is TRIGGER_AUTHENTICATION else name) for kind in autoscalers
    ]
    possible += [(kind, name) for kind in (DEPLOYMENT, BUDGET, NETWORK_POLICY)]
    possible.append((STATEFUL_SET, sessions_name(name)))
    return [(kind, called) for kind, called in possible if (kind.kind, called) not in desired]


def workload_of(group: GroupManifest) -> tuple[Kind, Key]:
    """Workload that runs its consumers."""
    metadata = group.metadata
    if group.has_sessions:
        return STATEFUL_SET, Key(metadata.namespace, sessions_name(metadata.name))
    return DEPLOYMENT, Key(metadata.namespace, metadata.name)


def deletion_costs(description: Description, pods: Iterable[str]) -> dict[str, int]:
    """Deletion cost of each pod, which is what it would give away. Those who have the least go first. Raises ValueError
    when nobody knows."""
    work = description.work_of_members
    if work is UNKNOWN:
        raise ValueError("the members could not be read")
    return {pod: work.get(pod, 0) for pod in pods}
