"""One record for each delivery that is over."""

from __future__ import annotations

import time
from collections.abc import Iterable

from lbg_broker.group import EXCLUSIVE, DeliveredRecord
from lbg_broker.journal import JournalWriter

from ..consuming.held import Held
from ..membership.messages import Identity


class WallClock:
    """The event loop's time as microseconds since the epoch. `adjust` follows the system's clock."""

    def __init__(self, now: float) -> None:
        self.offset_s = 0.0
        """What is to be added to the event loop's time."""
        self.adjust(now)

    def adjust(self, now: float) -> None:
        self.offset_s = time.time() - now

    def us(self, at: float) -> int:
        return int((at + self.offset_s) * 1_000_000)


class Journalling:
    """Turns deliveries that are over into records. One that no publisher of ours stamped has none."""

    def __init__(self, writer: JournalWriter, clock: WallClock, *, group: str) -> None:
        self.writer = writer
        self._clock = clock
        self._group = group
        self._mode: str | None = None

    def learn(self, mode: str) -> None:
        """The mode of the group, from its record."""
        self._mode = None if mode == EXCLUSIVE else mode

    def record(self, deliveries: Iterable[Held], me: Identity, *, settled_at: float | None) -> None:
        """`settled_at`: when their ack was written, on the event loop's clock; None if it never was."""
        offset_s = self._clock.offset_s
        settled_at_us = None if settled_at is None else self._clock.us(settled_at)
        append = self.writer.append
        for held in deliveries:
            if held.identity is None or held.outcome is None:
                continue
            publisher, hash_, seq = held.identity
            started_at, finished_at = held.first_started_at, held.finished_at
            # In the order of the fields: by name it takes half as long again.
            append(
                DeliveredRecord(
                    publisher,
                    held.key,
                    hash_,
                    held.queue,
                    seq,
                    held.published_at_us,
                    me.index,
                    me.name,
                    me.incarnation,
                    held.number,
                    held.delivery.redelivered,
                    int((held.received_at + offset_s) * 1_000_000),
                    None if started_at is None else int((started_at + offset_s) * 1_000_000),
                    None if finished_at is None else int((finished_at + offset_s) * 1_000_000),
                    settled_at_us,
                    held.attempts,
                    held.outcome,
                    held.attachment.session,
                    held.sequence,
                    self._group,
                    len(held.delivery.body),
                    self._mode,
                )
            )
