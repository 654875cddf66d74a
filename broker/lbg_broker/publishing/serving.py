"""One connection of a publisher: is its group the one of before, and one channel after another until it ends."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from lbg_broker.client import (
    AccessRefused,
    Channel,
    ChannelClosed,
    ClientConnection,
    ClientError,
    ConnectionLost,
    NotFound,
)
from lbg_broker.group import Names

from .carrying import Carrying, refuses_in_order
from .errors import BrokerRefused, GroupGone, SizeRefused
from .events import ChannelRenewed
from .waiting import is_changing

# A queue that refuses is asked for its depth now and then: an empty one is not full.
DOUBT_AFTER_S = 0.5
DOUBT_EVERY_S = 0.25
ANSWERS_S = 2.0

# The group's record is read then as well: a closed ingress refuses as a full queue does.
RECORD_LOOK_S = 2.0

# A quorum queue that has its majority back answers within 15 s what it was sent without one, or never.
RENEW_AFTER_S = 20.0
RENEW_AFTER_MAX_S = 160.0


_SIZES = re.compile(r"message size (\d+) is larger than (?:configured )?max size (\d+)")
"""What RabbitMQ says of a message over `max_message_size` (rabbit_channel:check_msg_size), and the embedded broker."""


class Changing(Exception):
    """The group's number of queues is being changed, or was, as its record says."""


class Forbidden(Exception):
    """The broker says that this user may not publish to the group (403), which may be for a change of the group."""


async def serve_channels(
    connection: ClientConnection,
    carrying: Carrying,
    names: Names,
    *,
    on_attached: Callable[[], None],
    tell: Callable[[ChannelRenewed], None],
) -> NoReturn:
    """Carry over a channel, and over a new one when it is doubted. Raises ConnectionLost when the connection is gone,
    Changing when its group changes, Forbidden when perhaps it does; GroupGone, GroupClosed and
    BrokerRefused are final."""
    loop = asyncio.get_running_loop()
    patience_s = RENEW_AFTER_S
    while True:
        channel = await connection.open_channel()
        await channel.confirm_select()
        carrying.attach(connection, channel)
        on_attached()
        confirmed = carrying.machine.counts.confirmed
        doubting = loop.create_task(_doubt(connection, carrying, names, patience_s))
        try:
            ends = (connection.closed, channel.closed, doubting)
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            doubting.cancel()
        if connection.closed.done() or channel.closed.done():
            break
        doubt = doubting.result()
        if isinstance(doubt, ChannelRenewed):
            tell(doubt)
        await carrying.pause(up_to_s=ANSWERS_S)
        carrying.detach()
        # Closed before anything is sent again: what it had for a queue cannot come in between any more.
        await channel.close()
        if isinstance(doubt, Changing):
            raise doubt
        helped = carrying.machine.counts.confirmed > confirmed
        patience_s = RENEW_AFTER_S if helped else min(2 * patience_s, RENEW_AFTER_MAX_S)
    reason = channel.closed.result() if channel.closed.done() else connection.closed.result()
    if isinstance(reason, NotFound):
        raise GroupGone(f"group {names.group!r} was deleted while it was published to: {reason}")
    if isinstance(reason, AccessRefused):
        carrying.detach()
        raise Forbidden(f"the broker takes no more messages for group {names.group!r}: {reason}")
    if isinstance(reason, ChannelClosed) and (sizes := _SIZES.search(reason.reply_text)) is not None:
        raise SizeRefused(names.group, int(sizes[1]), int(sizes[2]), reason.reply_text)
    if isinstance(reason, ChannelClosed) and not reason.retryable:
        raise BrokerRefused(f"the broker takes no more messages for group {names.group!r}: {reason}")
    raise ConnectionLost(str(reason or "the connection was closed"))


async def _doubt(
    connection: ClientConnection, carrying: Carrying, names: Names, patience_s: float
) -> ChannelRenewed | Changing:
    """Return when a new channel is worth trying: a queue refuses everything and has nothing, or answers nothing. Or
    when the group is given another number of queues, and refused for that. Raises GroupClosed.

    A channel of RabbitMQ 3.10 asks the node that was the leader when it first published to a quorum queue whether
    it may; while that node is down, each answer is a refusal (rabbit_fifo_client:enqueue/3). And what a channel
    sent to a queue that had lost its majority may stay without an answer when that is back.
    """
    loop = asyncio.get_running_loop()
    machine = carrying.machine
    looking: Channel | None = None
    refused, look_at = machine.counts.refused, 0.0
    while True:
        await asyncio.sleep(DOUBT_EVERY_S)
        now = loop.time()
        for name in carrying.named(machine.silent_queues(now, for_s=patience_s)):
            return ChannelRenewed(name, f"has answered nothing for {patience_s:g} s")
        if machine.counts.refused > refused and now >= look_at:
            refused, look_at = machine.counts.refused, now + RECORD_LOOK_S
            if await is_changing(connection, machine.stamper.spec):
                return Changing()
        if refuses_in_order(connection):
            continue
        for name in carrying.named(machine.refusing_queues(now, for_s=DOUBT_AFTER_S)):
            with suppress(ClientError):
                if looking is None or not looking.is_open:
                    looking = await connection.open_channel()
                if (await looking.queue_declare(name, passive=True)).message_count == 0:
                    await looking.close()
                    return ChannelRenewed(name, "refuses messages though it is empty")
