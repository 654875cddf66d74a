"""Parked messages of a group: list, release and discard (docs/adr/0065-parked-keys-are-a-log.md).

`stream` reads the parked keys from `lbg.G.parked` and writes entries, `queue` reads the copies in `lbg.G.parking`, and
`release` moves them; `administration` has the operations of `lbg park` and `GroupAdmin`.
"""

from __future__ import annotations

from lbg_core.admin.parked_messages.administration import NotParked, ParkedListing
from lbg_core.admin.parked_messages.queue import ParkingStopped
from lbg_core.admin.parked_messages.release import (
    Released,
    discard_parked,
    parked_messages,
    release_parked,
)
from lbg_core.admin.parked_messages.stream import NoParking, ParkedStream, open_parked_stream

__all__ = [
    "NoParking",
    "NotParked",
    "ParkedListing",
    "ParkedStream",
    "ParkingStopped",
    "Released",
    "discard_parked",
    "open_parked_stream",
    "parked_messages",
    "release_parked",
]
