"""Log of an application: a file of fixed records, one for each start or end of a call.

A record is one write(2) to a file opened for appending, so a SIGKILL loses none that was written: they are in the
page cache. Times are CLOCK_MONOTONIC in ns, which all processes of a machine share.
"""

from __future__ import annotations

import enum
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_RECORD = struct.Struct("<QIIIHHBBH")
_READ_RECORDS = 8192


class Kind(enum.IntEnum):
    STARTED = 0  # an application process begins: calls of the one before it are over
    ENTERED = 1
    ACKED = 2
    RETRIED = 3
    DROPPED = 4
    ABORTED = 5  # cancelled in the middle, without a verdict


class Record(NamedTuple):
    """`publisher` and `position` name the message; the rest is what the application was shown of it."""

    at_ns: int
    position: int
    key: int
    seq: int
    publisher: int
    queue: int
    kind: int
    redelivered: int
    attempt: int


class Ledger:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.write(Kind.STARTED, (0, 0, 0, 0, 0), 0, 0)

    def write(
        self, kind: Kind, message: tuple[int, int, int, int, int], redelivered: int, attempt: int
    ) -> None:
        """`message`: position, key, seq, publisher, queue."""
        os.write(
            self._descriptor,
            _RECORD.pack(time.monotonic_ns(), *message, kind, redelivered, min(attempt, 65535)),
        )


def read(path: Path) -> Iterator[Record]:
    """Every whole record, in the order they were written."""
    with path.open("rb") as file:
        while block := file.read(_RECORD.size * _READ_RECORDS):
            whole = len(block) - len(block) % _RECORD.size
            yield from map(Record._make, _RECORD.iter_unpack(block[:whole]))


def entered(directory: Path) -> int:
    """Roughly how many calls the ledgers in a directory hold."""
    return sum(path.stat().st_size for path in directory.glob("*.ledger")) // _RECORD.size // 2
