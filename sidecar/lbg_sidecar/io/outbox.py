"""Messages that a member publishes: dead letters, and processed messages for the validator."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from lbg_broker.client import (
    BasicProperties,
    Channel,
    ClientError,
    ConfirmingPublisher,
    Delivery,
    Nacked,
    Returned,
    Unroutable,
)
from lbg_broker.group import (
    HEADER_ATTEMPTS,
    HEADER_DELIVERED_AT,
    HEADER_FINISHED_AT,
    HEADER_HASH,
    HEADER_INCARNATION,
    HEADER_KEY,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_PUBLISHER,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_REDELIVERED,
    HEADER_RELEASED,
    HEADER_SEQ,
    HEADER_SESSION,
    HEADER_SESSION_SEQ,
    HEADER_STARTED_AT,
    HEADER_TS,
    Names,
)
from lbg_sidecar.core.delivery import InFlight
from lbg_sidecar.core.dispatcher import NextCall
from lbg_sidecar.core.protocol import Identity
from lbg_sidecar.core.retransmit import LOOKS_PER_PATIENCE, Retransmitter, RetransmitTimeouts

log = logging.getLogger("lbg.member")

WallClock = Callable[[float], int]  # the loop's time -> microseconds since the epoch


def application_time(held: InFlight, me: Identity, wall_us: WallClock) -> dict[str, str | int]:
    """Headers that say who had a message, and when its application did."""
    headers: dict[str, str | int] = {HEADER_INCARNATION: me.incarnation}
    if held.first_started_at is not None and held.finished_at is not None:
        headers[HEADER_STARTED_AT] = wall_us(held.first_started_at)
        headers[HEADER_FINISHED_AT] = wall_us(held.finished_at)
    return headers


class RepublishedChannels(Protocol):
    republished: Channel

    async def new_republished(self) -> Channel: ...

    @property
    def is_blocked(self) -> bool: ...


class ValidatorPublisher:
    """Sends what `Retransmitter` says, over the channel there is or a new one."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: RepublishedChannels,
        *,
        on_republished: Callable[[InFlight], None],
        wall_us: WallClock,
        patience: RetransmitTimeouts,
    ) -> None:
        self._names = names
        self._me = me
        self._link = link
        self._on_republished = on_republished
        self._wall_us = wall_us
        self._look_every_s = patience.answer_s / LOOKS_PER_PATIENCE
        self._loop = asyncio.get_running_loop()
        self._validator_publisher = Retransmitter(patience=patience)
        self._returned: set[int] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._warned = False
        self._use(link.republished)

    def republish(self, held: InFlight) -> None:
        self._validator_publisher.offer(held)
        self._send()

    def released(self, held: InFlight) -> None:
        """Says when the application had a message that is delivered again. The broker's answer is not waited for: it is
        no delivery, and counts for what overlapped only."""
        properties = self._stamped(held)
        properties.headers = {**(properties.headers or {}), HEADER_RELEASED: True}
        with suppress(ClientError):
            self._channel.publish(
                self._names.validate, held.delivery.routing_key, b"", properties=properties, mandatory=False
            )
            self._sent += 1

    def close(self) -> None:
        """The connection is gone, or about to be."""
        self._validator_publisher.lost()
        for pending in (self._retry, self._look, self._renewal):
            if pending is not None:
                pending.cancel()

    def _send(self) -> None:
        now = self._loop.time()
        if self._link.is_blocked:
            self._validator_publisher.blocked(now)
        if self._renewal is not None:
            return
        why = self._validator_publisher.doubt(now)
        if why is not None:
            self._renewal = self._loop.create_task(self._renew(why))
            return
        while (held := self._validator_publisher.next_to_send(now)) is not None:
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
            self._validator_publisher.sent(tag, held, now)
        due = self._validator_publisher.next_due
        if due is not None and due > now and self._retry is None:
            self._retry = self._loop.call_at(due, self._on_retry)
        if self._validator_publisher.awaits_answers and self._look is None:
            self._look = self._loop.call_at(now + self._look_every_s, self._on_look)

    def _on_retry(self) -> None:
        self._retry = None
        self._send()

    def _on_look(self) -> None:
        self._look = None
        self._send()

    async def _renew(self, why: str) -> None:
        log.warning("what is republished to %s %s: going on over a new channel", self._names.validate, why)
        old = self._channel
        try:
            channel = await self._link.new_republished()
        except ClientError:
            return  # its connection is gone, so what was not confirmed comes again
        # Closed before anything is sent again: what it had on the way cannot come in between any more.
        await old.close()
        self._use(channel)
        self._validator_publisher.renewed(self._loop.time())
        self._renewal = None
        self._send()

    def _use(self, channel: Channel) -> None:
        self._channel = channel
        self._sent = 0
        self._returned.clear()
        channel.on_confirm = self._on_confirm
        channel.on_return = self._on_return

    def _stamped(self, held: InFlight) -> BasicProperties:
        headers = held.delivery.headers
        known = (HEADER_KEY, HEADER_PUBLISHER, HEADER_SEQ, HEADER_TS)
        return BasicProperties(
            headers={
                **{name: headers[name] for name in known if name in headers},
                HEADER_HASH: held.identity[1] if held.identity else 0,
                HEADER_QUEUE: held.queue,
                HEADER_MEMBER: self._me.index,
                HEADER_MEMBER_NAME: self._me.name,
                HEADER_REDELIVERED: held.delivery.redelivered,
                HEADER_DELIVERED_AT: self._wall_us(held.started_at),
                **application_time(held, self._me, self._wall_us),
                **_session_of(held),
            },
            delivery_mode=2,
            correlation_id=str(self._sent),  # a returned message carries no tag of its own
        )

    def _on_return(self, returned: Returned) -> None:
        self._returned.add(int(returned.properties.correlation_id or 0))

    def _on_confirm(self, tag: int, multiple: bool, ok: bool) -> None:
        now = self._loop.time()
        for each in self._validator_publisher.up_to(tag) if multiple else [tag]:
            returned = each in self._returned
            self._returned.discard(each)
            held = self._validator_publisher.resolved(each, now, ok=ok, returned=returned)
            if held is not None:
                self._warned = False
                self._on_republished(held)
            elif (returned or not ok) and not self._warned:
                self._warned = True
                log.warning(
                    "nothing takes what is republished to %s: is `lbg validate` running, is its queue full? "
                    "Messages wait for it",
                    self._names.validate,
                )
        self._send()


def _session_of(held: InFlight) -> dict[str, str | int]:
    session = held.attachment.session
    if session is None or held.sequence is None:
        return {}
    return {HEADER_SESSION: session, HEADER_SESSION_SEQ: held.sequence}


REASON_MAX_CHARS = 2000  # of a traceback, the first lines say most; a header must fit into a frame


class DeadLetterChannels(Protocol):
    dead: ConfirmingPublisher

    async def new_publisher(self) -> ConfirmingPublisher: ...

    @property
    def is_blocked(self) -> bool: ...


class DeadLetterPublisher:
    """A new publisher replaces one that is refused or not answered: the dead letters have no limit, so it is the
    channel's fault (see `RetransmitTimeouts`)."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: DeadLetterChannels,
        *,
        on_buried: Callable[[InFlight], None],
        wall_us: WallClock,
        patience: RetransmitTimeouts,
    ) -> None:
        self._names = names
        self._me = me
        self._link = link
        self._publisher = link.dead
        self._renewal = asyncio.Lock()
        self._on_buried = on_buried
        self._wall_us = wall_us
        self._patience = patience
        self._tasks: set[asyncio.Task[None]] = set()

    def bury(self, held: InFlight) -> None:
        task = asyncio.get_running_loop().create_task(self._bury(held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """The connection is gone, or about to be."""
        for task in self._tasks:
            task.cancel()

    async def _bury(self, held: InFlight) -> None:
        delivery: Delivery = held.delivery
        properties = delivery.properties
        properties.headers = {
            **(properties.headers or {}),
            HEADER_REASON: held.reason[:REASON_MAX_CHARS],
            HEADER_ATTEMPTS: held.attempts,
            HEADER_QUEUE: held.queue,
            HEADER_MEMBER: self._me.index,
            HEADER_MEMBER_NAME: self._me.name,
            **application_time(held, self._me, self._wall_us),
        }
        if (session := held.attachment.session) is not None:
            properties.headers[HEADER_SESSION] = session
        while not held.is_over:
            publisher = self._publisher
            try:
                await self._answered(
                    publisher.publish(
                        self._names.dlx,
                        delivery.routing_key,
                        bytes(delivery.body),
                        properties=properties,
                        mandatory=True,
                    )
                )
            except TimeoutError:
                log.warning(
                    "queue %d: a dead letter has no answer after %g s; trying over a new channel",
                    held.queue,
                    self._patience.answer_s,
                )
                await self._renew(publisher)
            except (Nacked, Unroutable) as error:
                log.error("queue %d: the dead letters do not take a message: %s", held.queue, error)
                await asyncio.sleep(self._patience.refused_s)
                if isinstance(error, Nacked):
                    await self._renew(publisher)
            except ClientError:
                if publisher is self._publisher:
                    return  # its connection is gone, so the message comes again
            else:
                self._on_buried(held)
                return

    async def _answered(self, publishing: Coroutine[Any, Any, None]) -> None:
        """Raises TimeoutError when there is no answer although the broker takes messages.

        What was sent before an alarm is read after it: sent again over a new channel, it would be there twice.
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(publishing)
        try:
            waits_since = loop.time()
            while not task.done():
                await asyncio.wait({task}, timeout=self._patience.answer_s / LOOKS_PER_PATIENCE)
                if self._link.is_blocked:
                    waits_since = loop.time()
                elif loop.time() - waits_since >= self._patience.answer_s and not task.done():
                    raise TimeoutError
            task.result()
        finally:
            task.cancel()

    async def _renew(self, refused: ConfirmingPublisher) -> None:
        async with self._renewal:
            if refused is self._publisher:
                with suppress(ClientError):
                    self._publisher = await self._link.new_publisher()
                    await refused.channel.close()


OnConfirmed = Callable[[InFlight, NextCall], None]


class OutboxPublisher(DeadLetterChannels, RepublishedChannels, Protocol):
    """The link, as far as it publishes what the member got."""


class Outbox:
    """Publishing over one connection, as long as it lives."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: OutboxPublisher,
        *,
        on_confirmed: OnConfirmed,
        wall_us: WallClock,
        patience: RetransmitTimeouts | None = None,
    ) -> None:
        patience = patience or RetransmitTimeouts()
        self._dead_letters_publisher = DeadLetterPublisher(
            names,
            me,
            link,
            on_buried=lambda held: on_confirmed(held, NextCall.DEAD_LETTER),
            wall_us=wall_us,
            patience=patience,
        )
        self._to_validator = ValidatorPublisher(
            names,
            me,
            link,
            on_republished=lambda held: on_confirmed(held, NextCall.REPUBLISH),
            wall_us=wall_us,
            patience=patience,
        )

    def dead_letter(self, held: InFlight) -> None:
        self._dead_letters_publisher.bury(held)

    def republish(self, held: InFlight) -> None:
        self._to_validator.republish(held)

    def released(self, held: InFlight) -> None:
        self._to_validator.released(held)

    def close(self) -> None:
        """The connection is gone, or about to be."""
        self._dead_letters_publisher.close()
        self._to_validator.close()
