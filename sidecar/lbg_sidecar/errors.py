"""Errors of a member.

    MemberError
    ├── SettingsError      a setting is not valid: its name, its value and the rule
    ├── IndexTaken         the fixed index belongs to another live member
    ├── CommitsError       the commit log or the position file cannot be used (`commits.errors`)
    ├── SessionRefused     the broker and the application do not agree how far the session is
    └── AppError           the application's channel
        ├── CommandFailed  the command cannot be started at all
        └── StreamError    the application sent an invalid frame on its stream

A group that does not exist is `lbg_core.admin.GroupNotFound`; a broker that refuses the credentials is
`lbg_core.client.AuthenticationError`. Losing the connection is no error: the member comes back by itself.
"""

from __future__ import annotations


class MemberError(Exception):
    """Base of every error of this package; `str()` is one line: the error and the action to take."""


class SettingsError(MemberError):
    """A setting is not valid. `field` is its name, `what` the rest of the text."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        self.field = field
        self.what = f"is {value!r}, but {rule}"
        super().__init__(f"{field} {self.what}")


class IndexTaken(MemberError):
    """The fixed index belongs to another live member, which may leave."""

    retryable = True

    def __init__(self, index: int) -> None:
        super().__init__(f"index {index} belongs to another live member of the group")
        self.index = index


class SessionRefused(MemberError):
    """The application's session position is not one after which the broker continues. One of the two was restored from
    a backup, so any continuation would repeat or skip messages."""

    def __init__(self, session: str, committed: int, why: str) -> None:
        super().__init__(
            f"session {session!r}: the application has committed {committed}, and the broker does not go on there: "
            f"{why}; correct the position in the application's database, or consume under another name"
        )
        self.session = session


class AppError(MemberError):
    """The application's channel cannot do its work; raised by its `start`, and so by entering the member."""


class CommandFailed(AppError):
    """The command cannot be started at all."""

    def __init__(self, command: str, why: str) -> None:
        super().__init__(f"cannot run {command!r}: {why}")


class StreamError(AppError):
    """The application sent an invalid frame on its stream."""
