"""One life of a member on the broker: two connections, a claimed index, and a channel for each queue.

Two, because a broker that runs out of memory or disk stops reading from connections that publish (RabbitMQ:
connection.blocked): acknowledgements and closes must still get through. The members' talk, dead letters and
republished messages go over one, deliveries and acks over the other. Losing either is losing both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Protocol

from lbg_broker.client import (
    Channel,
    ClientConnection,
    ClientError,
    Delivery,
    ResourceLocked,
    Returned,
    connect,
)
from lbg_broker.group import Names, mailbox_of

from ..consuming.held import Attachment
from ..effects import Detach
from ..errors import IndexTaken
from ..membership.claiming import Claiming
from ..membership.messages import LOOK, encode
from ..membership.roster import Post

log = logging.getLogger("lbg.member")

OnBody = Callable[[bytes], None]
OnReturned = Callable[[bytes, int], None]


class QueueEvents(Protocol):
    """Who is told what happens to an attachment."""

    def on_deliveries(self, attachment: Attachment, deliveries: list[Delivery]) -> None: ...
    def on_attached(self, attachment: Attachment) -> None: ...
    def on_closed(self, attachment: Attachment) -> None: ...


class Link:
    """`index` is the claimed one. Everything that happens comes through the callbacks, in the event loop."""

    def __init__(self, talk: ClientConnection, work: ClientConnection, names: Names, index: int) -> None:
        self.talk = talk
        self.work = work
        self.index = index
        self._names = names
        self._posting: Channel | None = None
        self._channels: dict[Attachment, Channel] = {}
        self._attaching: dict[Attachment, asyncio.Task[None]] = {}
        self._on_lost: Callable[[Link, str], None] | None = None

    @classmethod
    async def open(
        cls,
        talk: ClientConnection,
        names: Names,
        *,
        claiming: Callable[[Collection[int], Collection[int]], Claiming],
        look_at: Collection[int],
        on_body: OnBody,
        on_returned: OnReturned,
    ) -> Link:
        """Claim an index over `talk` and open the other connection. `claiming` is made from (looked, free).

        Raises ClientError, IndexTaken.
        """
        work = await connect(talk.settings, name=talk.name)
        try:
            posting = await talk.open_channel()
            free = await _free_among(posting, names, look_at)
            index, mailbox = await _claim(talk, names, claiming(look_at, free), on_body)
        except BaseException:
            work.abort()
            raise
        link = cls(talk, work, names, index)
        link._posting = posting
        posting.on_return = partial(_on_return, on_returned)
        link.watch(posting)
        link.watch(mailbox)
        return link

    def when_lost(self, callback: Callable[[Link, str], None]) -> None:
        """Call it, perhaps more than once, when this link is of no use any more."""
        self._on_lost = callback
        for connection in (self.talk, self.work):
            connection.closed.add_done_callback(self._ended)

    def watch(self, channel: Channel) -> None:
        """A channel without which the member would be deaf, mute, or stuck: if it goes, all goes."""
        channel.closed.add_done_callback(self._ended)

    def _ended(self, closed: asyncio.Future[ClientError | None]) -> None:
        if self._on_lost is not None:
            self._on_lost(self, str(closed.result() or "closed"))

    def post(self, post: Post) -> None:
        """A hint: it is dropped where it would only pile up."""
        if self._posting is None or self.talk.is_blocked:
            return
        directed = post.to is not None
        with suppress(ClientError):
            self._posting.publish(
                self._names.members,
                str(post.to) if directed else "all",
                encode(post.message),
                mandatory=directed,
            )

    def attach(self, attachment: Attachment, events: QueueEvents) -> None:
        """Consume on a channel of its own, and tell what becomes of it."""
        task = asyncio.get_running_loop().create_task(self._attach(attachment, events))
        self._attaching[attachment] = task

    async def _attach(self, attachment: Attachment, events: QueueEvents) -> None:
        try:
            channel = await self.work.open_channel()
            self._channels[attachment] = channel
            channel.closed.add_done_callback(partial(self._closed, attachment, events))
            await channel.consume(
                self._names.queue(attachment.queue),
                partial(events.on_deliveries, attachment),
                prefetch_count=attachment.prefetch,
                on_cancelled=partial(self._cancelled, attachment),
            )
            events.on_attached(attachment)
        except ClientError as error:
            if attachment not in self._channels and self.work.is_open:
                log.warning("queue %d: no channel: %s", attachment.queue, error)
                events.on_closed(attachment)
        finally:
            del self._attaching[attachment]

    def detach(self, effect: Detach) -> None:
        """Settle and close in one write, without a basic.cancel before it: that keeps the order (see
        Channel.close_soon)."""
        attachment = effect.attachment
        attaching = self._attaching.get(attachment)
        if attaching is not None:
            attaching.add_done_callback(lambda _: self._close(attachment))
            return
        channel = self._channels.get(attachment)
        if channel is None:
            return
        with suppress(ClientError):
            if effect.ack_tag is not None:
                channel.ack(effect.ack_tag, multiple=True)
            for tag in effect.single_tags:
                channel.ack(tag)
        self._close(attachment)

    def ack(self, attachment: Attachment, tag: int, *, multiple: bool) -> None:
        channel = self._channels.get(attachment)
        if channel is not None:
            with suppress(ClientError):
                channel.ack(tag, multiple=multiple)

    async def close(self) -> None:
        await self.work.close()
        await self.talk.close()

    def abort(self) -> None:
        self.work.abort()
        self.talk.abort()

    def _close(self, attachment: Attachment) -> None:
        channel = self._channels.get(attachment)
        if channel is not None:
            channel.close_soon()

    def _cancelled(self, attachment: Attachment) -> None:
        log.warning("queue %d: the broker ended the consumer", attachment.queue)
        self._close(attachment)

    def _closed(
        self, attachment: Attachment, events: QueueEvents, closed: asyncio.Future[ClientError | None]
    ) -> None:
        self._channels.pop(attachment, None)
        error = closed.result()
        if not self.work.is_open:
            # First of all nothing more may start, on any queue.
            self._ended(closed)
        elif error is not None:
            log.warning("queue %d: %s", attachment.queue, error)
        events.on_closed(attachment)


async def _free_among(posting: Channel, names: Names, indexes: Collection[int]) -> set[int]:
    """Those whose mailbox is missing: a mandatory message to it comes back, before the answer to the next request.

    Declaring is what claims; this only saves the refusals, which the broker would log as errors.
    """
    free: set[int] = set()
    posting.on_return = lambda returned: free.add(int(returned.routing_key))
    for index in indexes:
        posting.publish(names.members, str(index), LOOK, mandatory=True)
    await posting.basic_qos(0)
    return free


async def _claim(
    talk: ClientConnection, names: Names, claiming: Claiming, on_body: OnBody
) -> tuple[int, Channel]:
    while (index := claiming.candidate()) is not None:
        mailbox, bindings = mailbox_of(names, index)
        channel = await talk.open_channel()
        try:
            await channel.queue_declare(mailbox.name, exclusive=True, arguments=dict(mailbox.arguments))
        except ResourceLocked:
            claiming.taken(index)
            continue
        for binding in bindings:
            await channel.queue_bind(binding.queue, binding.exchange, binding.routing_key)

        def on_deliveries(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                on_body(bytes(delivery.body))

        # Without a mailbox this member would be taken for gone: then it had better be.
        await channel.consume(mailbox.name, on_deliveries, no_ack=True, on_cancelled=talk.abort)
        return index, channel
    raise IndexTaken(claiming.fixed or 0)


def _on_return(on_returned: OnReturned, returned: Returned) -> None:
    on_returned(bytes(returned.body), int(returned.routing_key))
