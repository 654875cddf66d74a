"""A message in this member's hands, and the attachment it came through."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Hashable
from typing import Any

from .settling import Settling

Identity = tuple[str, int, int]  # publisher, hash, sequence: what makes two deliveries the same message


class Outcome(enum.StrEnum):
    """How a delivery ended, in the words of the journal (`lbg_broker.group.journal.VERDICTS`)."""

    ACK = "ack"
    DEAD = "dead"
    REPEAT = "repeat"
    END = "end"  # of a session: no message of anybody's, so the journal has none of it
    RELEASED = "released"


class Held:
    """One delivery, from its arrival until it is settled or forgotten.

    `delivery` is the client's object and stays opaque in here. `redelivered`: the broker says that somebody had it
    before (AMQP 0-9-1, basic.deliver). `number` counts the member's deliveries. `sequence` is its number in a session,
    from 1, where there is one; `ends_session`: it is that session's End-of-Session.
    `calls` counts those of the application through this attachment, the running one included, `earlier` those that
    were made before, as far as is known. Times are the clock that the
    machine is driven with, in seconds: `started_at` of the last call, `first_started_at` of the first one
    through this attachment.
    `is_asked`: the broker wants it back, and it was at work. `is_taken`: the broker has given it to another consumer.
    """

    __slots__ = (
        "abort_reason",
        "attachment",
        "calls",
        "delivery",
        "earlier",
        "ends_session",
        "epoch",
        "finished_at",
        "first_started_at",
        "identity",
        "is_asked",
        "is_taken",
        "key",
        "lane",
        "number",
        "outcome",
        "published_at_us",
        "reason",
        "received_at",
        "redelivered",
        "sequence",
        "started_at",
        "tag",
    )

    def __init__(
        self,
        attachment: Attachment,
        tag: int,
        *,
        key: str | None = None,
        identity: Identity | None = None,
        delivery: Any = None,
    ) -> None:
        self.attachment = attachment
        self.tag = tag
        self.key = key
        self.identity = identity
        self.delivery = delivery
        self.redelivered = False
        self.sequence: int | None = None
        self.epoch: str | None = None
        self.ends_session = False
        self.lane: Hashable = None
        self.is_asked = False
        self.is_taken = False
        self.calls = 0
        self.earlier = 0
        self.number = 0
        self.published_at_us = 0
        self.received_at = 0.0
        self.started_at = 0.0
        self.first_started_at: float | None = None
        self.finished_at: float | None = None
        self.abort_reason: str | None = None
        self.outcome: Outcome | None = None
        self.reason = ""

    @property
    def attempts(self) -> int:
        return self.earlier + self.calls

    @property
    def queue(self) -> int:
        """The number of its queue, or of its partition in a queue that has partitions."""
        attachment, identity = self.attachment, self.identity
        if attachment.partitions == 1 or identity is None:
            return attachment.queue
        return identity[1] % attachment.partitions

    @property
    def is_over(self) -> bool:
        """Nothing that becomes of it here counts any more: its channel is gone, or it is another consumer's."""
        return self.is_taken or self.attachment.closed

    def __repr__(self) -> str:
        return f"Held(q{self.queue} tag {self.tag} key {self.key!r} attempts {self.attempts})"


class Attachment:
    """One consumer on one queue, as long as its channel lives: everything in it goes when the channel goes.

    `lanes` maps a lane to those that wait behind its head (None while nobody does); the head itself is ready,
    running, delayed or parked. `running` is in order of start.
    """

    __slots__ = (
        "acked_at",
        "closed",
        "delivered",
        "epoch",
        "frozen",
        "highest",
        "lanes",
        "limit",
        "listed",
        "parked",
        "partitions",
        "poisoned",
        "prefetch",
        "queue",
        "ready",
        "running",
        "session",
        "settling",
        "shelved",
        "unacked_listed",
        "unconfirmed",
    )

    def __init__(
        self, queue: int, epoch: int, *, prefetch: int = 0, partitions: int = 1, session: str | None = None
    ) -> None:
        self.queue = queue
        self.partitions = partitions
        self.session = session
        self.epoch = epoch
        self.prefetch = prefetch
        self.settling = Settling(in_order=session is not None)
        self.lanes: dict[Hashable, deque[Held] | None] = {}
        self.ready: deque[Held] = deque()
        self.running: dict[Held, None] = {}
        self.parked: dict[
            Held, None
        ] = {}  # refused, waiting for the dead letter's confirm; the lane waits with them
        self.poisoned: dict[Held, float] = {}  # since when their attempts are used up, and they are tried on
        self.unconfirmed: dict[Held, None] = {}  # acked by the app and republished, waiting for that confirm
        self.delivered = 0
        self.highest = 0  # the highest tag that was handed to the application
        self.frozen = False
        self.limit = 0  # while frozen, only what was delivered before this tag may start
        self.shelved: deque[Held] = deque()  # ready, but not allowed to start while frozen
        self.closed = False
        self.listed = False  # in the rota of attachments that have something ready
        self.acked_at = float("-inf")
        self.unacked_listed = False  # among the attachments that have something to acknowledge

    @property
    def is_at_work(self) -> bool:
        """Something is inside the application, on its way to a confirm, or may start now. Retries that wait for
        their time do not count."""
        return bool(self.running or self.ready or self.parked or self.unconfirmed)

    @property
    def drained(self) -> bool:
        """Frozen, and not at work."""
        return not self.is_at_work
