"""What an inbox reads of a message, and what it needs of a table's name.

InboxError
└── NoIdentity   the message was not stamped by a publisher of ours: nothing tells it from its repeat
"""

from __future__ import annotations

from typing import Protocol


class InboxError(Exception):
    """Base of every error of this package."""


class NoIdentity(InboxError):
    def __init__(self, message_id: str) -> None:
        super().__init__(
            f"message {message_id} has no publisher, hash and sequence, so a repeat of it cannot be recognised: "
            "publish with lbg, or recognise it by something of its own"
        )


class Identified(Protocol):
    @property
    def id(self) -> str: ...
    @property
    def publisher(self) -> str | None: ...
    @property
    def hash(self) -> int | None: ...
    @property
    def seq(self) -> int | None: ...


def identity_of(message: Identified) -> tuple[str, int, int]:
    publisher, hash_, seq = message.publisher, message.hash, message.seq
    if publisher is None or hash_ is None or seq is None:
        raise NoIdentity(message.id)
    return publisher, hash_, seq


def quoted(table: str) -> str:
    """A table's name as SQL takes it literally, dots and quotes too. Raises ValueError if it can be none."""
    if not table or "\0" in table:
        raise ValueError(f"table is {table!r}, but a name has at least one character and none is NUL")
    return '"' + table.replace('"', '""') + '"'
