"""What can be wrong for the operator.

OperatorError (Exception)
├── SettingError    a variable of the operator's environment that it cannot start with
├── ManifestError   a custom resource that cannot be followed: says the field, what is wrong and what to do
└── ClusterError    the Kubernetes API did not do what was asked (cluster/seam.py)
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
