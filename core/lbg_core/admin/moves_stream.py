"""Stream of a change of the number of queues, and its fences, over AMQP (`lbg_core.group.key_moves`)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from lbg_core.admin.amqp import PERSISTENT, AmqpAdmin, confirming
from lbg_core.admin.errors import RecordUnavailable
from lbg_core.amqp import BasicProperties
from lbg_core.client.republication import copied_properties
from lbg_core.client.retransmit import ANSWER_S
from lbg_core.group import HEADER_FENCE, HEADER_ROUTING_KEY, IDENTITY_BYTES, TO_MOVES, Names, group_in
from lbg_core.group.key_moves import KEY_MOVE_ENTRIES, BarrierEntry, Entry, KeyMoveState, PassEntry
from lbg_core.stream_follower import StreamFollower, entry_properties

if TYPE_CHECKING:
    from lbg_core.client import Channel, Delivery

READ_AHEAD_MESSAGES = 100

HEAD_S = 0.5
"""Seconds to wait for the first message of a queue that has no other consumer,"""
NEXT_S = 0.05
"""and for one behind a fence."""


async def append(amqp: AmqpAdmin, group: str, entry: Entry) -> None:
    """Returns when the stream has the entry. Raises AdminError."""
    await amqp.locks.renew(group)
    await _append(amqp, group, entry)


async def _append(amqp: AmqpAdmin, group: str, *entries: Entry) -> None:
    async with amqp.link.channel() as channel:
        publisher = await confirming(channel)
        for body in map(KEY_MOVE_ENTRIES.encode, entries):
            await publisher.publish(
                Names(group).members, TO_MOVES, body, properties=entry_properties(), mandatory=True
            )


async def put_fence(amqp: AmqpAdmin, queue: str, move: str) -> None:
    """Returns when the queue has the fence. Raises Refused where the queue is full, and AdminError."""
    await amqp.locks.renew(group_in(queue))
    properties = BasicProperties(headers={HEADER_FENCE: move}, delivery_mode=PERSISTENT)
    async with amqp.link.channel() as channel:
        publisher = await confirming(channel)
        await publisher.publish("", queue, b"", properties=properties, mandatory=True)


async def read(amqp: AmqpAdmin, group: str) -> KeyMoveState:
    """State by all entries that were confirmed before. Raises AdminError, EntryError, and RecordUnavailable where the
    stream does not answer."""
    state, barrier = KeyMoveState(), BarrierEntry(secrets.token_hex(IDENTITY_BYTES))

    def on_read(read: list[tuple[Entry, Delivery]]) -> None:
        for entry, _ in read:
            state.apply(entry)

    with amqp.link.translated_errors():
        connection, stream = await amqp.link.connection(), Names(group).moves
        follower = StreamFollower(
            connection, stream, KEY_MOVE_ENTRIES, on_read=on_read, on_unreadable=lambda error: None
        )
        try:
            async with asyncio.timeout(ANSWER_S):
                await follower.follow()
            await follower.read_up_to(barrier, lambda: _append(amqp, group, barrier))
        except TimeoutError:
            why = f"stream {stream} gives no answer in {ANSWER_S:g} s"
            raise RecordUnavailable(group, cause=why) from None
        finally:
            follower.stop()
    return state


async def return_messages(amqp: AmqpAdmin, group: str, number: int) -> None:
    """Publishes what is left in a queue that is too many, and that nobody consumes, to the group again, and drops
    fences. Raises AdminError."""
    async with (
        _consuming(amqp, group, number, prefetch=READ_AHEAD_MESSAGES) as (channel, arrived),
        amqp.link.channel() as writing,
    ):
        publisher = await confirming(writing)
        while (delivery := await _next(arrived, HEAD_S)) is not None:
            if HEADER_FENCE not in delivery.headers:
                key = str(delivery.headers.get(HEADER_ROUTING_KEY, delivery.routing_key))
                properties = copied_properties(delivery, without=(HEADER_ROUTING_KEY,))
                properties.expiration = delivery.properties.expiration
                body = bytes(delivery.body)
                await publisher.publish(
                    Names(group).exchange, key, body, properties=properties, mandatory=True
                )
            channel.ack(delivery.delivery_tag)


async def pass_fences(amqp: AmqpAdmin, group: str, number: int, move: str) -> None:
    """Passes the fences of `move` at the head of the queue, as its only consumer. Any other message goes back to its
    place, and messages behind it stay there. Raises AdminError."""
    async with _consuming(amqp, group, number, prefetch=1) as (channel, arrived):
        within_s = HEAD_S
        while (delivery := await _next(arrived, within_s)) is not None:
            fence = delivery.headers.get(HEADER_FENCE)
            if fence is None:
                return
            if fence == move:
                by = secrets.token_hex(IDENTITY_BYTES)
                await _append(amqp, group, BarrierEntry(by, (number,)), PassEntry(move, number, by))
            channel.ack(delivery.delivery_tag)
            within_s = NEXT_S


@asynccontextmanager
async def _consuming(
    amqp: AmqpAdmin, group: str, number: int, *, prefetch: int
) -> AsyncIterator[tuple[Channel, asyncio.Queue[Delivery]]]:
    """Consumes from a numbered queue of the group. At the end all that was not acknowledged is back in its place."""
    await amqp.locks.renew(group)
    arrived: asyncio.Queue[Delivery] = asyncio.Queue()

    def on_deliveries(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            arrived.put_nowait(delivery)

    with amqp.link.translated_errors():
        channel = await (await amqp.link.connection()).open_channel()
        try:
            await channel.consume(Names(group).queue(number), on_deliveries, prefetch_count=prefetch)
            yield channel, arrived
        finally:
            channel.close_soon()


async def _next(arrived: asyncio.Queue[Delivery], within_s: float) -> Delivery | None:
    try:
        async with asyncio.timeout(within_s):
            return await arrived.get()
    except TimeoutError:
        return None
