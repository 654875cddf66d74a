"""Consumers of a member: a channel for each attached queue, from basic.consume to its close."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from lbg_broker.client import (
    Channel,
    ChannelClosed,
    ClientConnection,
    ClientError,
    Delivery,
    PreconditionFailed,
)
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.core.effects import Attach, Detach

log = logging.getLogger("lbg.member")

ATTACH_WITHIN_S = 5.0
NO_ANSWER = "queue %d: no answer to basic.consume in %g s (quorum queues are silent without a majority of their nodes)"


class QueueEvents(Protocol):
    """Callbacks for the events of an attachment."""

    def on_deliveries(self, attachment: Attachment, deliveries: list[Delivery]) -> None: ...
    def on_attached(self, attachment: Attachment) -> None: ...
    def on_refused(self, attachment: Attachment, code: int, why: str) -> bool: ...
    def on_cancelled(self, attachment: Attachment) -> bool: ...
    def on_revoked(self, attachment: Attachment, tags: Sequence[int], taken: bool) -> None: ...
    def on_timed_out(self, attachment: Attachment, timeout_s: float) -> None: ...
    def on_closed(self, attachment: Attachment) -> None: ...


class QueueConsumers:
    """`queues` are their names, by number. `on_lost` is called when a channel is gone because the connection is.

    Its consumers are tagged (`tag`) with the name of the member's mailbox: the broker tells of a queue's active
    consumer by its tag, also before anything was delivered to it.
    """

    def __init__(
        self,
        work: ClientConnection,
        queues: Sequence[str],
        tag: str,
        on_lost: Callable[[asyncio.Future[ClientError | None]], None],
    ) -> None:
        self._work = work
        self._queues = queues
        self._tag = tag
        self._on_lost = on_lost
        self._channels: dict[Attachment, Channel] = {}
        self._consumers: dict[Attachment, asyncio.Task[None]] = {}
        self._attached: set[Attachment] = set()
        self._limiting: set[asyncio.Task[None]] = set()

    def attach(self, effect: Attach, events: QueueEvents) -> None:
        """Consume on a channel of its own, and tell what becomes of it."""
        attachment = effect.attachment
        task = asyncio.get_running_loop().create_task(self._attach(effect, events))
        self._consumers[attachment] = task

    async def _attach(self, effect: Attach, events: QueueEvents) -> None:
        attachment = effect.attachment
        loop = asyncio.get_running_loop()
        warning = loop.call_later(ATTACH_WITHIN_S, log.warning, NO_ANSWER, attachment.queue, ATTACH_WITHIN_S)
        channel: Channel | None = None
        try:
            channel = await self._work.open_channel()
            self._channels[attachment] = channel
            channel.closed.add_done_callback(partial(self._closed, attachment, events))
            await channel.consume(
                self._queues[attachment.queue],
                partial(events.on_deliveries, attachment),
                prefetch_count=attachment.prefetch,
                consumer_tag=self._tag,
                arguments=dict(effect.arguments),
                on_cancelled=partial(self._cancelled, attachment, events),
                on_revoked=partial(events.on_revoked, attachment),
            )
            self._attached.add(attachment)
            events.on_attached(attachment)
        except ClientError as error:
            if channel is None and self._work.is_open:
                log.warning("queue %d: no channel: %s", attachment.queue, error)
                events.on_closed(attachment)
        finally:
            warning.cancel()
            del self._consumers[attachment]

    def detach(self, effect: Detach) -> None:
        """Settle and close in one write, without a basic.cancel before it: that keeps the order (see
        Channel.close_soon)."""
        attachment = effect.attachment
        consumers = self._consumers.get(attachment)
        if consumers is not None:
            consumers.add_done_callback(lambda _: self._close(attachment))
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

    def limit(self, attachment: Attachment, prefetch: int) -> None:
        channel = self._channels.get(attachment)
        if channel is not None:
            task = asyncio.get_running_loop().create_task(_limit(channel, prefetch))
            self._limiting.add(task)
            task.add_done_callback(self._limiting.discard)

    def capacity(self, attachment: Attachment, keys: int) -> None:
        """Nothing to a broker that would not know the word."""
        channel = self._channels.get(attachment)
        if channel is not None and self._work.has("lbg.capacity"):
            with suppress(ClientError):
                channel.capacity(self._tag, keys)

    def give_back(self, attachment: Attachment, tags: Sequence[int]) -> None:
        channel = self._channels.get(attachment)
        if channel is not None:
            with suppress(ClientError):
                for tag in tags:
                    channel.nack(tag)

    def _close(self, attachment: Attachment) -> None:
        channel = self._channels.get(attachment)
        if channel is not None:
            channel.close_soon()

    def _cancelled(self, attachment: Attachment, events: QueueEvents) -> None:
        if not events.on_cancelled(attachment):
            log.warning("queue %d: the broker ended the consumer", attachment.queue)
        self._close(attachment)

    def _closed(
        self, attachment: Attachment, events: QueueEvents, closed: asyncio.Future[ClientError | None]
    ) -> None:
        self._channels.pop(attachment, None)
        was_attached = attachment in self._attached
        self._attached.discard(attachment)
        error = closed.result()
        if not self._work.is_open:
            # First of all nothing more may start, on any queue.
            self._on_lost(closed)
        elif (timeout_s := consumer_timeout_in(error)) is not None:
            events.on_timed_out(attachment, timeout_s)
        elif error is not None and not (
            not was_attached
            and isinstance(error, ChannelClosed)
            and events.on_refused(attachment, error.reply_code, error.reply_text)
        ):
            log.warning("queue %d: %s", attachment.queue, error)
        events.on_closed(attachment)


async def _limit(channel: Channel, prefetch: int) -> None:
    with suppress(ClientError):  # the end of the channel is reported elsewhere
        await channel.limit(prefetch)


def consumer_timeout_in(error: ClientError | None) -> float | None:
    """The broker's consumer timeout in seconds, if that is what closed a channel (RabbitMQ says it in words)."""
    if not isinstance(error, PreconditionFailed):
        return None
    found = re.search(
        r"delivery acknowledgement.* timed out\. Timeout value used: (\d+) ms", error.reply_text
    )
    return int(found[1]) / 1000 if found is not None else None
