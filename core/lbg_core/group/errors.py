"""Errors of a group's contract.

    GroupError (ValueError)
    ├── SpecError      a field of a group, a name, a key: field, value and rule
    │   └── NewerRecordError  the record of a group is of a newer version
    └── JournalError   a journal line that cannot be read, with the reason

Both mean that the input has to change: trying again does not help.
"""

from __future__ import annotations

import reprlib


class GroupError(ValueError):
    """Base of every error of this package."""


class SpecError(GroupError):
    """`field` has `value`, which breaks `rule`; `str()` names all three."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(f"{field} {reprlib.repr(value)}: {rule}")
        self.field = field
        self.value = value
        self.rule = rule

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, object, str]]:
        return type(self), (self.field, self.value, self.rule)


class NewerRecordError(SpecError):
    """The record of a group is of a newer version than this LBG reads."""


class JournalError(GroupError):
    """A journal line cannot be read; `reason` is the cause."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
