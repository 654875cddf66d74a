"""What the core asks of the store: batches of changes, each carried out whole or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from lbg_broker.server.core.message import Message

__all__ = [
    "Definition",
    "Page",
    "PageRequest",
    "Row",
    "SpoolChange",
    "SpoolRecord",
    "StoreBatch",
    "StoredState",
]

Row = tuple[int, bytes, bytes, bytes]
"""A message in the store: position, origin, header, body."""


@dataclass(slots=True, frozen=True)
class SpoolRecord:
    """What the store keeps of a durable line beside its messages: enough to go on without reading them.

    `first` is told at start only: the lowest position that has a message, None when none has.
    """

    spool: int
    next_position: int
    mark: int
    messages: int
    bytes: int
    first: int | None = None


@dataclass(slots=True, frozen=True)
class PageRequest:
    """Messages to read back, in order: positions from `first` up to, not including, `upto`.

    `recall`: they are known but hollow; otherwise they are the next of the line. With `positions`, sorted, only these
    are meant; with `headers_only` bodies come empty.
    """

    spool: int
    durable: bool
    first: int
    upto: int
    messages_max: int
    bytes_max: int
    epoch: int
    recall: bool = False
    positions: Sequence[int] = ()
    headers_only: bool = False


@dataclass(slots=True, frozen=True)
class Page:
    """The answer: every message from the request's `first` up to, not including, `end`."""

    request: PageRequest
    rows: Sequence[Row]
    end: int


@dataclass(slots=True, frozen=True)
class SpoolChange:
    """Changes of one line. Inserts come first, then the deletes: inclusive ranges of positions."""

    spool: int
    durable: bool
    inserts: Sequence[Message]
    deletes: Sequence[tuple[int, int]]
    record: SpoolRecord | None


@dataclass(slots=True, frozen=True)
class Definition:
    """A named durable thing (queue, exchange, binding, user, permission). `value` is JSON; None deletes it."""

    kind: str
    key: str
    value: str | None


@dataclass(slots=True)
class StoreBatch:
    """Everything since the last batch. `dropped` lines lose all their messages after the changes above.

    The reads in `pages` come last and see all of it. `on_reserve`: there is no room, so it has only what the store
    keeps a reserve for; no publish is in it. `trial`: it is to show whether there is room again, and fails otherwise.
    """

    number: int
    definitions: list[Definition] = field(default_factory=list)
    spools: list[SpoolChange] = field(default_factory=list)
    dropped: list[tuple[int, bool]] = field(default_factory=list)
    pages: list[PageRequest] = field(default_factory=list)
    on_reserve: bool = False
    trial: bool = False

    @property
    def writes(self) -> bool:
        """Whether anything has to reach the disk; else there is nothing to wait for but the reads."""
        return bool(self.definitions or self.spools or self.dropped or self.trial)


@dataclass(slots=True, frozen=True)
class StoredState:
    """What the store holds at start."""

    definitions: Sequence[Definition]
    spools: Sequence[SpoolRecord]
