"""The arguments that make a queue one of message groups, by Qpid's names and by ours."""

from dataclasses import dataclass
from typing import Final

from lbg_broker.server.core.reading_arguments import ArgumentReader

__all__ = ["GroupedRules", "group_header", "read_grouped"]

HEADER: Final = "x-group-header"
QPID_HEADER: Final = "qpid.group_header_key"
QPID_SHARED: Final = "qpid.shared_msg_group"

NAME_MAX_BYTES: Final = 128
"""Of a header's name: AMQP 0-9-1 section 4.2.5.5 asks field names to be at most 128 long."""

LAST_VALUE: Final = (
    "qpid.last_value_queue",
    "qpid.last_value_queue_no_browse",
    "qpid.last_value_queue_key",
    "x-last-value-key",
)
PRIORITY: Final = (
    "x-max-priority",
    "qpid.priorities",
    "x-qpid-priorities",
    "qpid.fairshare",
    "x-qpid-fairshare",
)


@dataclass(slots=True, frozen=True)
class GroupedRules:
    """`header`: the name of the header that holds a message's group."""

    header: str
    kind: str = "message group"


def read_grouped(reader: ArgumentReader, _queue_type: str) -> GroupedRules | None:
    """The rules of a queue of message groups; None for another. Raises `ChannelRefusal` 406."""
    ours, theirs = reader.text(HEADER), reader.text(QPID_HEADER)
    shared = reader.value(QPID_SHARED)
    if ours is None and theirs is None:
        if shared is not None:
            raise reader.refused(f"{QPID_SHARED} without {QPID_HEADER}, the header that holds the group")
        return None
    name, header = (HEADER, ours) if ours is not None else (QPID_HEADER, theirs)
    assert header is not None
    if ours is not None and theirs is not None and ours != theirs:
        raise reader.refused(f"{HEADER} is '{ours}' and {QPID_HEADER} '{theirs}': give one of them")
    if not 0 < len(header.encode()) <= NAME_MAX_BYTES:
        raise reader.invalid(name, f"a header's name has 1 to {NAME_MAX_BYTES} bytes")
    if shared not in (None, 1):  # True is 1
        raise reader.unsupported(
            QPID_SHARED, f"only 1 is, groups shared among consumers; received '{shared}'"
        )
    if shared is None and ours is None:
        raise reader.refused(f"{QPID_HEADER} needs {QPID_SHARED} 1: other groups are not supported")
    for names, what in (
        (LAST_VALUE, "keeps only the last message of a key"),
        (PRIORITY, "orders by priority"),
    ):
        for other in names:
            if reader.value(other) not in (None, False):
                raise reader.refused(f"message groups keep their order, and a queue with {other} {what}")
    return GroupedRules(header)


def group_header(rules: object) -> str:
    """The header that a queue's groups stand in, whichever argument said so; "none" where it has no groups."""
    return rules.header if isinstance(rules, GroupedRules) else "none"
