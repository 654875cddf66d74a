"""One record for each delivery that is over."""

from __future__ import annotations

import time

from lbg_broker.group import DeliveredRecord
from lbg_broker.journal import JournalWriter

from ..consuming.held import Held
from ..membership.messages import Identity


class WallClock:
    """The event loop's time as microseconds since the epoch. `adjust` follows the system's clock."""

    def __init__(self, now: float) -> None:
        self._offset_s = 0.0
        self.adjust(now)

    def adjust(self, now: float) -> None:
        self._offset_s = time.time() - now

    def us(self, at: float) -> int:
        return int((at + self._offset_s) * 1_000_000)


class Journalling:
    """Turns deliveries that are over into records. One that no publisher of ours stamped has none."""

    def __init__(self, writer: JournalWriter, clock: WallClock) -> None:
        self.writer = writer
        self._clock = clock

    def done(self, held: Held, me: Identity, *, settled_at: float | None) -> None:
        if held.identity is None or held.outcome is None:
            return
        us = self._clock.us
        publisher, hash_, seq = held.identity
        self.writer.append(
            DeliveredRecord(
                publisher=publisher,
                key=held.key,
                hash_=hash_,
                queue=held.attachment.queue,
                seq=seq,
                published_at_us=held.published_at_us,
                member=me.index,
                member_name=me.name,
                incarnation=me.incarnation,
                delivery=held.number,
                redelivered=held.delivery.redelivered,
                delivered_at_us=us(held.received_at),
                started_at_us=us(held.first_started_at) if held.first_started_at is not None else None,
                finished_at_us=us(held.finished_at) if held.finished_at is not None else None,
                settled_at_us=us(settled_at) if settled_at is not None else None,
                attempts=held.attempts,
                verdict=held.outcome.value,
            )
        )
