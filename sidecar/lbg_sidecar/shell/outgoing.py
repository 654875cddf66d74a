"""What a member publishes of what it received: dead letters, and messages for the validator. Both are confirmed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from lbg_broker.client import (
    BasicProperties,
    Channel,
    ClientError,
    Delivery,
    Nacked,
    Publisher,
    Returned,
    Unroutable,
)
from lbg_broker.group import (
    HEADER_DELIVERED_AT,
    HEADER_HASH,
    HEADER_KEY,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_PUBLISHER,
    HEADER_QUEUE,
    HEADER_REDELIVERED,
    HEADER_SEQ,
    HEADER_TS,
    Names,
)

from ..consuming.consumption import Next
from ..consuming.held import Held
from ..membership.messages import Identity
from ..republishing import Republishing

log = logging.getLogger("lbg.member")

HEADER_REASON = "lbg-reason"
HEADER_ATTEMPTS = "lbg-attempts"
REASON_MAX_CHARS = 2000  # of a traceback, the first lines say most; a header must fit into a frame

TRY_AGAIN_S = 1.0

ANSWER_S = 20.0
"""A quorum queue that has its majority back answers within 15 s what it was sent without one, or never."""

OnConfirmed = Callable[[Held, Next], None]
WallClock = Callable[[float], int]  # the loop's time -> microseconds since the epoch


class Outgoing:
    """Publishing over one connection, as long as it lives. `dead` and `republished` confirm.

    `new_publisher` replaces `dead` when it is refused: the dead letters have no limit, and RabbitMQ 3.10 refuses
    everything on a channel that first published to a quorum queue while its leader was down.
    """

    def __init__(
        self,
        names: Names,
        me: Identity,
        *,
        dead: Publisher,
        new_publisher: Callable[[], Awaitable[Publisher]],
        republished: Channel,
        on_confirmed: OnConfirmed,
        wall_us: WallClock,
    ) -> None:
        self._names = names
        self._me = me
        self._dead = dead
        self._new_publisher = new_publisher
        self._renewal = asyncio.Lock()
        self._channel = republished
        self._on_confirmed = on_confirmed
        self._wall_us = wall_us
        self._loop = asyncio.get_running_loop()
        self._republishing = Republishing()
        self._returned: set[int] = set()
        self._sent = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._warned = False
        republished.on_confirm = self._on_confirm
        republished.on_return = self._on_return

    def dead_letter(self, held: Held) -> None:
        task = self._loop.create_task(self._bury(held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def republish(self, held: Held) -> None:
        self._republishing.offer(held)
        self._send()

    def close(self) -> None:
        """The connection is gone, or about to be."""
        self._republishing.lost()
        if self._retry is not None:
            self._retry.cancel()
        for task in self._tasks:
            task.cancel()

    # Dead letters

    async def _bury(self, held: Held) -> None:
        delivery: Delivery = held.delivery
        properties = delivery.properties
        properties.headers = {
            **(properties.headers or {}),
            HEADER_REASON: held.reason[:REASON_MAX_CHARS],
            HEADER_ATTEMPTS: held.attempts,
            HEADER_QUEUE: held.attachment.queue,
            HEADER_MEMBER: self._me.index,
            HEADER_MEMBER_NAME: self._me.name,
        }
        while not held.attachment.closed:
            publisher = self._dead
            try:
                async with asyncio.timeout(ANSWER_S):
                    await publisher.publish(
                        self._names.dlx,
                        delivery.routing_key,
                        bytes(delivery.body),
                        properties=properties,
                        mandatory=True,
                    )
            except TimeoutError:
                log.warning(
                    "queue %d: a dead letter has no answer after %g s; trying over a new channel",
                    held.attachment.queue,
                    ANSWER_S,
                )
                await self._renew(publisher)
            except (Nacked, Unroutable) as error:
                log.error(
                    "queue %d: the dead letters do not take a message: %s", held.attachment.queue, error
                )
                await asyncio.sleep(TRY_AGAIN_S)
                if isinstance(error, Nacked):
                    await self._renew(publisher)
            except ClientError:
                if publisher is self._dead:
                    return  # its connection is gone, so the message comes again
            else:
                self._on_confirmed(held, Next.DEAD_LETTER)
                return

    async def _renew(self, refused: Publisher) -> None:
        async with self._renewal:
            if refused is self._dead:
                with suppress(ClientError):
                    self._dead = await self._new_publisher()
                    await refused.channel.close()

    # Republishing

    def _send(self) -> None:
        now = self._loop.time()
        while (held := self._republishing.next_to_send(now)) is not None:
            self._sent += 1
            try:
                tag = self._channel.publish(
                    self._names.validate,
                    held.delivery.routing_key,
                    bytes(held.delivery.body),
                    properties=self._stamped(held),
                    mandatory=True,
                )
            except ClientError:
                return
            assert tag == self._sent
            self._republishing.sent(tag, held)
        due = self._republishing.next_due
        if due is not None and due > now and self._retry is None:
            self._retry = self._loop.call_at(due, self._on_retry)

    def _on_retry(self) -> None:
        self._retry = None
        self._send()

    def _stamped(self, held: Held) -> BasicProperties:
        headers = held.delivery.headers
        known = (HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ, HEADER_TS)
        return BasicProperties(
            headers={
                **{name: headers[name] for name in known if name in headers},
                HEADER_HASH: held.identity[1] if held.identity else 0,
                HEADER_QUEUE: held.attachment.queue,
                HEADER_MEMBER: self._me.index,
                HEADER_MEMBER_NAME: self._me.name,
                HEADER_REDELIVERED: held.delivery.redelivered,
                HEADER_DELIVERED_AT: self._wall_us(held.started_at),
            },
            delivery_mode=2,
            correlation_id=str(self._sent),  # a returned message carries no tag of its own
        )

    def _on_return(self, returned: Returned) -> None:
        self._returned.add(int(returned.properties.correlation_id or 0))

    def _on_confirm(self, tag: int, multiple: bool, ok: bool) -> None:
        now = self._loop.time()
        for each in self._republishing.up_to(tag) if multiple else [tag]:
            taken = ok and each not in self._returned
            self._returned.discard(each)
            held = self._republishing.resolved(each, now, ok=taken)
            if held is not None:
                self._warned = False
                self._on_confirmed(held, Next.REPUBLISH)
            elif not taken and not self._warned:
                self._warned = True
                log.warning(
                    "nothing takes what is republished to %s: is `lbg validate` running, is its queue full? "
                    "Messages wait for it",
                    self._names.validate,
                )
        self._send()
