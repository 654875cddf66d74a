"""The AMQP half of `BrokerAdmin`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from lbg_core.admin.actions import (
    Action,
    Announce,
    Bind,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    Unbind,
    WriteRecord,
)
from lbg_core.admin.amqp_link import REQUEST_S, AmqpLink
from lbg_core.admin.errors import (
    AdminError,
    Busy,
    GroupNotFound,
    RecordUnreadable,
    Refused,
    StillInUse,
    Unsupported,
)
from lbg_core.admin.group_locks import Locks
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.record import HELD_READS, RECORD_READS, Record, headers_of, read_record
from lbg_core.admin.snapshot import UNKNOWN, ExchangeState, QueueStatus, Unknown
from lbg_core.amqp import BasicProperties
from lbg_core.client import (
    AccessRefused,
    Channel,
    ConfirmingPublisher,
    ConnectionSettings,
    Nacked,
    NotFound,
    Unroutable,
)
from lbg_core.group import IDENTITY_BYTES, TO_ALL, Engine, Names, SpecError, group_in
from lbg_core.group.members_protocol import Message
from lbg_core.group.message_codec import LOOK, encode
from lbg_core.group.topology import Binding

T = TypeVar("T")

HINT_S = 5.0
HINTS_MAX = 16
"""Hints on the way at a time; more are dropped."""

HINTS_CLOSE_S = 0.5
"""A broker that reads nothing from the connection does not answer its close."""

OBSERVER_FIRST = 10**9
"""From this index on, mailboxes are of those who observe members: a group has fewer members by far."""

PERSISTENT = 2
BINDING_CHANNELS = 16


async def confirming(channel: Channel) -> ConfirmingPublisher:
    """A publisher on a borrowed channel."""
    if not channel.is_confirming:
        await channel.confirm_select()
    return ConfirmingPublisher(channel)


async def _publish_all(channel: Channel, exchanges: Sequence[str], routing_key: str, body: bytes) -> None:
    """One message to each exchange, all at once, until the broker has them."""
    publisher = await confirming(channel)
    header = BasicProperties(content_type="application/json").encode()
    await asyncio.gather(
        *(publisher.publish_soon(exchange, routing_key, body, header=header) for exchange in exchanges)
    )


class AmqpAdmin:
    """Administration over one AMQP connection, and one for hints, for any number of callers at a time."""

    def __init__(self, places: Sequence[ConnectionSettings]) -> None:
        self.link = AmqpLink(places)
        self.locks = Locks(self.link)
        self._hints = AmqpLink(places)
        self._hinting: set[asyncio.Task[None]] = set()

    async def engine(self) -> Engine:
        """Engine of the broker. Raises Unsupported for one that cannot carry a group."""
        properties = (await self.link.connection()).server_properties
        try:
            return Engine.announced(properties)
        except SpecError as error:
            raise Unsupported(f"the broker at {self.link.where} cannot carry a group: {error}") from error

    async def channel_max(self) -> int:
        """Channels that the broker allows on a connection."""
        return (await self.link.connection()).channel_max

    async def counts(self, queue: str) -> QueueStatus | Unknown | None:
        """Ready messages and consumers of a queue as the broker counts them now; None when there is none.

        UNKNOWN for a user who may do nothing with a queue of this name: RabbitMQ refuses that one from 4.3 on.
        """
        return (await self.counts_of([queue]))[queue]

    async def counts_of(self, queues: Sequence[str]) -> dict[str, QueueStatus | Unknown | None]:
        """As `counts`, for all queues at once."""
        requests = [partial(Channel.queue_declare, name=name, passive=True) for name in queues]
        answers = zip(queues, await self._answers(requests), strict=True)
        return {
            name: _status_of_refusal(answer)
            if isinstance(answer, Refused)
            else QueueStatus(ready=answer.message_count, consumers=answer.consumer_count)
            for name, answer in answers
        }

    async def _answers(
        self, requests: Sequence[Callable[[Channel], Awaitable[T]]], *, within_s: float | None = REQUEST_S
    ) -> list[T | Refused]:
        """The answers to all requests, which are made at once. One that is refused closes the channel, so those behind
        it are made again."""
        answers: list[T | Refused] = []
        while len(answers) < len(requests):
            try:
                async with self.link.channel(within_s=within_s) as channel:
                    waiting = (request(channel) for request in requests[len(answers) :])
                    for answer in await asyncio.gather(*waiting, return_exceptions=True):
                        if isinstance(answer, BaseException):
                            raise answer
                        answers.append(answer)
            except Refused as error:
                answers.append(error)
        return answers

    async def exchanges(self, names: Sequence[str]) -> dict[str, ExchangeState | Unknown | None]:
        """Those that are there, None for others; UNKNOWN as in `counts`."""
        requests = [partial(Channel.exchange_declare, name=name, passive=True) for name in names]
        answers = zip(names, await self._answers(requests), strict=True)
        return {
            name: _status_of_refusal(one) if isinstance(one, Refused) else ExchangeState()
            for name, one in answers
        }

    async def record(self, group: str, *, reads: int = RECORD_READS) -> Record | None:
        """The group's record; None when its queue is missing or stays empty."""
        try:
            async with self.link.channel() as channel:
                return await read_record(channel, group, reads=reads)
        except (GroupNotFound, RecordUnreadable):
            return None

    async def perform(self, action: Action) -> None:
        """Makes a change for which AMQP is enough."""
        match action:
            case DeclareExchange(one):
                arguments = dict(one.arguments)
                async with self._changing(one.name) as channel:
                    await channel.exchange_declare(one.name, one.type, durable=True, arguments=arguments)
            case DeclareQueue(queue):
                arguments = dict(queue.arguments)
                async with self._changing(queue.name) as channel:
                    await channel.queue_declare(queue.name, durable=queue.durable, arguments=arguments)
            case Bind(_, bindings):
                await self._change_bindings(bindings, Channel.queue_bind)
            case Unbind(_, bindings):
                await self._unbind(bindings)
            case WriteRecord():
                await self._write_record(action)
            case DeleteExchange(name):
                async with self._missing_is_fine(), self._changing(name) as channel:
                    await channel.exchange_delete(name)
            case DeleteQueue(name, only_idle, only_empty):
                await self._delete_queue(name, only_unused=only_idle, only_empty=only_idle or only_empty)
            case Announce(group, message):
                await self.send(group, message)
            case _:
                raise TypeError(f"{type(action).__name__} is no change by AMQP")

    async def _unbind(self, bindings: Sequence[Binding]) -> None:
        try:
            await self._change_bindings(bindings, Channel.queue_unbind)
        except Refused as error:
            # A queue that is missing has closed a channel, and the rest of its requests with it.
            if not isinstance(error.__cause__, NotFound):
                raise
            for one in bindings:
                async with self._missing_is_fine(), self._changing(one.queue) as channel:
                    await channel.queue_unbind(one.queue, one.exchange, one.routing_key)

    async def _change_bindings(
        self, bindings: Sequence[Binding], change: Callable[[Channel, str, str, str], Awaitable[None]]
    ) -> None:
        """Over several channels: a channel's next request waits until its last one is on the broker's disk."""
        if bindings:
            await self.locks.renew(group_in(bindings[0].queue))
        async with self.link.channels(min(BINDING_CHANNELS, len(bindings)), within_s=None) as channels:
            requests = [
                change(channels[number % len(channels)], one.queue, one.exchange, one.routing_key)
                for number, one in enumerate(bindings)
            ]
            for answer in await asyncio.gather(*requests, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer

    async def _delete_queue(self, name: str, *, only_unused: bool, only_empty: bool) -> None:
        """Delete; with `only_unused` a queue with consumers raises StillInUse, with `only_empty` one with messages.

        RabbitMQ cannot check a quorum queue itself (it closes the connection with 540), so there it is read
        just before, which is enough once nothing is published to it any more.
        """
        if only_unused or only_empty:
            status = await self.counts(name)
            if status is None:
                return
            if status is UNKNOWN:
                raise StillInUse.at(name, Kind.QUEUE_UNCOUNTED)
            if (status.ready and only_empty) or (status.consumers and only_unused):
                figures = {"count": status.ready, "consumers": status.consumers}
                raise StillInUse.at(name, Kind.QUEUE_IN_USE, **figures)
        is_checked = not (await self.engine()).is_rabbitmq
        async with self._missing_is_fine(), self._changing(name) as channel:
            await channel.queue_delete(
                name, if_unused=only_unused and is_checked, if_empty=only_empty and is_checked
            )

    async def send(self, group: str, message: Message, *, to: int | None = None) -> None:
        """Sends a message to member `to`, or to all members that are there now."""
        routing_key = TO_ALL if to is None else str(to)
        async with self.link.channel() as channel:
            await _publish_all(channel, [Names(group).members], routing_key, encode(message))

    def send_soon(self, groups: Sequence[str], message: Message) -> None:
        """Sends a hint to the members of several groups, and waits for nothing; an error is ignored.

        It has a connection of its own: while a node of RabbitMQ is short of memory or disk, it reads nothing more from
        a connection that publishes.
        """
        if len(self._hinting) < HINTS_MAX:
            exchanges = [Names(group).members for group in groups]
            task = asyncio.create_task(self._hint(exchanges, encode(message)))
            self._hinting.add(task)
            task.add_done_callback(self._hinting.discard)

    async def _hint(self, exchanges: Sequence[str], body: bytes) -> None:
        try:
            async with self._hints.channel(within_s=HINT_S) as channel:
                await _publish_all(channel, exchanges, TO_ALL, body)
        except Refused:  # perhaps by one exchange, that was deleted meanwhile: that closes the channel
            for exchange in exchanges if len(exchanges) > 1 else ():
                with contextlib.suppress(AdminError):
                    async with self._hints.channel(within_s=HINT_S) as channel:
                        await _publish_all(channel, [exchange], TO_ALL, body)
        except AdminError:
            pass

    async def mailboxes(self, group: str, indexes: Sequence[int]) -> frozenset[int]:
        """Those of these indexes that a member has. Raises AdminError.

        A member ignores the message that asks for its mailbox. Where nobody has the index, the broker returns the
        message; where the mailbox is on a node that is down, RabbitMQ from 4.3 on refuses it.
        """
        async with self.link.channel() as channel:
            publisher = await confirming(channel)

            async def has_mailbox(index: int) -> bool:
                try:
                    await publisher.publish(
                        Names(group).members, str(index), LOOK, properties=BasicProperties(), mandatory=True
                    )
                except (Nacked, Unroutable):
                    return False
                return True

            found = await asyncio.gather(*map(has_mailbox, indexes))
        return frozenset(index for index, is_there in zip(indexes, found, strict=True) if is_there)

    async def _write_record(self, action: WriteRecord) -> None:
        """The record's queue has room for one message: this one takes the place of the one that was there.

        The copy for publishers comes first: an interruption leaves the former record, and whoever repeats the change
        writes both again. A copy is confirmed before the next one is sent, so the stream's last chunk has one. Of a
        group that is being made there is none.
        """
        record, names = action.record, Names(action.group)
        properties = BasicProperties(
            content_type="application/json", headers=headers_of(record) or None, delivery_mode=PERSISTENT
        )
        is_copied = action.is_final and record.publishers.username
        queues = [names.record, names.config] if is_copied else [names.config]
        is_lost = await self.locks.renew(action.group)
        if is_lost and action.before not in (None, await self.record(action.group, reads=HELD_READS)):
            raise Busy(action.group)  # who had the lock meanwhile changed the group
        async with self.link.channel() as channel:
            publisher = await confirming(channel)
            for queue in queues:
                await publisher.publish(
                    "", queue, record.text.encode(), properties=properties, mandatory=True
                )

    async def own_queue(self, *, of_members_of: str | None = None) -> str:
        """A new queue for this connection alone, which goes with it; no group's name begins as its name does.

        `of_members_of`: where the login may not declare it, as that of a group, it is called as a mailbox of that group
        with an index that no member has. Raises AdminError.
        """
        name = f"lbg._{secrets.token_hex(IDENTITY_BYTES)}"
        try:
            await self._declare_own(name)
        except Refused:
            if of_members_of is None:
                raise
            name = Names(of_members_of).mailbox(OBSERVER_FIRST + secrets.randbelow(OBSERVER_FIRST))
            await self._declare_own(name)
        return name

    async def _declare_own(self, name: str) -> None:
        async with self.link.channel() as channel:
            await channel.queue_declare(name, exclusive=True)

    async def bind_own(
        self, queue: str, exchanges: Sequence[str], *, keys: Sequence[str]
    ) -> dict[str, Refused]:
        """Binds to all exchanges at once by one key after the other; returns those that cannot be bound to, and why.

        A binding costs the broker the same time wherever it leads, so each further key costs as much as the first.
        """
        refused: dict[str, Refused] = {}
        for key in keys:
            names = [name for name in exchanges if name not in refused]
            requests = [
                partial(Channel.queue_bind, queue=queue, exchange=name, routing_key=key) for name in names
            ]
            answers = zip(names, await self._answers(requests, within_s=None), strict=True)
            refused |= {name: answer for name, answer in answers if isinstance(answer, Refused)}
        return refused

    async def unbind_own(self, queue: str, exchanges: Sequence[str], *, keys: Sequence[str]) -> None:
        async with self.link.channel(within_s=None) as channel:
            await asyncio.gather(
                *(channel.queue_unbind(queue, name, key) for name in exchanges for key in keys)
            )

    async def delete_own(self, queue: str) -> None:
        async with self.link.channel() as channel:
            await channel.queue_delete(queue)

    async def close(self) -> None:
        for hint in self._hinting:
            hint.cancel()
        await asyncio.gather(self.link.close(), self._hints.close(timeout_s=HINTS_CLOSE_S))

    @contextlib.asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[Channel]:
        """A channel to change what is called `name`: its group's lock is still held, if it was taken."""
        await self.locks.renew(group_in(name))
        async with self.link.channel() as channel:
            yield channel

    @contextlib.asynccontextmanager
    async def _missing_is_fine(self) -> AsyncIterator[None]:
        try:
            yield
        except Refused as error:
            if not isinstance(error.__cause__, NotFound):
                raise


def _status_of_refusal(error: Refused) -> Unknown | None:
    """Meaning of a refused read: absent, or not permitted to this user. Raises any other refusal."""
    if isinstance(error.__cause__, NotFound):
        return None
    if isinstance(error.__cause__, AccessRefused):
        return UNKNOWN
    raise error
