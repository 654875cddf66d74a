"""One connection of a publisher: waits for ingress, replaces a channel that stalls, counts unrouted messages."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import NoReturn
from weakref import WeakSet

from lbg_core.admin.errors import GroupNotFound, ProvisioningError
from lbg_core.admin.record import Record, read_copy, read_record, spec_in
from lbg_core.client import (
    AccessRefused,
    Channel,
    ChannelClosed,
    ClientConnection,
    ClientError,
    ConnectionLost,
    NotFound,
)
from lbg_core.client.backoff import doubled_s
from lbg_core.client.retransmit import ANSWER_S
from lbg_core.group import GroupSpec, Names, is_closed_in, repartition_in
from lbg_core.publisher.errors import BrokerRefused, GroupClosed, GroupGone, SizeRefused
from lbg_core.publisher.events import ChannelRenewed, IngressClosed, IngressOpen, IngressPaused, Unrouted
from lbg_core.publisher.resume import group_facts
from lbg_core.publisher.sender import Sender, refuses_in_order

READ_EVERY_S = 1.0
"""Between two reads of the record of a group that accepts nothing, spread by a half: publishers are many."""


async def read_spec(connection: ClientConnection, group: str) -> GroupSpec:
    """Raises ProvisioningError, GroupClosed, ChannelClosed, ConnectionLost."""
    return (await _read(connection, group)).spec


async def is_ingress_closed(connection: ClientConnection, spec: GroupSpec) -> bool:
    """True if the group is on its way to another number of queues, or has one, or its ingress is paused; not as far as
    nothing can be read.

    Raises GroupClosed, ConnectionLost.
    """
    try:
        found = await _read(connection, spec.name)
    except (ProvisioningError, ChannelClosed):
        return False
    return found.why_closed is not None or found.spec.queue_count != spec.queue_count


async def wait_for_ingress(
    connection: ClientConnection,
    spec: GroupSpec,
    *,
    on_event: Callable[[IngressClosed | IngressPaused | IngressOpen], None],
) -> GroupSpec:
    """Returns the group as it is, once its number of queues is not being changed and its ingress is not paused.

    Raises ConnectionLost, GroupClosed, and GroupGone when another group took the place of `spec`: while the connection
    was gone it may have been made anew, and hashes may lead elsewhere. A record that cannot be read (its node may be
    down) changes nothing: publishing will show whether the exchange is there.
    """
    announced: IngressClosed | IngressPaused | None = None
    why_closed: IngressClosed | IngressPaused | None
    while True:
        try:
            found = await _read(connection, spec.name)
        except (ProvisioningError, ChannelClosed):
            if announced is None:
                return spec
            why_closed = announced
        else:
            why_closed = found.why_closed
            if group_facts(found.spec) != group_facts(spec):
                raise GroupGone(
                    f"group {spec.name!r} was made anew with other attributes while it was published to: "
                    "sequences cannot go on there; start anew"
                )
        if why_closed is None:
            if announced is not None:
                on_event(IngressOpen(spec.name, found.spec.queue_count))
            return found.spec
        if why_closed != announced:
            on_event(why_closed)
            announced = why_closed
        await asyncio.sleep(READ_EVERY_S * random.uniform(0.5, 1.5))


_readers_of_copies = WeakSet[ClientConnection]()
"""Connections whose user may not read the record itself: the broker would log each attempt."""


@dataclass(frozen=True, slots=True)
class _Facts:
    """Facts of a group for its publishers, as its record has them."""

    spec: GroupSpec
    why_closed: IngressClosed | IngressPaused | None


async def _read(connection: ClientConnection, group: str) -> _Facts:
    if connection not in _readers_of_copies:
        try:
            return _facts(group, await _read_by(connection, partial(read_record, group=group)))
        except AccessRefused as refused:
            try:
                copy = await _read_by(connection, partial(read_copy, group=group))
            except (AccessRefused, GroupNotFound):
                raise refused from None
        _readers_of_copies.add(connection)
        return _facts(group, copy)
    return _facts(group, await _read_by(connection, partial(read_copy, group=group)))


async def _read_by(connection: ClientConnection, read: Callable[[Channel], Awaitable[Record]]) -> Record:
    channel = await connection.open_channel()
    try:
        record = await read(channel)
    except BaseException:
        channel.close_soon()  # it may still get the record, and must not keep it from others
        raise
    await channel.close()
    return record


def _facts(group: str, record: Record) -> _Facts:
    if is_closed_in(record.text):
        raise GroupClosed(group)
    why_closed: IngressClosed | IngressPaused | None = None
    if (queue_count := repartition_in(record.text)) is not None:
        why_closed = IngressClosed(group, queue_count)
    elif record.is_ingress_paused:
        why_closed = IngressPaused(group)
    return _Facts(spec_in(record.text, group), why_closed)


# The depth of a queue that refuses is read now and then: an empty one is not full.
DOUBT_AFTER_S = 0.5
DOUBT_EVERY_S = 0.25
ANSWERS_S = 2.0

# The group's record is read then as well: a closed ingress refuses as a full queue does.
RECORD_READ_S = 2.0

RENEW_AFTER_MAX_S = 160.0


_SIZES = re.compile(r"message size (\d+) is larger than (?:configured )?max size (\d+)")
"""RabbitMQ's refusal of a message over `max_message_size` (rabbit_channel:check_msg_size), and the embedded broker."""


class IngressEnded(Exception):
    """The group's ingress is closed, or its number of queues has changed, as its record states."""


class AccessDenied(Exception):
    """The broker refuses publishes of this user (403), perhaps because of a change of the group."""


async def run_channel(
    connection: ClientConnection,
    carrying: Sender,
    names: Names,
    *,
    on_attached: Callable[[], None],
    on_event: Callable[[ChannelRenewed], None],
) -> NoReturn:
    """Carry over a channel, and over a new one when it is doubted. Raises ConnectionLost when the connection is gone,
    IngressEnded when its group takes nothing, AccessDenied when perhaps it does; GroupGone, GroupClosed and
    BrokerRefused are final."""
    loop = asyncio.get_running_loop()
    in_vain = 0  # new channels, since one confirmed something
    while True:
        channel = await connection.open_channel()
        await channel.confirm_select()
        carrying.attach(connection, channel)
        on_attached()
        confirmed = carrying.machine.counts.confirmed
        patience_s = doubled_s(ANSWER_S, RENEW_AFTER_MAX_S, in_vain)
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
            on_event(doubt)
        await carrying.pause(up_to_s=ANSWERS_S)
        carrying.detach()
        # Closed before anything is sent again: what it had for a queue cannot come in between any more.
        await channel.close()
        if isinstance(doubt, IngressEnded):
            raise doubt
        in_vain = 0 if carrying.machine.counts.confirmed > confirmed else in_vain + 1
    reason = channel.closed.result() if channel.closed.done() else connection.closed.result()
    if isinstance(reason, NotFound):
        raise GroupGone(f"group {names.group!r} was deleted while it was published to: {reason}")
    if isinstance(reason, AccessRefused):
        carrying.detach()
        raise AccessDenied(
            f"this user may not publish to group {names.group!r}; "
            f"`lbg group show {names.group}` names the user of its publishers: {reason}"
        )
    if isinstance(reason, ChannelClosed) and (sizes := _SIZES.search(reason.reply_text)) is not None:
        raise SizeRefused(names.group, int(sizes[1]), int(sizes[2]), reason.reply_text)
    if isinstance(reason, ChannelClosed) and not reason.retryable:
        raise BrokerRefused(f"the broker takes no more messages for group {names.group!r}: {reason}")
    raise ConnectionLost(str(reason or "the connection was closed"))


async def _doubt(
    connection: ClientConnection, carrying: Sender, names: Names, patience_s: float
) -> ChannelRenewed | IngressEnded:
    """Return when a new channel is worth trying: a queue refuses everything and has nothing, or answers nothing. Or
    when the group's number of queues changes, and messages are refused for that. Raises GroupClosed.

    A channel of RabbitMQ 3.10 asks the node that was the leader when it first published to a quorum queue whether
    it may; while that node is down, each answer is a refusal (rabbit_fifo_client:enqueue/3). And what a channel
    sent to a queue that had lost its majority may stay without an answer when that is back.
    """
    loop = asyncio.get_running_loop()
    machine = carrying.machine
    probe: Channel | None = None
    refused, read_at = machine.counts.refused, 0.0
    while True:
        await asyncio.sleep(DOUBT_EVERY_S)
        now = loop.time()
        for name in carrying.named(machine.silent_queues(now, for_s=patience_s)):
            return ChannelRenewed(name, f"has answered nothing for {patience_s:g} s")
        if machine.counts.refused > refused and now >= read_at:
            refused, read_at = machine.counts.refused, now + RECORD_READ_S
            if await is_ingress_closed(connection, machine.stamper.spec):
                return IngressEnded()
        if refuses_in_order(connection):
            continue
        for name in carrying.named(machine.refusing_queues(now, for_s=DOUBT_AFTER_S)):
            with suppress(ClientError):
                if probe is None or not probe.is_open:
                    probe = await connection.open_channel()
                if (await probe.queue_declare(name, passive=True)).message_count == 0:
                    await probe.close()
                    return ChannelRenewed(name, "refuses messages though it is empty")


UNROUTED_READ_S = 5.0
UNROUTED_ANSWER_S = 5.0
"""A quorum queue without a majority does not answer."""


class UnroutedCount:
    """Messages that arrived in the group's queue of unrouted messages since the publisher's start.

    The broker confirms them, and returns none of them: the alternate exchange takes them. `arrived`: of all publishers
    of the group; None while it is not known."""

    def __init__(self, names: Names, on_event: Callable[[Unrouted], None]) -> None:
        self.arrived: int | None = None
        self._names = names
        self._on_event = on_event
        self._channel: Channel | None = None
        self._connection: ClientConnection | None = None
        self._last: int | None = None
        self._at_least = 0
        self._is_rising = False

    async def read(self, connection: ClientConnection) -> None:
        """Raises nothing: without an answer the count is not known, unless it is above 0 already."""
        try:
            async with asyncio.timeout(UNROUTED_ANSWER_S):
                counted = await self._counted(connection)
        except (ClientError, TimeoutError):
            self.arrived = self._at_least or None
            return
        arrived = 0 if self._last is None else max(0, counted - self._last)
        self._last = counted
        self._at_least += arrived
        self.arrived = self._at_least
        if arrived and not self._is_rising:
            self._on_event(Unrouted(self._names.group, self._at_least))
        self._is_rising = arrived > 0

    async def _counted(self, connection: ClientConnection) -> int:
        channel = self._channel
        if channel is None or not channel.is_open or self._connection is not connection:
            self._connection = connection
            self._channel = channel = await connection.open_channel()
        return (await channel.queue_declare(self._names.unrouted, passive=True)).message_count
