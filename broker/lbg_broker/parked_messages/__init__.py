"""Parked messages of a group: list, release and discard (docs/adr/0065-parked-keys-are-a-log.md).

`stream` reads the parked keys from `lbg.G.parked` and writes entries; `release` moves the messages of `lbg.G.parking`.
"""

from __future__ import annotations

from lbg_broker.parked_messages.release import (
    ParkingStopped,
    Released,
    discard_parked,
    parked_messages,
    release_parked,
)
from lbg_broker.parked_messages.stream import NoParking, ParkedStream, open_parked_stream

__all__ = [
    "NoParking",
    "ParkedStream",
    "ParkingStopped",
    "Released",
    "discard_parked",
    "open_parked_stream",
    "parked_messages",
    "release_parked",
]
