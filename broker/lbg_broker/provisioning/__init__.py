"""Create, show, list and delete a group on a broker: AMQP for what carries messages, the management HTTP API
for users, permissions and what only it can tell.

Plans are pure (`planning`, `describing`); everything that talks to a broker is behind one seam, `BrokerAdmin`.
What needs the HTTP client (`live`, `management`) is imported by its own name: members and publishers, who only
read a group's record, do without it.
"""

from .errors import (
    AdminError,
    ApplyFailed,
    Busy,
    Denied,
    GroupDiffers,
    GroupNotFound,
    NotDrained,
    ProvisioningError,
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
from .reading import read_group

__all__ = [
    "AdminError",
    "ApplyFailed",
    "Busy",
    "Denied",
    "GroupDiffers",
    "GroupNotFound",
    "NotDrained",
    "ProvisioningError",
    "RecordUnavailable",
    "RecordUnreadable",
    "Refused",
    "SessionNotFound",
    "StillInUse",
    "Taken",
    "UnderWay",
    "Unreachable",
    "Unsupported",
    "read_group",
]
