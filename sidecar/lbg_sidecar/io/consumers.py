"""Consumers of a member: a channel for each attached queue, from basic.consume to its close."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from lbg_core.client import (
    Channel,
    ChannelClosed,
    ClientConnection,
    ClientError,
    PreconditionFailed,
)
from lbg_core.group import EMBEDDED, RABBITMQ
from lbg_sidecar.core.delivery import Attachment
from lbg_sidecar.core.effects import Ack, Attach, Capacity, Detach, Limit, Refuse, Requeue
from lbg_sidecar.core.member_core import MemberCore
from lbg_sidecar.core.state_log import Cause
from lbg_sidecar.io.log_events import StateLogger
from lbg_sidecar.io.member_events import MemberEvents

ATTACH_WITHIN_S = 5.0

_CONSUMED = ("is consumed", "are consumed")
NO_ANSWER = Cause("no_answer", "no answer to basic.consume", ("answers", "answer"), waited_s=ATTACH_WITHIN_S)
NO_ANSWER_HINTS = {
    RABBITMQ: "a quorum queue answers nothing while most of its nodes are down",
    EMBEDDED: "the embedded broker answers at once unless it is stopped or overloaded",
}
SPARE_CHANNELS = 8
"""Left to what is not of a queue, where a group has more queues than its member has channels."""

NO_CHANNEL = Cause(
    "no_channel",
    "no channel",
    _CONSUMED,
    hint="raise the broker's channel_max, or give the group fewer queues",
)
CANCELLED = Cause("consumer_ended", "no consumer", _CONSUMED, hint="the broker ended it")


def closed_channel(error: ClientError) -> Cause:
    """State of a queue whose channel the broker closed. Each reply code is a state of its own."""
    code = f"_{error.reply_code}" if isinstance(error, ChannelClosed) else ""
    return Cause(f"channel_closed{code}", "no channel", _CONSUMED, hint="the broker closed it")


class QueueConsumers:
    """`queue_name` gives the name of a queue by its number. `on_lost` is called when a channel has ended with the
    connection.

    `states` logs queues that cannot be consumed. Its consumers are tagged (`tag`) with the name of the member's
    mailbox: the broker reports a queue's active consumer by its tag, also before the first delivery.
    """

    def __init__(
        self,
        connection: ClientConnection,
        queue_name: Callable[[int], str],
        tag: str,
        on_lost: Callable[[asyncio.Future[ClientError | None]], None],
        states: StateLogger[int],
    ) -> None:
        self._connection = connection
        self._states = states
        hint = NO_ANSWER_HINTS.get(str(connection.server_properties.get("product")), "")
        self._no_answer = replace(NO_ANSWER, hint=hint)
        self._queue_name = queue_name
        self._tag = tag
        self._on_lost = on_lost
        self._channels: dict[Attachment, Channel] = {}
        self._consumers: dict[Attachment, asyncio.Task[None]] = {}
        self._attached: set[Attachment] = set()
        self._limiting: set[asyncio.Task[None]] = set()

    def attach(self, effect: Attach, events: MemberEvents) -> None:
        """Consumes on a channel of its own, and reports its events."""
        attachment = effect.attachment
        task = asyncio.get_running_loop().create_task(self._attach(effect, events))
        self._consumers[attachment] = task

    async def _attach(self, effect: Attach, events: MemberEvents) -> None:
        attachment = effect.attachment
        loop = asyncio.get_running_loop()
        waiting = loop.call_later(ATTACH_WITHIN_S, self._states.enter, self._no_answer, attachment.queue)
        channel: Channel | None = None
        try:
            channel = await self._connection.open_channel(spare=SPARE_CHANNELS)
            self._channels[attachment] = channel
            channel.closed.add_done_callback(partial(self._closed, attachment, events))
            await channel.consume(
                self._queue_name(attachment.queue),
                partial(events.on_deliveries, attachment),
                prefetch_count=attachment.prefetch,
                consumer_tag=self._tag,
                arguments=dict(effect.arguments),
                on_cancelled=partial(self._cancelled, attachment, events),
                on_revoked=partial(events.on_revoked, attachment),
            )
            self._attached.add(attachment)
            self._states.leave(attachment.queue)
            events.feed(MemberCore.attached, attachment)
        except ClientError as error:
            if self._connection.is_open:
                self._states.leave(attachment.queue, event=NO_ANSWER.event)
                if channel is None:
                    self._states.enter(NO_CHANNEL, attachment.queue, str(error))
                    events.feed(MemberCore.closed, attachment)
        finally:
            waiting.cancel()
            del self._consumers[attachment]

    def detach(self, effect: Detach) -> None:
        """Settle and close in one write, without a basic.cancel before it, which preserves the order
        (see Channel.close_soon)."""
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

    def perform(self, effect: Ack | Refuse | Requeue | Limit | Capacity) -> None:
        """A capacity is reported to a broker that supports it."""
        channel = self._channels.get(effect.attachment)
        if channel is None:
            return
        with suppress(ClientError):
            match effect:
                case Ack(_, tag, multiple):
                    channel.ack(tag, multiple=multiple)
                case Refuse(_, tag):
                    channel.reject(tag, requeue=False)
                case Requeue(_, tags):
                    for tag in tags:
                        channel.nack(tag)
                case Limit(_, prefetch):
                    task = asyncio.get_running_loop().create_task(_limit(channel, prefetch))
                    self._limiting.add(task)
                    task.add_done_callback(self._limiting.discard)
                case Capacity(_, keys) if self._connection.has("lbg.capacity"):
                    channel.capacity(self._tag, keys)

    def _close(self, attachment: Attachment) -> None:
        channel = self._channels.get(attachment)
        if channel is not None:
            channel.close_soon()

    def _cancelled(self, attachment: Attachment, events: MemberEvents) -> None:
        if not events.machine.cancelled(attachment):
            self._states.enter(CANCELLED, attachment.queue)
        self._close(attachment)

    def _closed(
        self, attachment: Attachment, events: MemberEvents, closed: asyncio.Future[ClientError | None]
    ) -> None:
        self._channels.pop(attachment, None)
        was_attached = attachment in self._attached
        self._attached.discard(attachment)
        error = closed.result()
        if not self._connection.is_open:
            # First of all nothing more may start, on any queue.
            self._on_lost(closed)
        elif (timeout_s := consumer_timeout_in(error)) is not None:
            events.machine.timed_out(attachment, timeout_s)
        elif error is not None and not (
            not was_attached
            and isinstance(error, ChannelClosed)
            and events.machine.refused(attachment, error.reply_code, error.reply_text)
        ):
            self._states.enter(closed_channel(error), attachment.queue, str(error))
        events.feed(MemberCore.closed, attachment)


async def _limit(channel: Channel, prefetch: int) -> None:
    with suppress(ClientError):  # the end of the channel is reported elsewhere
        await channel.limit(prefetch)


def consumer_timeout_in(error: ClientError | None) -> float | None:
    """The broker's consumer timeout in seconds, if that closed a channel (RabbitMQ has it in the reply text)."""
    if not isinstance(error, PreconditionFailed):
        return None
    timeout = re.search(
        r"delivery acknowledgement.* timed out\. Timeout value used: (\d+) ms", error.reply_text
    )
    return int(timeout[1]) / 1000 if timeout is not None else None
