"""Administration of groups on a broker: create, show, list, change and delete.

Plans and descriptions are pure (`plan`, `describe`); everything that talks to a broker is behind one protocol,
`BrokerAdmin`. What needs the HTTP client (`live`, `management`, `group_admin`) is imported when it is used: members and
publishers, who only read a group's record, do without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from lbg_core.admin.errors import (
    AdminError,
    ApplyFailed,
    Busy,
    Denied,
    GroupDiffers,
    GroupNotFound,
    MessageNotSkipped,
    NotDrained,
    NotOwned,
    ProvisioningError,
    RecordNewer,
    RecordUnavailable,
    RecordUnreadable,
    Refused,
    SessionNotFound,
    StillInUse,
    Taken,
    UnderWay,
    Unreachable,
    Unsupported,
)
from lbg_core.admin.record import read_group

if TYPE_CHECKING:
    from lbg_core.admin.describe import Description
    from lbg_core.admin.group_admin import GroupAdmin, connect_admin
    from lbg_core.admin.groups import Created

__all__ = [
    "AdminError",
    "ApplyFailed",
    "Busy",
    "Created",
    "Denied",
    "Description",
    "GroupAdmin",
    "GroupDiffers",
    "GroupNotFound",
    "MessageNotSkipped",
    "NotDrained",
    "NotOwned",
    "ProvisioningError",
    "RecordNewer",
    "RecordUnavailable",
    "RecordUnreadable",
    "Refused",
    "SessionNotFound",
    "StillInUse",
    "Taken",
    "UnderWay",
    "Unreachable",
    "Unsupported",
    "connect_admin",
    "read_group",
]

_LAZY = {
    "Created": "lbg_core.admin.groups",
    "Description": "lbg_core.admin.describe",
    "GroupAdmin": "lbg_core.admin.group_admin",
    "connect_admin": "lbg_core.admin.group_admin",
}

if not TYPE_CHECKING:  # a type checker reads the imports above, and reports names that do not exist

    def __getattr__(name: str) -> object:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
