"""Connections of a member: its claimed index, its mailbox, and a channel for each queue.

Two, because a broker that runs out of memory or disk stops reading from connections that publish (RabbitMQ:
connection.blocked): acknowledgements, closes and claims must still get through. All that is published goes over one,
everything else over the other: the mailbox, deliveries and acks. Losing either is losing both.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from lbg_core.client import (
    Channel,
    ClientConnection,
    ClientError,
    ConfirmingPublisher,
    ConnectionSettings,
    Delivery,
    ResourceLocked,
    Returned,
    connect,
)
from lbg_core.group import INDEX_MAX, Names, mailbox_of
from lbg_core.group.errors import MessageError, NewerMessage
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import IndexOffer, IndexRequest
from lbg_core.group.message_codec import LOOK, decode, encode
from lbg_sidecar.core.effects import Post
from lbg_sidecar.core.index_claim import IndexClaim
from lbg_sidecar.core.presence import CONNECTIONS_S
from lbg_sidecar.errors import IndexTaken
from lbg_sidecar.io.consumers import QueueConsumers
from lbg_sidecar.io.last_wills import LastWills
from lbg_sidecar.io.log_events import StateLogger
from lbg_sidecar.io.posts import OnReturned, Posts

OnMail = Callable[[Delivery], None]
"""For what comes to the mailbox."""

ASK_AGAIN_S = 0.25
"""For the first answer. It doubles with each request."""

BIND_S = 0.02
OFFER_S = 2.0
"""For an offer of an index by one member. Without one another is asked, and then the lowest ones are tried."""

PROBE_S = 2.0
"""Time limit for finding the free indexes: that only saves refusals."""


class Connect(Protocol):
    """Opens a connection. It raises SettingsError or a ConnectError."""

    async def __call__(self, where: ConnectionSettings, *, name: str) -> ClientConnection: ...


@dataclass(frozen=True, slots=True)
class Host:
    """Parts that a member has of the machine that it runs on, beside its event loop: a simulation gives its own.

    `chance` is the system's by default: a process that is forked has other numbers than its parent. `wall_s`: seconds
    since the epoch.
    """

    connect: Connect = connect
    chance: random.Random = field(default_factory=random.SystemRandom)
    wall_s: Callable[[], float] = time.time


async def free_indexes(
    publish_connection: ClientConnection, posting: Channel, names: Names, indexes: Collection[int]
) -> set[int] | None:
    """The indexes whose mailbox is missing: a mandatory message to it is returned, before the answer to the next
    request. None if the broker accepts no publishes now.

    A declaration claims the index; this only avoids refusals, which the broker would log as errors.
    """
    free: set[int] = set()
    if not indexes:
        return free
    loop = asyncio.get_running_loop()
    blocked: asyncio.Future[None] = loop.create_future()
    publish_connection.on_blocked = lambda _: None if blocked.done() else blocked.set_result(None)
    posting.on_return = lambda returned: free.add(int(returned.routing_key))
    for index in indexes:
        posting.publish(names.members, str(index), LOOK, mandatory=True)
    answer = loop.create_task(posting.basic_qos(0))
    try:
        await asyncio.wait({answer, blocked}, timeout=PROBE_S, return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            return None
        answer.result()
    finally:
        publish_connection.on_blocked = None
        blocked.cancel()
        answer.cancel()
    return free


class OfferMailbox:
    """Gets a free index from a member, over a temporary queue that is called as a mailbox of an index that no member
    has. A hint, as everything that members send: a declaration claims the index."""

    def __init__(
        self, consume_connection: ClientConnection, posting: Channel, names: Names, chance: random.Random
    ) -> None:
        self._connection = consume_connection
        self._posting = posting
        self._names = names
        self._chance = chance
        self._number = INDEX_MAX + 1 + chance.randrange(1 << 40)
        self._channel: Channel | None = None
        self._asked = 0
        self._answer: asyncio.Future[int | None] | None = None

    async def ask(self, claiming: IndexClaim) -> None:
        """Requests an index of index 0, and of one other member if that does not answer. Raises ClientError, and
        NewerMessage."""
        if self._channel is None:
            self._channel = await self._open()
        self._posting.on_return = self._on_return
        others = [index for index in claiming.in_use if index]
        for asked in (0, self._chance.choice(others)) if others else (0,):
            if await self._ask_member(asked, claiming):
                return
        claiming.offered(None)

    async def _ask_member(self, asked: int, claiming: IndexClaim) -> bool:
        """Requests an index of a member until there is an answer, for `OFFER_S` at most; False without one."""
        self._asked = asked
        loop = asyncio.get_running_loop()
        request = encode(IndexRequest(Identity(0, "", ""), self._number, claiming.in_use))
        until, again_s = loop.time() + OFFER_S, ASK_AGAIN_S
        while loop.time() < until:
            self._answer = loop.create_future()
            self._posting.publish(self._names.members, str(asked), request, mandatory=True)
            try:
                async with asyncio.timeout_at(min(until, loop.time() + again_s)):
                    index = await self._answer
            except TimeoutError:
                again_s *= 2
                continue
            if index is not None:
                claiming.offered(index)
                return True
            if asked not in claiming.in_use:
                claiming.vacant()
                return True
            await asyncio.sleep(BIND_S)  # it is declared, and will be bound
        return False

    async def close(self) -> None:
        if self._channel is not None:
            with suppress(ClientError):
                await self._channel.queue_delete(self._names.mailbox(self._number))
                await self._channel.close()

    async def _open(self) -> Channel:
        channel = await self._connection.open_channel()
        queue = self._names.mailbox(self._number)
        await channel.queue_declare(queue, exclusive=True)
        await channel.queue_bind(queue, self._names.members, str(self._number))
        await channel.consume(queue, self._on_deliveries, no_ack=True)
        return channel

    def _on_deliveries(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            try:
                message = decode(delivery.body)
            except NewerMessage as error:
                if self._answer is not None and not self._answer.done():
                    self._answer.set_exception(error)
            except MessageError:
                pass
            else:
                if isinstance(message, IndexOffer):
                    self._resolve(message.offered)

    def _on_return(self, returned: Returned) -> None:
        if returned.routing_key == str(self._asked):
            self._resolve(None)

    def _resolve(self, index: int | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(index)


async def claim(
    consume_connection: ClientConnection,
    names: Names,
    claiming: IndexClaim,
    on_mail: OnMail,
    offers: OfferMailbox,
) -> tuple[int, Channel]:
    while True:
        if claiming.needs_offer:
            await offers.ask(claiming)
        index = claiming.candidate()
        if index is None:
            raise IndexTaken(claiming.fixed or 0)
        mailbox, bindings = mailbox_of(names, index)
        channel = await consume_connection.open_channel()
        try:
            await channel.queue_declare(mailbox.name, exclusive=True, arguments=dict(mailbox.arguments))
        except ResourceLocked:
            claiming.refused(index)
            continue
        for binding in bindings:
            await channel.queue_bind(binding.queue, binding.exchange, binding.routing_key)

        def on_deliveries(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                on_mail(delivery)

        # Without a mailbox this member counts as gone for the others: so its connection ends.
        await channel.consume(mailbox.name, on_deliveries, no_ack=True, on_cancelled=consume_connection.abort)
        return index, channel


OnCounted = Callable[[int, int | None, int | None], None]
"""Queue, messages that wait in it, and consumers; None where the count failed."""


async def _confirming_channel(connection: ClientConnection) -> Channel:
    channel = await connection.open_channel()
    await channel.confirm_select()
    return channel


class MemberConnection:
    """`index` is the claimed one. Everything that happens comes through the callbacks, in the event loop.

    `consumers` has the queues' channels.
    """

    def __init__(
        self,
        consume_connection: ClientConnection,
        publish_connection: ClientConnection,
        names: Names,
        index: int,
        *,
        queue_name: Callable[[int], str],
        posts: Posts,
        last_wills: LastWills,
        states: StateLogger[int],
        uniform: Callable[[], float] = random.random,
    ) -> None:
        self.consume_connection = consume_connection
        self.publish_connection = publish_connection
        self.index = index
        self.last_wills = last_wills
        self._queue_name = queue_name
        self._posts = posts
        self._count_channel: Channel | None = None
        self._counts: set[asyncio.Task[None]] = set()
        self._count_lock = asyncio.Lock()
        self.consumers = QueueConsumers(
            consume_connection, queue_name, names.mailbox(index), self._ended, states
        )
        self._on_lost: Callable[[MemberConnection, ClientError], None] | None = None
        self._renewal = asyncio.get_running_loop().create_task(posts.renew_regularly(self, uniform))

    @classmethod
    async def open(
        cls,
        consume_connection: ClientConnection,
        names: Names,
        *,
        queue_name: Callable[[int], str],
        claim_of: Callable[[Collection[int], Collection[int]], IndexClaim],
        candidates: Collection[int],
        on_mail: OnMail,
        on_returned: OnReturned,
        on_will: Callable[[int], None],
        on_watched: Callable[[int | None], None],
        consumer_timeout_s: float,
        states: StateLogger[int],
        host: Host,
    ) -> MemberConnection:
        """Claims an index over `consume_connection`, and opens the connection that publishes.

        `queue_name` gives the name of a queue of the group by its number. `claim_of` is called with (probed, free).

        Raises ClientError, IndexTaken.
        """
        publish_connection = await host.connect(consume_connection.settings, name=consume_connection.name)
        try:
            # Before anything is published: a broker that is short of memory answers nothing after it.
            posting = await _confirming_channel(publish_connection)
            free = await free_indexes(publish_connection, posting, names, candidates)
            probed = candidates if free is not None else ()
            offers = OfferMailbox(consume_connection, posting, names, host.chance)
            index, mailbox = await claim(
                consume_connection, names, claim_of(probed, free or ()), on_mail, offers
            )
            await offers.close()
            posts = Posts(posting, names.members, on_returned)
            last_wills = LastWills(
                consume_connection,
                names,
                index,
                publish=lambda key: None if publish_connection.is_blocked else posts.leave_will(key),
                on_will=on_will,
                on_watched=on_watched,
                consumer_timeout_s=consumer_timeout_s,
                uniform=host.chance.random,
            )
        except BaseException:
            publish_connection.abort()
            raise
        link = cls(
            consume_connection,
            publish_connection,
            names,
            index,
            queue_name=queue_name,
            posts=posts,
            last_wills=last_wills,
            states=states,
            uniform=host.chance.random,
        )
        for channel in (mailbox, posting):
            link.watch(channel)
        return link

    async def new_posting(self) -> Channel:
        """A channel in confirm mode whose end is that of the link. Raises ClientError."""
        channel = await _confirming_channel(self.publish_connection)
        self.watch(channel)
        return channel

    async def new_publisher(self) -> ConfirmingPublisher:
        """A publisher over a channel whose end is that of the link. Raises ClientError."""
        publisher = await ConfirmingPublisher.open(self.publish_connection)
        self.watch(publisher.channel)
        return publisher

    @property
    def is_blocked(self) -> bool:
        """True while the broker accepts no publishes (connection.blocked)."""
        return self.publish_connection.is_blocked

    def when_lost(self, callback: Callable[[MemberConnection, ClientError], None]) -> None:
        """Call it, perhaps more than once, when this link is of no use any more."""
        self._on_lost = callback
        for connection in (self.consume_connection, self.publish_connection):
            connection.closed.add_done_callback(self._ended)

    def watch(self, channel: Channel) -> None:
        """Ends the link when the channel ends by itself: without it the member could not receive or send."""
        channel.closed.add_done_callback(self._ended)

    def _ended(self, closed: asyncio.Future[ClientError | None]) -> None:
        error = closed.result()
        if error is not None and self._on_lost is not None:
            self._on_lost(self, error)

    def post(self, post: Post) -> None:
        """A hint: it is dropped where it would only pile up."""
        if self.is_blocked:
            return
        with suppress(ClientError):
            self._posts.send(post)

    def count_ready(self, queue: int, on_counted: OnCounted) -> None:
        """Count the messages that wait in a queue and its consumers, and call `on_counted` with both."""
        task = asyncio.get_running_loop().create_task(self._count_ready(queue, on_counted))
        self._counts.add(task)
        task.add_done_callback(self._counts.discard)

    async def _count_ready(self, queue: int, on_counted: OnCounted) -> None:
        on_counted(queue, *await self.count(queue))

    async def count(self, queue: int) -> tuple[int, int] | tuple[None, None]:
        """Messages that wait in a queue at the broker, and its consumers; None if they cannot be read."""
        with suppress(ClientError):
            async with self._count_lock:
                if self._count_channel is None or not self._count_channel.is_open:
                    self._count_channel = await self.consume_connection.open_channel()
                channel = self._count_channel
            answer = await channel.queue_declare(self._queue_name(queue), passive=True)
            return answer.message_count, answer.consumer_count
        return None, None

    async def close(self) -> None:
        """Both connections, within `CONNECTIONS_S`."""
        self.last_wills.close()
        self._renewal.cancel()
        if self.is_blocked:  # a close would not be read
            self.publish_connection.abort()
        await asyncio.gather(
            *(
                each.close(timeout_s=CONNECTIONS_S)
                for each in (self.consume_connection, self.publish_connection)
            )
        )

    def abort(self) -> None:
        self.last_wills.close()
        self._renewal.cancel()
        self.consume_connection.abort()
        self.publish_connection.abort()
