"""Memory for the bodies of messages, bounded in bytes; what does not fit goes to temporary files.

RabbitMQ limits a consumer in messages, not in bytes, and the members of a group must have the same limit (ADR 11). So a
member cannot refuse a body that the broker has sent. It writes the body to a file without a name instead, and reads it
when the application gets the message.

What counts is the life of the object: a body is released when nothing refers to its message any more.
"""

from __future__ import annotations

import logging
import math
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from weakref import ReferenceType, ref

from lbg_core.client import Delivery
from lbg_sidecar.core.delivery import InFlight

log = logging.getLogger("lbg.member")

COUNTED_MIN_BYTES = 1024
"""Shorter bodies need not be counted: the prefetch windows of 128 queues have at most 33 MB of them."""

DEFAULT_LIMIT_BYTES = 64_000_000
LIMIT_SHARE = 4
"""The bodies get this part of a control group's limit: the process itself takes about 50 MB, and calls have copies."""

SEGMENT_BYTES = 64_000_000
"""A file is closed, and its space free, with the last message in it: one slow message occupies so much space."""

WARNING_INTERVAL_S = 60.0
"""A folder that is nearly full accepts small bodies between large ones that it does not."""

UNLIMITED_BYTES = 1 << 60
"""A control group of version 1 without a limit has a number near 2**63."""


def control_group_limit_bytes(root: Path = Path("/")) -> int | None:
    """The least `memory.max` (version 1: `memory.limit_in_bytes`) of this process's control group and those above it;
    None without one (kernel.org, "Control Group v2", Memory Interface Files)."""
    limits: list[int] = []
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(top):
                break
            try:
                text = (folder / name).read_text().strip()
            except OSError:
                continue
            if text.isdecimal() and int(text) < UNLIMITED_BYTES:
                limits.append(int(text))
    return min(limits, default=None)


def body_limit_bytes(limit_mb: int | None, control_group_bytes: int | None) -> int:
    """`limit_mb` where it is set; else a quarter of the control group's limit, or 64 MB without one."""
    if limit_mb is not None:
        return limit_mb * 1_000_000
    return DEFAULT_LIMIT_BYTES if control_group_bytes is None else control_group_bytes // LIMIT_SHARE


class BodyLease:
    """The bytes of one body in use, from its creation until nothing refers to it. The end may come in any thread."""

    __slots__ = ("_is_in_file", "_memory", "_size")

    def __init__(self, memory: BodyMemory, size: int, *, is_in_file: bool) -> None:
        self._memory = memory
        self._size = size
        self._is_in_file = is_in_file

    def __del__(self) -> None:
        self._memory.released.append((self._size, self._is_in_file))


class StoredDelivery(Delivery):
    """A delivery whose `body` is in a file, and is read from it each time. Reading raises OSError."""

    __slots__ = ("_offset", "_segment", "_size")

    _segment: _Segment
    _offset: int
    _size: int

    @classmethod
    def of(cls, delivery: Delivery, segment: _Segment, offset: int) -> Self:
        stored = cls.__new__(cls)
        stored.channel, stored.header = delivery.channel, delivery.header
        stored.consumer_tag, stored.delivery_tag = delivery.consumer_tag, delivery.delivery_tag
        stored.exchange, stored.routing_key = delivery.exchange, delivery.routing_key
        stored.redelivered = delivery.redelivered
        stored._segment, stored._offset, stored._size = segment, offset, len(delivery.body)
        return stored

    @property
    def body(self) -> bytes:  # type: ignore[override]  # nobody assigns the body of a delivery
        return self._segment.read(self._offset, self._size)


@dataclass(frozen=True, slots=True)
class BodyUse:
    """Bytes of bodies, and the limit of those in memory."""

    memory_bytes: int
    file_bytes: int
    limit_bytes: int


class BodyMemory:
    """`directory` returns the folder for the files; it raises OSError where there is none.

    Where a file cannot be written the body stays in memory, and the log has a line about it, at most one each
    `WARNING_INTERVAL_S`. `clock` is in seconds.
    """

    def __init__(
        self,
        limit_bytes: int,
        directory: Callable[[], str] = tempfile.gettempdir,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_bytes = limit_bytes
        self.released: deque[tuple[int, bool]] = deque()
        """Size of each body whose lease has ended, and whether it was in a file."""
        self._directory = directory
        self._clock = clock
        self._memory_bytes = 0
        self._file_bytes = 0
        self._segment: ReferenceType[_Segment] | None = None
        self._is_announced = False
        self._warned_at = -math.inf

    @property
    def use(self) -> BodyUse:
        self._count_released()
        return BodyUse(self._memory_bytes, self._file_bytes, self.limit_bytes)

    def admit(self, in_flight: InFlight) -> None:
        """Counts the body of a message that has arrived, and writes it to a file where the limit requires that. A body
        that is larger than the limit stays in memory while it is the only one."""
        self._count_released()
        size = in_flight.size
        is_over = self._memory_bytes > 0 and self._memory_bytes + size > self.limit_bytes
        is_in_file = is_over and self._write(in_flight)
        in_flight.body_lease = BodyLease(self, size, is_in_file=is_in_file)
        if is_in_file:
            self._file_bytes += size
        else:
            self._memory_bytes += size

    def _count_released(self) -> None:
        released = self.released
        while released:
            size, is_in_file = released.popleft()
            if is_in_file:
                self._file_bytes -= size
            else:
                self._memory_bytes -= size

    def _write(self, in_flight: InFlight) -> bool:
        body = in_flight.delivery.body
        try:
            segment = self._segment() if self._segment is not None else None
            if segment is None or segment.size + len(body) > SEGMENT_BYTES:
                segment = _Segment(self._directory())
                self._segment = ref(segment)
            offset = segment.append(body)
        except OSError as error:
            now = self._clock()
            if now - self._warned_at >= WARNING_INTERVAL_S:
                self._warned_at = now
                log.warning(
                    "message bodies use %d MB of memory, and no temporary file for more can be written: %s; they use "
                    "memory beyond the limit of %d MB. Give this process a TMPDIR that it can write to",
                    self._memory_bytes // 1_000_000,
                    error,
                    self.limit_bytes // 1_000_000,
                )
            return False
        if not self._is_announced:
            log.info(
                "message bodies use their limit of %d MB of memory; further ones go to a temporary file in %s",
                self.limit_bytes // 1_000_000,
                segment.directory,
            )
        self._is_announced = True
        in_flight.delivery = StoredDelivery.of(in_flight.delivery, segment, offset)
        return True


class _Segment:
    """A temporary file without a name, for the bodies of some messages. Raises OSError where it cannot be made."""

    def __init__(self, directory: str) -> None:
        self._fd = -1
        self.directory = directory
        self.size = 0
        with tempfile.TemporaryFile(dir=directory) as file:
            self._fd = os.dup(file.fileno())

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def append(self, body: bytes) -> int:
        """Returns the offset of the body. Raises OSError; what was written of it is written over then."""
        offset, rest = self.size, memoryview(body)
        while rest:
            written = os.pwrite(self._fd, rest, self.size + len(body) - len(rest))
            rest = rest[written:]
        self.size += len(body)
        return offset

    def read(self, offset: int, size: int) -> bytes:
        body = os.pread(self._fd, size, offset)
        while len(body) < size:
            more = os.pread(self._fd, size - len(body), offset + len(body))
            if not more:
                raise OSError(f"a temporary file in {self.directory} has lost the end of a message")
            body += more
        return body
