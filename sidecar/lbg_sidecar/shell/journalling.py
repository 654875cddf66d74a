"""One record for each delivery that is over."""

from __future__ import annotations

from collections.abc import Iterable

from lbg_broker.group import EXCLUSIVE, DeliveredRecord
from lbg_broker.journal import JournalWriter

from ..consuming.held import Held
from ..membership.messages import Identity
from .wall_clock import WallClock


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
        us = self._clock.us
        settled_at_us = None if settled_at is None else us(settled_at)
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
                    us(held.received_at),
                    None if started_at is None else us(started_at),
                    None if finished_at is None else us(finished_at),
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
