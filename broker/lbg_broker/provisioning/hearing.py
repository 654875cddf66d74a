"""What the members of many groups say of themselves, heard on one queue of our own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from lbg_broker.client import Channel, ClientConnection, Delivery
from lbg_broker.group import TO_ALL, Names

from .admin import Beat
from .amqp_side import AmqpSide
from .errors import AdminError, Refused

Hear = Callable[[str, Beat], None]
"""Gets each beat, with the group that it came from."""

KEPT_S = 120.0
"""Whom nobody asked about for so long is no longer listened to. Autoscalers ask every 15 s by default."""

BIND_AGAIN_S = 10.0
"""Between two attempts to hear a group that nothing is heard of: it may have been deleted and made anew, and a binding
does not outlive its exchange."""

FRESH_S = 2.0
"""Members send a beat every second, 1.2 s apart at most; what one said longer ago may not be so any more."""


async def listen_to(
    amqp: AmqpSide, groups: Sequence[str], *, seconds: float
) -> dict[str, list[Beat] | Refused]:
    """The beats of each group within `seconds`, or why nobody could listen to it."""
    heard: dict[str, list[Beat]] = {group: [] for group in groups}
    queue = await amqp.own_queue()
    try:
        async with amqp.link.channel(within_s=None) as channel:
            # A member at rest says the same every second.
            hear = _hearing(lambda group, beat: heard[group].append(beat), functools.cache(json.loads))
            tag = await channel.consume(queue, hear, no_ack=True)
            exchanges = {Names(group).members: group for group in groups}
            refused = await amqp.bind_own(queue, list(exchanges), key=TO_ALL)
            await asyncio.sleep(seconds)
            await channel.cancel(tag)
    finally:
        # If it cannot be deleted, its connection is lost, and the queue with it.
        with contextlib.suppress(AdminError):
            await amqp.delete_own(queue)
    return {**heard, **{exchanges[name]: error for name, error in refused.items()}}


class Ear:
    """Listens on and on to the groups that are asked about, and keeps the last beat of each of their members."""

    def __init__(self, amqp: AmqpSide) -> None:
        self._amqp = amqp
        self._connection: ClientConnection | None = None
        self._channel: Channel | None = None
        self._queue = ""
        self._asked_at: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._bound_at: dict[str, float] = {}
        self._beats: dict[str, dict[object, tuple[float, Beat]]] = {}
        self._turn = asyncio.Lock()

    async def attend(self, group: str) -> float:
        """Since when `group` is listened to, from now on at the latest. Raises AdminError."""
        async with self._turn:
            now = asyncio.get_running_loop().time()
            await self._open()
            self._asked_at[group] = now
            if group not in self._since:
                await self._bind(group)
                self._since[group] = asyncio.get_running_loop().time()
            elif not self.heard(group) and self._bound_at[group] < now - BIND_AGAIN_S:
                await self._bind(group)
            await self._leave([one for one in self._since if self._asked_at[one] < now - KEPT_S])
            return self._since[group]

    def heard(self, group: str) -> list[Beat]:
        """What each member of `group` said last, unless that was too long ago."""
        now = asyncio.get_running_loop().time()
        return [beat for at, beat in self._beats.get(group, {}).values() if at > now - FRESH_S]

    async def _open(self) -> None:
        connection = await self._amqp.link.connection()
        if connection is self._connection and self._channel is not None and self._channel.is_open:
            return
        self._since.clear()
        self._beats.clear()
        self._queue = await self._amqp.own_queue()
        with self._amqp.link.told_plainly():
            channel = await connection.open_channel()
            await channel.consume(
                self._queue, _hearing(self._hear), no_ack=True, on_cancelled=channel.close_soon
            )
        self._connection, self._channel = connection, channel

    async def _bind(self, group: str) -> None:
        exchange = Names(group).members
        if refused := await self._amqp.bind_own(self._queue, [exchange], key=TO_ALL):
            self._forget(group)
            raise refused[exchange]
        self._bound_at[group] = asyncio.get_running_loop().time()

    async def _leave(self, groups: Sequence[str]) -> None:
        if groups:
            await self._amqp.unbind_own(self._queue, [Names(group).members for group in groups], key=TO_ALL)
        for group in groups:
            self._forget(group)

    def _forget(self, group: str) -> None:
        for known in (self._asked_at, self._since, self._bound_at, self._beats):
            known.pop(group, None)

    def _hear(self, group: str, beat: Beat) -> None:
        if group in self._asked_at:
            now = asyncio.get_running_loop().time()
            self._beats.setdefault(group, {})[beat.get("index")] = now, beat


def _hearing(hear: Hear, parse: Callable[[bytes], Any] = json.loads) -> Callable[[list[Delivery]], None]:
    def take(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            with contextlib.suppress(ValueError):
                message = parse(bytes(delivery.body))
                if isinstance(message, dict) and message.get("type") == "beat":
                    hear(delivery.exchange.split(".")[1], message)

    return take
