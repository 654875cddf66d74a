"""A consumer: a queue's right to send to a channel, within its credit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lbg_broker.core.spool import UNLIMITED_BYTES

if TYPE_CHECKING:
    from lbg_broker.core.channel import Channel
    from lbg_broker.core.queue import Queue


class Consumer:
    """Made by basic.consume, gone with basic.cancel, its channel or its queue.

    `prefetch` is the most unsettled messages it may hold, 0 for no limit; `outstanding` is how many it holds.
    `prefetch_bytes` and `outstanding_bytes` are the same of their bodies.
    """

    __slots__ = (
        "arguments",
        "channel",
        "exclusive",
        "no_ack",
        "outstanding",
        "outstanding_bytes",
        "prefetch",
        "prefetch_bytes",
        "queue",
        "tag",
    )

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        prefetch_bytes: int,
        arguments: dict[str, object],
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.prefetch_bytes = prefetch_bytes
        self.arguments = arguments
        self.outstanding = 0
        self.outstanding_bytes = 0

    def credit(self) -> int:
        """Number of messages that it may still be sent now."""
        channel = self.channel
        if channel.closing or channel.connection.paused:
            return 0
        if self.no_ack:
            return UNLIMITED
        credit = self.prefetch - self.outstanding if self.prefetch else UNLIMITED
        if channel.prefetch_total:
            credit = min(credit, channel.prefetch_total - channel.outstanding)
        if (self.prefetch_bytes or channel.prefetch_bytes_total) and self.credit_bytes() <= 0:
            return 0
        return credit if credit > 0 else 0

    @property
    def limits_bytes(self) -> bool:
        return bool(self.prefetch_bytes or self.channel.prefetch_bytes_total)

    def credit_bytes(self) -> int:
        """Bytes below which it may still be sent messages now: the last one may exceed them. So a message that is
        larger than the whole limit passes alone."""
        credit = UNLIMITED_BYTES
        if self.no_ack:
            return credit
        channel = self.channel
        if self.prefetch_bytes:
            credit = self.prefetch_bytes - self.outstanding_bytes
        if channel.prefetch_bytes_total:
            credit = min(credit, channel.prefetch_bytes_total - channel.outstanding_bytes)
        return credit

    def add_unsettled(self, count: int, size_bytes: int) -> None:
        """Adds unsettled messages to its window."""
        channel = self.channel
        self.outstanding += count
        self.outstanding_bytes += size_bytes
        channel.outstanding += count
        channel.outstanding_bytes += size_bytes

    def remove_unsettled(self, count: int, size_bytes: int) -> None:
        """Removes settled or reassigned messages from its window."""
        self.add_unsettled(-count, -size_bytes)


UNLIMITED = 1 << 30
