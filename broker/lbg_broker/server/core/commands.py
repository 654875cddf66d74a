"""What the core is told. `Broker.apply` takes these."""

from collections.abc import Sequence
from dataclasses import dataclass

from lbg_broker.amqp import Event
from lbg_broker.server.core.changes import Page
from lbg_broker.server.core.connection import Peer

__all__ = [
    "CloseConnection",
    "Command",
    "Committed",
    "ConnectionLost",
    "ConnectionOpened",
    "Paused",
    "Received",
    "StoreBlocked",
    "Ticked",
]


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
    """What one read brought from a client, on its channels; connection.* methods are the shell's."""

    connection: int
    events: Sequence[Event]


@dataclass(slots=True, frozen=True)
class Paused:
    """The client stopped reading as fast as we write, or caught up again."""

    connection: int
    paused: bool


@dataclass(slots=True, frozen=True)
class Committed:
    """A batch is on disk, and these are the answers to its page requests."""

    number: int
    pages: Sequence[Page] = ()


@dataclass(slots=True, frozen=True)
class StoreBlocked:
    """The store cannot write for now (a full disk), for this reason; None: it can again."""

    reason: str | None


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
