"""What can be wrong for the operator.

OperatorError (Exception)
└── ManifestError   a custom resource that cannot be followed: says the field, what is wrong and what to do
"""

from __future__ import annotations


class OperatorError(Exception):
    """Base of every error of this package."""


class ManifestError(OperatorError):
    """`field` of a manifest breaks `rule`. Trying again does not help: the manifest has to change."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule

    def __reduce__(self) -> tuple[type[ManifestError], tuple[str, str]]:
        return type(self), (self.field, self.rule)
