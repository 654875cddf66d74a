"""Commands that `Broker.apply` accepts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lbg_broker.core.effects import Page, StoreBatch
from lbg_broker.core.entities import Peer
from lbg_core.amqp import Event


@dataclass(slots=True, frozen=True)
class ConnectionOpened:
    """A client passed the handshake. `connection` is a number never used before."""

    connection: int
    user: str
    vhost: str
    peer: Peer


@dataclass(slots=True, frozen=True)
class ConnectionLost:
    """A connection is gone, in whatever way."""

    connection: int


@dataclass(slots=True, frozen=True)
class Received:
    """Events of one read from a client, on its channels; connection.* methods are the shell's."""

    connection: int
    events: Sequence[Event]


@dataclass(slots=True, frozen=True)
class Paused:
    """The client stopped reading as fast as we write, or caught up again."""

    connection: int
    paused: bool


@dataclass(slots=True, frozen=True)
class Committed:
    """A batch is on disk, and these are the answers to its page requests. `is_low`: little is left of the reserve."""

    number: int
    pages: Sequence[Page] = ()
    is_low: bool = False


@dataclass(slots=True, frozen=True)
class StoreBlocked:
    """The store has no room (a full disk), for this reason; None: it has again. Nothing of `batch` was written. The
    reserve has room for a letter of `letter_bytes_max`."""

    reason: str | None
    batch: StoreBatch | None = None
    letter_bytes_max: int = 0


@dataclass(slots=True, frozen=True)
class CloseConnection:
    """Close a client's connection with 320 and this reason. None: all connections."""

    connection: int | None
    reason: str


@dataclass(slots=True, frozen=True)
class Ticked:
    """Time passed: what waits for it goes on."""


Command = (
    ConnectionOpened
    | ConnectionLost
    | Received
    | Paused
    | Committed
    | StoreBlocked
    | CloseConnection
    | Ticked
)
