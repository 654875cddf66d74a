"""A message, its origin, and further headers in its encoded properties."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

from lbg_core.amqp.field_table import read_shortstr, write_shortstr

# In the first octet of the property flags, in the order in which the properties follow.
CONTENT_TYPE: Final = 0x80
CONTENT_ENCODING: Final = 0x40
HEADERS: Final = 0x20

_length: Final = Struct(">I")


def with_entries(header: bytes, entries: bytes) -> bytes:
    """An encoded property list with more entries at the end of its headers."""
    flags = header[0]
    at = 2
    if flags & CONTENT_TYPE:
        at += 1 + header[at]
    if flags & CONTENT_ENCODING:
        at += 1 + header[at]
    if not flags & HEADERS:
        return b"%c%b%b%b%b" % (
            flags | HEADERS,
            header[1:at],
            _length.pack(len(entries)),
            entries,
            header[at:],
        )
    (length,) = _length.unpack_from(header, at)
    end = at + 4 + length
    return b"%b%b%b%b%b" % (
        header[:at],
        _length.pack(length + len(entries)),
        header[at + 4 : end],
        entries,
        header[end:],
    )


class Place(IntEnum):
    """Share of the store's reserve that a message may use on a full disk."""

    NONE = 0
    LETTER = 1
    """A dead letter that a client publishes has a place as long as there is enough."""
    MOVED = 2
    """A message that the same batch deletes elsewhere must be written with it."""


DEADLINE: Final = struct.Struct(">d")


@dataclass(slots=True, frozen=True, eq=False)
class Origin:
    """The exchange and routing key of a publish, and its deadline, shared by all messages that have the same.

    `hidden` are the keys of its BCC header, which no consumer sees and a dead letter is routed by. `deadline` is in
    seconds since the epoch, None where messages do not expire. `wire` is how all of it stands in the store: short
    strings one after the other, and behind them the deadline in 8 bytes.
    `place`: whether messages of it are written on a full disk too.
    """

    exchange: str
    routing_key: str
    wire: bytes
    hidden: tuple[str, ...] = ()
    deadline: float | None = None
    place: Place = Place.NONE

    @classmethod
    def of(
        cls, exchange: str, routing_key: str, hidden: tuple[str, ...] = (), *, place: Place = Place.NONE
    ) -> Origin:
        wire = b"".join(map(write_shortstr, (exchange, routing_key, *hidden)))
        return cls(exchange, routing_key, wire, hidden, place=place)

    @classmethod
    def from_wire(cls, wire: bytes, *, expires: bool = False) -> Origin:
        """`expires`: it has a deadline, as every message of its queue does."""
        strings_end = len(wire) - DEADLINE.size if expires else len(wire)
        exchange, end = read_shortstr(wire, 0, "surrogateescape")
        routing_key, end = read_shortstr(wire, end, "surrogateescape")
        hidden: list[str] = []
        while end < strings_end:
            key, end = read_shortstr(wire, end, "surrogateescape")
            hidden.append(key)
        deadline = DEADLINE.unpack_from(wire, strings_end)[0] if expires else None
        return cls(exchange, routing_key, wire, tuple(hidden), deadline)

    def expiring(self, deadline: float) -> Origin:
        """The same with a deadline."""
        wire = self.wire + DEADLINE.pack(deadline)
        return Origin(self.exchange, self.routing_key, wire, self.hidden, deadline, self.place)


class Message:
    """One message in one line. `position` is its place there and never changes.

    `header` is the property list as the publisher sent it, `size` the length of the body, `stored`: the
    store has a row of it. A `hollow` message has left header and body there.
    """

    __slots__ = ("body", "header", "hollow", "origin", "position", "size", "stored")

    def __init__(self, position: int, origin: Origin, header: bytes, body: bytes, stored: bool) -> None:
        self.position = position
        self.origin = origin
        self.header = header
        self.body = body
        self.size = len(body)
        self.stored = stored
        self.hollow = False

    def empty(self) -> None:
        """Drops header and body, which the store has."""
        self.hollow = True
        self.header = self.body = b""

    def fill(self, header: bytes, body: bytes) -> None:
        """Take header and body back."""
        self.hollow = False
        self.header, self.body = header, body

    def __repr__(self) -> str:
        return f"Message({self.position}, {self.origin.routing_key!r}, {self.size} bytes)"
