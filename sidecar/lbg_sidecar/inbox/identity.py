"""Identity of a message for an inbox, and the floor of its recorded sequence numbers.

InboxError
└── NoIdentity   the message has no stamp, so a repeat of it cannot be detected
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from lbg_core.group import SequenceSet

Stream = tuple[str, int]
JsonStreams = list[list[object]]


NO_FLOOR = -1


def raised_floor(floor: int, numbers: Iterable[int]) -> int:
    """The floor after the rising `numbers` that follow it without a hole."""
    for number in numbers:
        if number > floor + 1:
            break
        floor = max(floor, number)
    return floor


def as_json(rows: Iterable[tuple[str, int, int, int]]) -> JsonStreams:
    """``[[publisher, hash, [[first, last], …]], …]``, as `lbg_sidecar.app.channel` reads it. `rows`: publisher, hash,
    and the first and last number of a run."""
    streams: dict[Stream, SequenceSet] = {}
    for publisher, hash_, first, last in rows:
        streams.setdefault((publisher, hash_), SequenceSet()).add_run(first, last)
    return [
        [publisher, hash_, [list(run) for run in numbers.runs()]]
        for (publisher, hash_), numbers in streams.items()
    ]


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
