"""A consumer: a queue's right to send to a channel, within its credit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lbg_broker.server.core.channel import Channel
    from lbg_broker.server.core.queue import Queue


class Consumer:
    """Made by basic.consume, gone with basic.cancel, its channel or its queue.

    `prefetch` is the most unsettled messages it may hold, 0 for no limit; `outstanding` is how many it holds.
    """

    __slots__ = ("arguments", "channel", "exclusive", "no_ack", "outstanding", "prefetch", "queue", "tag")

    def __init__(
        self,
        channel: Channel,
        queue: Queue,
        tag: str,
        *,
        no_ack: bool,
        exclusive: bool,
        prefetch: int,
        arguments: dict[str, object],
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = exclusive
        self.prefetch = prefetch
        self.arguments = arguments
        self.outstanding = 0

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
        return max(credit, 0)


UNLIMITED = 1 << 30
