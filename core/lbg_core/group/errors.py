"""Errors of a group's contract.

    GroupError (ValueError)
    ├── SpecError      a field of a group, a name, a key: field, value and rule
    │   └── NewerRecordError  the record of a group is of a newer version
    ├── JournalError   a journal line that cannot be read, with the reason
    ├── EntryError     a message of a group's stream that is no entry: what the stream adds up to is unknown
    └── MessageError   bytes on the members exchange that are no member's message
        └── NewerMessage  a message of a newer version

They mean that the input has to change: trying again does not help.
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


class EntryError(GroupError):
    """A message of a group's stream that is no entry: without it, what the stream adds up to may be incomplete."""


class MessageError(GroupError):
    """Bytes on the members exchange that are no member's message."""


class NewerMessage(MessageError):
    """`name` sends messages of a newer version. If that is a member (`is_member`, else an administrator or observer),
    a member that joins stays out; one that has joined continues with the members of its own version."""

    def __init__(self, name: str, version: int, newest: int, *, is_member: bool) -> None:
        super().__init__(
            f"{'member' if is_member else 'administrator'} {name!r} sends the group messages of version {version}, and "
            f"this member reads version {newest}: upgrade this member"
        )
        self.name = name
        self.version = version
        self.is_member = is_member
