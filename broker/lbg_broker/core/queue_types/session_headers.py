"""Session number and epoch in the headers of a message, written into its encoded properties.

Done once for every message, when a session gets it, so nothing is decoded that need not be (AMQP 0-9-1 sections 4.2.5.5
and 4.2.6.1). The number stands last in the table, and its epoch before it: what publishers write
first stays at the offsets that its readers expect.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from lbg_broker.core.message import with_entries
from lbg_core.amqp import BasicProperties

SEQUENCE: Final = "x-session-seq"
EPOCH: Final = "x-session-epoch"
END: Final = "x-session-end"
OURS: Final = b"x-session-"
"""Headers that only the broker may set."""

_NAME: Final = bytes((len(SEQUENCE),)) + SEQUENCE.encode() + b"l"
_EPOCH_NAME: Final = bytes((len(EPOCH),)) + EPOCH.encode() + b"S"
_entry: Final = Struct(f">{len(_NAME)}sq").pack
_length: Final = Struct(">I")


def epoch_entry(epoch: str) -> bytes:
    """The epoch as `numbered` and `end_of_session` take it: encoded once."""
    text = epoch.encode()
    return _EPOCH_NAME + _length.pack(len(text)) + text


def numbered(header: bytes, sequence: int, epoch: bytes = b"") -> bytes:
    """A message's encoded properties with its sequence number, and the epoch's entry, among the headers."""
    own = _without_ours(header) if OURS in header else header
    return with_entries(own, epoch + _entry(_NAME, sequence))


def end_of_session(sequence: int, epoch: bytes = b"") -> bytes:
    """The properties of a session's last message."""
    header = BasicProperties(headers={END: True}).encode()
    return with_entries(header, epoch + _entry(_NAME, sequence))


def _without_ours(header: bytes) -> bytes:
    """Without what a publisher, or an earlier session of a dead-lettered message, called by our names."""
    properties = BasicProperties.decode(header)
    if properties.headers is not None:
        properties.headers = {
            name: value for name, value in properties.headers.items() if name not in (SEQUENCE, EPOCH, END)
        }
    return properties.encode()
