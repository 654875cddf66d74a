"""Memory of messages that clients have begun to send and not completed.

A body comes in frames, on many channels and connections at once, and nothing obliges a client to complete it. So the
bytes of incomplete messages are counted, with a limit for a connection and one for all. Above the second limit the
connections with incomplete messages wait: they are not read from (RabbitMQ: a memory alarm stops reading from
publishers). As many of them have a turn as there is room for, at least the first. The last has one too, from a
reserve, so that a publisher need not wait for many that came before it and complete nothing. When the reserve is used
up the connection with most bytes is closed.

A connection that has nothing to send while it waits, or that does not use its turn, is closed: its bytes would occupy
the memory for ever. No I/O and no clock in here.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from lbg_core.counted_nouns import counted

log = logging.getLogger("lbg.broker")

SMALL_BYTES = 65_536
"""A connection with no more bytes of incomplete messages is always read from: small messages do not wait."""

MESSAGES_PER_CONNECTION = 4
"""So many incomplete messages of the largest size a connection may have, on channels of its choice."""

SILENT_S = 2.0
"""After this time without bytes from a connection that waits, or has its turn, it is closed."""

TURN_S = 30.0
"""A turn. In this time a message of 16 MiB arrives at 4.5 Mbit/s."""

TICK_S = 1.0

READ_BYTES = 262_144
"""The most that one read brings (asyncio): so many bytes of room give one more connection a turn."""

REASON = "memory"
"""Of a pause in reading."""

FREED_BYTES = 16_777_216
"""Fall of the total after which the allocator is asked to return what it retains (`malloc_trim`)."""


class Sender(Protocol):
    """A connection that sends messages."""

    def has_input(self) -> bool: ...
    def pause_reading(self, reason: str) -> None: ...
    def resume_reading(self, reason: str) -> None: ...
    def refuse_content(self, why: str) -> None: ...


@dataclass(slots=True)
class _Turn:
    began_at: float
    received_at: float


class ContentMemory:
    """`limit_bytes` is that of all connections, `connection_limit_bytes` that of one, and the reserve. `on_short` is
    called when the limit of all is exceeded: from then on `tick` has to be called every `TICK_S` seconds while
    `is_short`. `on_freed` is called when the total has fallen by `FREED_BYTES`, and again after `returned`."""

    def __init__(
        self,
        limit_bytes: int,
        connection_limit_bytes: int,
        *,
        on_short: Callable[[], None] = lambda: None,
        on_freed: Callable[[], None] = lambda: None,
    ) -> None:
        self.limit_bytes = max(limit_bytes, connection_limit_bytes)
        self.connection_limit_bytes = connection_limit_bytes
        self.total_bytes = 0
        self.is_short = False
        self._on_short = on_short
        self._on_freed = on_freed
        self._highest_bytes = 0
        self._sizes: dict[Sender, int] = {}
        self._large: dict[Sender, None] = {}
        """Those above `SMALL_BYTES`, in the order in which they became so."""
        self._waiting: dict[Sender, float] = {}
        """Those that are not read from, with the time since which they have had nothing to send."""
        self._turns: dict[Sender, _Turn] = {}
        self._closed = 0

    def update(self, sender: Sender, size: int, now: float) -> None:
        """The incomplete messages of a connection have so many bytes. `now` is in seconds."""
        self._count(sender, size)
        if sender in self._turns:
            self._turns[sender].received_at = now
        if size > self.connection_limit_bytes:
            self._close(
                sender,
                f"incomplete messages of this connection have {size} bytes, and the limit is "
                f"{self.connection_limit_bytes}",
            )
        self._balance(now)

    def forget(self, sender: Sender, now: float) -> None:
        """The connection has ended."""
        self._count(sender, 0)
        self._waiting.pop(sender, None)
        self._balance(now)

    def tick(self, now: float) -> None:
        """Closes those that have nothing to send, or have had their turn."""
        if not self.is_short:
            return
        for sender, turn in list(self._turns.items()):
            if now - turn.received_at >= SILENT_S or now - turn.began_at >= TURN_S:
                self._close_idle(sender, now - turn.began_at)
        for sender, silent_since in list(self._waiting.items()):
            if sender.has_input():
                self._waiting[sender] = now
            elif now - silent_since >= SILENT_S:
                self._close_idle(sender, now - silent_since)
        self._balance(now)

    def returned(self) -> None:
        """The allocator has returned what was freed up to now."""
        self._highest_bytes = self.total_bytes

    def _count(self, sender: Sender, size: int) -> None:
        self.total_bytes += size - self._sizes.pop(sender, 0)
        if self.total_bytes > self._highest_bytes:
            self._highest_bytes = self.total_bytes
        elif self.total_bytes <= self._highest_bytes - FREED_BYTES:
            self._on_freed()
        if size:
            self._sizes[sender] = size
        if size > SMALL_BYTES:
            self._large.setdefault(sender)
        else:
            self._large.pop(sender, None)
            self._turns.pop(sender, None)

    def _close_idle(self, sender: Sender, idle_s: float) -> None:
        self._closed += 1
        self._close(
            sender,
            f"a message is incomplete after {idle_s:.0f} s, and incomplete messages use {self.total_bytes} bytes, "
            f"above the limit of {self.limit_bytes}",
        )

    def _close(self, sender: Sender, why: str) -> None:
        self._count(sender, 0)
        self._waiting.pop(sender, None)
        sender.refuse_content(why)

    def _balance(self, now: float) -> None:
        while self.total_bytes > self.limit_bytes + self.connection_limit_bytes:
            self._closed += 1
            largest = max(self._sizes, key=self._sizes.__getitem__)
            self._close(
                largest,
                f"incomplete messages use {self.total_bytes} bytes, above the limit of {self.limit_bytes} and the "
                f"reserve, and this connection has {self._sizes[largest]} of them, the most",
            )
        room = self.limit_bytes - self.total_bytes
        if not self.is_short:
            if room >= 0:
                return
            self._begin()
        turns = set(itertools.islice(self._large, 1 + max(0, room // READ_BYTES)))
        if self._large:
            turns.add(next(reversed(self._large)))
        for sender in self._large:
            if sender in turns:
                self._turns.setdefault(sender, _Turn(now, now))
                self._resume(sender)
            elif sender not in self._waiting:
                self._turns.pop(sender, None)
                self._waiting[sender] = now
                sender.pause_reading(REASON)
        for sender in [one for one in self._waiting if one not in self._large]:
            self._resume(sender)
        if not self._waiting and room >= 0:
            self._end()

    def _resume(self, sender: Sender) -> None:
        if self._waiting.pop(sender, None) is not None:
            sender.resume_reading(REASON)

    def _begin(self) -> None:
        self.is_short = True
        self._closed = 0
        log.warning(
            "incomplete messages of %s use %s of memory, above the limit of %d: connections with such messages wait, "
            "and complete them one after another",
            counted(len(self._sizes), "connection"),
            counted(self.total_bytes, "byte"),
            self.limit_bytes,
        )
        self._on_short()

    def _end(self) -> None:
        self.is_short = False
        self._turns.clear()
        log.warning(
            "incomplete messages use %s of memory, below the limit; %s",
            counted(self.total_bytes, "byte"),
            counted(
                self._closed,
                "connection without progress was closed",
                "connections without progress were closed",
            ),
        )
