"""Dead letters: published with a confirm, before the message is acknowledged."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Protocol

from lbg_broker.client import ClientError, Delivery, Nacked, Publisher, Unroutable
from lbg_broker.group import (
    HEADER_ATTEMPTS,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_SESSION,
    Names,
)

from ..consuming.held import Held
from ..membership.messages import Identity
from ..patience import LOOKS_PER_PATIENCE, Patience
from .republishing import WallClock, application_time

log = logging.getLogger("lbg.member")

REASON_MAX_CHARS = 2000  # of a traceback, the first lines say most; a header must fit into a frame


class DeadPublishers(Protocol):
    dead: Publisher

    async def new_publisher(self) -> Publisher: ...

    @property
    def is_blocked(self) -> bool: ...


class Burying:
    """A new publisher replaces one that is refused or not answered: the dead letters have no limit, so it is the
    channel's fault (see `Patience`)."""

    def __init__(
        self,
        names: Names,
        me: Identity,
        link: DeadPublishers,
        *,
        on_buried: Callable[[Held], None],
        wall_us: WallClock,
        patience: Patience,
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

    def bury(self, held: Held) -> None:
        task = asyncio.get_running_loop().create_task(self._bury(held))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """The connection is gone, or about to be."""
        for task in self._tasks:
            task.cancel()

    async def _bury(self, held: Held) -> None:
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

    async def _renew(self, refused: Publisher) -> None:
        async with self._renewal:
            if refused is self._publisher:
                with suppress(ClientError):
                    self._publisher = await self._link.new_publisher()
                    await refused.channel.close()
