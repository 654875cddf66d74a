"""Errors of the operator.

OperatorError (Exception)
├── SettingError    a variable of the operator's environment that it cannot start with
├── ManifestError   a custom resource that cannot be followed: says the field, what is wrong and what to do
├── ClusterError    the Kubernetes API did not do what was asked (kube/api.py)
├── ClusterSetBack  the cluster was restored to an earlier state: nothing that is cached counts any more
├── SelectorError   a label selector that cannot be parsed, or asks for what the metrics API does not answer
├── GroupNotFound   there is no such group to report a metric of
└── MetricUnknown   a group's metric is unknown now: it is not 0, and nothing may be scaled by it
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base of every error of this package."""


class SettingError(OperatorError):
    """Variable `name` breaks `rule`. The operator does not start with it."""

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(f"{name} {rule}")
        self.name = name
        self.rule = rule

    def __reduce__(self) -> tuple[type[SettingError], tuple[str, str]]:
        return type(self), (self.name, self.rule)


class ManifestError(OperatorError):
    """`field` of a manifest breaks `rule`. Trying again does not help: the manifest has to change."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule

    def __reduce__(self) -> tuple[type[ManifestError], tuple[str, str]]:
        return type(self), (self.field, self.rule)


class ClusterSetBack(OperatorError):
    """`evidence`: what went backwards. The operator ends with it, and begins again from lists (docs/adr/0103)."""

    def __init__(self, evidence: str) -> None:
        super().__init__(
            f"the cluster was restored to an earlier state ({evidence}): start the operator again, as Kubernetes does"
        )
        self.evidence = evidence

    def __reduce__(self) -> tuple[type[ClusterSetBack], tuple[str]]:
        return type(self), (self.evidence,)


class SelectorError(OperatorError):
    pass


class GroupNotFound(OperatorError):
    def __init__(self, namespace: str, group: str) -> None:
        super().__init__(f'there is no LoadBalancedGroup "{group}" in namespace "{namespace}"')
        self.namespace = namespace
        self.group = group

    def __reduce__(self) -> tuple[type[GroupNotFound], tuple[str, str]]:
        return type(self), (self.namespace, self.group)


class MetricUnknown(OperatorError):
    """The text says why, for whoever wonders about an autoscaler that does nothing."""
