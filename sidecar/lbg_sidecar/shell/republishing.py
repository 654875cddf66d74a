"""Publishing for the validator what the application has processed, before it is acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from lbg_broker.client import BasicProperties, Channel, ClientError, Returned
from lbg_broker.group import (
    HEADER_DELIVERED_AT,
    HEADER_FINISHED_AT,
    HEADER_HASH,
    HEADER_INCARNATION,
    HEADER_KEY,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_PUBLISHER,
    HEADER_QUEUE,
    HEADER_REDELIVERED,
    HEADER_RELEASED,
    HEADER_SEQ,
    HEADER_SESSION,
    HEADER_SESSION_SEQ,
    HEADER_STARTED_AT,
    HEADER_TS,
    Names,
)

from ..consuming.held import Held
from ..membership.messages import Identity
from ..patience import LOOKS_PER_PATIENCE, Patience
from ..republishing import Republishing

log = logging.getLogger("lbg.member")

WallClock = Callable[[float], int]  # the loop's time -> microseconds since the epoch


def application_time(held: Held, me: Identity, wall_us: WallClock) -> dict[str, str | int]:
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


class ToValidator:
    """Sends what `Republishing` says, over the channel there is or a new one."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: RepublishedChannels,
        *,
        on_republished: Callable[[Held], None],
        wall_us: WallClock,
        patience: Patience,
    ) -> None:
        self._names = names
        self._me = me
        self._link = link
        self._on_republished = on_republished
        self._wall_us = wall_us
        self._look_every_s = patience.answer_s / LOOKS_PER_PATIENCE
        self._loop = asyncio.get_running_loop()
        self._republishing = Republishing(patience=patience)
        self._returned: set[int] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._warned = False
        self._use(link.republished)

    def republish(self, held: Held) -> None:
        self._republishing.offer(held)
        self._send()

    def released(self, held: Held) -> None:
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
        self._republishing.lost()
        for pending in (self._retry, self._look, self._renewal):
            if pending is not None:
                pending.cancel()

    def _send(self) -> None:
        now = self._loop.time()
        if self._link.is_blocked:
            self._republishing.blocked(now)
        if self._renewal is not None:
            return
        why = self._republishing.doubt(now)
        if why is not None:
            self._renewal = self._loop.create_task(self._renew(why))
            return
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
            self._republishing.sent(tag, held, now)
        due = self._republishing.next_due
        if due is not None and due > now and self._retry is None:
            self._retry = self._loop.call_at(due, self._on_retry)
        if self._republishing.awaits_answers and self._look is None:
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
        self._republishing.renewed(self._loop.time())
        self._renewal = None
        self._send()

    def _use(self, channel: Channel) -> None:
        self._channel = channel
        self._sent = 0
        self._returned.clear()
        channel.on_confirm = self._on_confirm
        channel.on_return = self._on_return

    def _stamped(self, held: Held) -> BasicProperties:
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
        for each in self._republishing.up_to(tag) if multiple else [tag]:
            returned = each in self._returned
            self._returned.discard(each)
            held = self._republishing.resolved(each, now, ok=ok, returned=returned)
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


def _session_of(held: Held) -> dict[str, str | int]:
    session = held.attachment.session
    if session is None or held.sequence is None:
        return {}
    return {HEADER_SESSION: session, HEADER_SESSION_SEQ: held.sequence}
