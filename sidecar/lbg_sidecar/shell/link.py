"""One life of a member on the broker: two connections, a claimed index, and a channel for each queue.

Two, because a broker that runs out of memory or disk stops reading from connections that publish (RabbitMQ:
connection.blocked): acknowledgements, closes and claims must still get through. All that is published goes over one,
everything else over the other: the mailbox, deliveries and acks. Losing either is losing both.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Protocol

from lbg_broker.client import (
    Channel,
    ClientConnection,
    ClientError,
    Delivery,
    PreconditionFailed,
    Publisher,
    ResourceLocked,
    Returned,
    connect,
)
from lbg_broker.group import Names, mailbox_of

from ..consuming.held import Attachment
from ..effects import Detach
from ..errors import IndexTaken
from ..membership.claiming import Claiming
from ..membership.encoding import LOOK, encode
from ..membership.roster import Post

log = logging.getLogger("lbg.member")

OnBody = Callable[[bytes], None]
OnReturned = Callable[[bytes, int], None]
OnLooked = Callable[[int, int | None], None]

ATTACH_WITHIN_S = 5.0
NO_ANSWER = "queue %d: no answer to basic.consume in %g s (a quorum queue gives none while most of its nodes are down)"

LOOK_S = 2.0
"""A look at who is there is given up after this long: it only saves refusals."""


class QueueEvents(Protocol):
    """Who is told what happens to an attachment."""

    def on_deliveries(self, attachment: Attachment, deliveries: list[Delivery]) -> None: ...
    def on_attached(self, attachment: Attachment) -> None: ...
    def on_timed_out(self, attachment: Attachment, timeout_s: float) -> None: ...
    def on_closed(self, attachment: Attachment) -> None: ...


class Link:
    """`index` is the claimed one. Everything that happens comes through the callbacks, in the event loop.

    `dead` and `republished` publish what the member got; both confirm.
    """

    def __init__(
        self,
        work: ClientConnection,
        talk: ClientConnection,
        names: Names,
        index: int,
        *,
        posting: Channel,
        dead: Publisher,
        republished: Channel,
    ) -> None:
        self.work = work
        self.talk = talk
        self.index = index
        self.dead = dead
        self.republished = republished
        self._names = names
        self._posting = posting
        self._looking: Channel | None = None
        self._looks: set[asyncio.Task[None]] = set()
        self._look_turn = asyncio.Lock()
        self._channels: dict[Attachment, Channel] = {}
        self._attaching: dict[Attachment, asyncio.Task[None]] = {}
        self._on_lost: Callable[[Link, str], None] | None = None

    @classmethod
    async def open(
        cls,
        work: ClientConnection,
        names: Names,
        *,
        claiming: Callable[[Collection[int], Collection[int]], Claiming],
        look_at: Collection[int],
        on_body: OnBody,
        on_returned: OnReturned,
    ) -> Link:
        """Claim an index over `work`, and open the connection that publishes. `claiming` is made from (looked, free).

        Raises ClientError, IndexTaken.
        """
        talk = await connect(work.settings, name=work.name)
        try:
            # Before anything is published: a broker that is short of memory answers nothing after it.
            posting = await talk.open_channel()
            dead = await Publisher.open(talk)
            republished = await talk.open_channel()
            await republished.confirm_select()
            free = await _free_among(talk, posting, names, look_at)
            posting.on_return = partial(_on_return, on_returned)
            looked = look_at if free is not None else ()
            index, mailbox = await _claim(work, names, claiming(looked, free or ()), on_body)
        except BaseException:
            talk.abort()
            raise
        link = cls(work, talk, names, index, posting=posting, dead=dead, republished=republished)
        for channel in (mailbox, posting, dead.channel, republished):
            link._watch(channel)
        return link

    async def new_publisher(self) -> Publisher:
        """One more like `dead`. Raises ClientError."""
        publisher = await Publisher.open(self.talk)
        self._watch(publisher.channel)
        return publisher

    async def new_republished(self) -> Channel:
        """One more like `republished`. Raises ClientError."""
        channel = await self.talk.open_channel()
        self._watch(channel)
        await channel.confirm_select()
        return channel

    @property
    def is_blocked(self) -> bool:
        """The broker takes nothing that is published, for now."""
        return self.talk.is_blocked

    def when_lost(self, callback: Callable[[Link, str], None]) -> None:
        """Call it, perhaps more than once, when this link is of no use any more."""
        self._on_lost = callback
        for connection in (self.work, self.talk):
            connection.closed.add_done_callback(self._ended)

    def _watch(self, channel: Channel) -> None:
        """Without it the member would be deaf or mute: if it goes, and not because we closed it, all goes."""
        channel.closed.add_done_callback(self._ended)

    def _ended(self, closed: asyncio.Future[ClientError | None]) -> None:
        error = closed.result()
        if error is not None and self._on_lost is not None:
            self._on_lost(self, str(error))

    def post(self, post: Post) -> None:
        """A hint: it is dropped where it would only pile up."""
        if self.is_blocked:
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
        loop = asyncio.get_running_loop()
        warning = loop.call_later(ATTACH_WITHIN_S, log.warning, NO_ANSWER, attachment.queue, ATTACH_WITHIN_S)
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
            warning.cancel()
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

    def look(self, queue: int, on_looked: OnLooked) -> None:
        """Count the messages that wait in a queue, and tell it; None if that fails."""
        task = asyncio.get_running_loop().create_task(self._look(queue, on_looked))
        self._looks.add(task)
        task.add_done_callback(self._looks.discard)

    async def _look(self, queue: int, on_looked: OnLooked) -> None:
        on_looked(queue, await self.count(queue))

    async def count(self, queue: int) -> int | None:
        """The messages that wait in a queue, as the broker says; None if it cannot be asked."""
        with suppress(ClientError):
            async with self._look_turn:
                if self._looking is None or not self._looking.is_open:
                    self._looking = await self.work.open_channel()
                answer = await self._looking.queue_declare(self._names.queue(queue), passive=True)
            return answer.message_count
        return None

    async def close(self) -> None:
        await self.work.close()
        if self.is_blocked:  # nobody reads a goodbye
            self.talk.abort()
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
        elif (timeout_s := consumer_timeout_in(error)) is not None:
            events.on_timed_out(attachment, timeout_s)
        elif error is not None:
            log.warning("queue %d: %s", attachment.queue, error)
        events.on_closed(attachment)


def consumer_timeout_in(error: ClientError | None) -> float | None:
    """The broker's consumer timeout in seconds, if that is what closed a channel (RabbitMQ says it in words)."""
    if not isinstance(error, PreconditionFailed):
        return None
    found = re.search(
        r"delivery acknowledgement.* timed out\. Timeout value used: (\d+) ms", error.reply_text
    )
    return int(found[1]) / 1000 if found is not None else None


async def _free_among(
    talk: ClientConnection, posting: Channel, names: Names, indexes: Collection[int]
) -> set[int] | None:
    """Those whose mailbox is missing: a mandatory message to it comes back, before the answer to the next request.
    None when the broker takes no messages now.

    Declaring is what claims; this only saves the refusals, which the broker would log as errors.
    """
    free: set[int] = set()
    if not indexes:
        return free
    loop = asyncio.get_running_loop()
    blocked: asyncio.Future[None] = loop.create_future()
    talk.on_blocked = lambda _: None if blocked.done() else blocked.set_result(None)
    posting.on_return = lambda returned: free.add(int(returned.routing_key))
    for index in indexes:
        posting.publish(names.members, str(index), LOOK, mandatory=True)
    answer = loop.create_task(posting.basic_qos(0))
    try:
        await asyncio.wait({answer, blocked}, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return None
        answer.result()
    finally:
        talk.on_blocked = None
        blocked.cancel()
        answer.cancel()
    return free


async def _claim(
    work: ClientConnection, names: Names, claiming: Claiming, on_body: OnBody
) -> tuple[int, Channel]:
    while (index := claiming.candidate()) is not None:
        mailbox, bindings = mailbox_of(names, index)
        channel = await work.open_channel()
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
        await channel.consume(mailbox.name, on_deliveries, no_ack=True, on_cancelled=work.abort)
        return index, channel
    raise IndexTaken(claiming.fixed or 0)


def _on_return(on_returned: OnReturned, returned: Returned) -> None:
    on_returned(bytes(returned.body), int(returned.routing_key))
