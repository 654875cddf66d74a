"""Messages of a member to others, over a channel of their own that is replaced after many receivers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from lbg_core.client import Channel, ClientError, Returned
from lbg_core.client.retransmit import OpenTags
from lbg_core.group import TO_ALL
from lbg_core.group.message_codec import encode
from lbg_sidecar.core.effects import Post

RECEIVERS_MAX = 8
RENEW_S = 60.0
"""RabbitMQ has statistics of each channel and each queue to which it published, and goes through all of them every 5 s,
until the channel is closed. A member sends to many others while members join or go, and to log2 N at rest: so a channel
that sent to more than `RECEIVERS_MAX` is replaced after a minute, spread by a fifth."""

OnReturned = Callable[[bytes, int], None]
"""Body and index of a message to one member that did not reach its mailbox."""


class PostingLink(Protocol):
    """The link, as far as it opens channels for messages to others."""

    async def new_posting(self) -> Channel: ...

    @property
    def is_blocked(self) -> bool: ...


class Posts:
    """`channel` must be in confirm mode.

    A message to one member that does not reach its mailbox goes to `on_returned`: it is returned if the mailbox does
    not exist, and refused (basic.nack) if the mailbox is on a node that is down or unreachable. RabbitMQ from 4.3 on
    retains such a mailbox until its node is back; before, the other nodes delete it.
    """

    def __init__(self, channel: Channel, exchange: str, on_returned: OnReturned) -> None:
        self._exchange = exchange
        self._on_returned = on_returned
        self._use(channel)

    def _use(self, channel: Channel) -> None:
        self._channel = channel
        self._receivers: set[int] = set()
        self._is_to_all = False
        self._unconfirmed = OpenTags[tuple[bytes, int] | None]()
        """Body and index of a message to one member; None for another one."""
        channel.on_return = self._on_return
        channel.on_confirm = partial(self._on_confirm, self._unconfirmed)

    def send(self, post: Post) -> None:
        """Raises ClientError."""
        body = encode(post.message)
        if post.to is None:
            self._is_to_all = True
            self._publish(TO_ALL, body)
        elif isinstance(post.to, str):
            self._publish(post.to, body)
        else:
            for index in post.to if isinstance(post.to, tuple) else (post.to,):
                self._receivers.add(index)
                tag = self._channel.publish(self._exchange, str(index), body, mandatory=True)
                self._unconfirmed.sent(tag, (body, index))

    def leave_will(self, routing_key: str) -> None:
        """Raises ClientError."""
        self._publish(routing_key, b"")

    def _publish(self, routing_key: str, body: bytes) -> None:
        self._unconfirmed.sent(self._channel.publish(self._exchange, routing_key, body), None)

    async def renew_regularly(self, link: PostingLink, uniform: Callable[[], float] = random.random) -> None:
        """Replaces the channel now and then, until it is cancelled. `uniform` gives numbers in [0, 1)."""
        while True:
            await asyncio.sleep(RENEW_S * (0.8 + 0.4 * uniform()))
            if not link.is_blocked:
                with suppress(ClientError):
                    await self.renew(link)

    async def renew(self, link: PostingLink) -> None:
        """Continues over a new channel if this one has had many receivers. Not while a message is unconfirmed: none
        may overtake another. Raises ClientError."""
        if not (self._is_to_all or len(self._receivers) > RECEIVERS_MAX) or self._unconfirmed:
            return
        channel, former = await link.new_posting(), self._channel
        if self._unconfirmed:
            former = channel
        else:
            self._use(channel)
        await former.close()

    def _on_return(self, returned: Returned) -> None:
        """Its confirm follows."""
        self._on_returned(bytes(returned.body), int(returned.routing_key))

    def _on_confirm(
        self, unconfirmed: OpenTags[tuple[bytes, int] | None], tag: int, multiple: bool, ok: bool
    ) -> None:
        for directed in unconfirmed.answered(tag, multiple=multiple):
            if directed is not None and not ok:
                self._on_returned(*directed)
