"""Effects that the core returns: frames to send, and batches of changes for the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lbg_broker.core.message import Message
from lbg_core.amqp.methods import Method

Row = tuple[int, bytes, bytes, bytes]
"""A message in the store: position, origin, header, body."""


@dataclass(slots=True, frozen=True)
class SpoolRecord:
    """Record of a durable spool in the store, beside its messages: enough to go on without reading them.

    `first` is set at start only: the lowest position that has a message, None when none has.
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
        """True if anything has to reach the disk; else there is nothing to wait for but the reads."""
        return bool(self.definitions or self.spools or self.dropped or self.trial)


@dataclass(slots=True, frozen=True)
class StoredState:
    """Contents of the store at start."""

    definitions: Sequence[Definition]
    spools: Sequence[SpoolRecord]


@dataclass(slots=True, frozen=True)
class Send:
    """A method without content. A ChannelClose or ConnectionClose starts the closing of either."""

    channel: int
    method: Method


@dataclass(slots=True, frozen=True)
class SendContent:
    """A method with content: basic.return, basic.get-ok."""

    channel: int
    method: Method
    header: bytes
    body: bytes


@dataclass(slots=True, frozen=True)
class Deliver:
    """A run of basic.deliver to one consumer, with delivery tags from `first_tag` on.

    The first `redelivered` messages carry the redelivered flag.
    """

    channel: int
    consumer_tag: str
    first_tag: int
    redelivered: int
    messages: list[Message]


@dataclass(slots=True, frozen=True)
class Revoke:
    """basic.revoke for deliveries of a queue, in as many frames as the tags need, which are in ascending order.

    `is_supported` False: the client has no basic.revoke, so this is for the log only.
    """

    channel: int
    consumer_tag: str
    taken: bool
    delivery_tags: Sequence[int]
    queue: str
    is_supported: bool


@dataclass(slots=True, frozen=True)
class PauseReading:
    """Reads nothing more from the client until `is_paused` is False."""

    is_paused: bool


Effect = Revoke | Send | SendContent | Deliver | PauseReading
