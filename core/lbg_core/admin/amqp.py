"""The AMQP half of `BrokerAdmin`: one connection for all callers, and the locks of groups."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
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
from lbg_core.admin.errors import (
    AdminError,
    Busy,
    Denied,
    GroupNotFound,
    RecordUnreadable,
    Refused,
    StillInUse,
    Unreachable,
    Unsupported,
    plain_reason,
)
from lbg_core.admin.problems import Kind
from lbg_core.admin.record import HELD_READS, RECORD_READS, Record, headers_of, read_record
from lbg_core.admin.snapshot import UNKNOWN, ExchangeState, QueueStatus, Unknown
from lbg_core.amqp import BasicProperties
from lbg_core.client import (
    AccessRefused,
    AuthenticationError,
    Channel,
    ChannelClosed,
    ClientConnection,
    ClientError,
    ConfirmingPublisher,
    ConnectError,
    ConnectionSettings,
    Nacked,
    NotFound,
    ResourceLocked,
    SettingsError,
    Unroutable,
    connect_any,
)
from lbg_core.group import IDENTITY_BYTES, TO_ALL, Engine, Names, SpecError, group_in
from lbg_core.group.members_protocol import Message
from lbg_core.group.message_codec import LOOK, encode
from lbg_core.group.topology import Binding

T = TypeVar("T")

REQUEST_S = 30.0
"""Time limit of the requests on one borrowed channel. A quorum queue without a majority may never answer."""

CHANNELS_MAX = 512
"""At most so many callers are served at a time: RabbitMQ allows 2,047 channels by default."""

IDLE_CHANNELS_MAX = 64
HINT_S = 5.0
HINTS_MAX = 16
"""Hints on the way at a time; more are dropped."""

HINTS_CLOSE_S = 0.5
"""A broker that reads nothing from the connection does not answer its close."""

CLOSE_S = 5.0

OBSERVER_FIRST = 10**9
"""From this index on, mailboxes are of those who observe members: a group has fewer members by far."""


class AmqpLink:
    """Callers borrow a channel each, so that a slow answer, or a refusal, which closes the channel, is theirs alone.

    Callers without a connection wait for the one attempt that is being made, and share its error: a broker that is
    away costs all callers one timeout and not one each.
    """

    def __init__(self, places: Sequence[ConnectionSettings]) -> None:
        self.places = places
        self._connection: ClientConnection | None = None
        self._connecting: asyncio.Task[ClientConnection] | None = None
        self._idle: list[Channel] = []
        self._room = asyncio.Semaphore(CHANNELS_MAX)
        self._is_closed = False

    async def connection(self) -> ClientConnection:
        """The open connection. Raises AdminError."""
        with self.translated_errors():
            return await self._connected()

    @contextlib.asynccontextmanager
    async def channel(self, *, within_s: float | None = REQUEST_S) -> AsyncIterator[Channel]:
        """A channel for as long as the block lasts; what the client raises in it becomes an AdminError.

        Raises Unreachable when it lasts longer than `within_s`; None: it may.
        """
        async with self.channels(1, within_s=within_s) as (channel,):
            yield channel

    @contextlib.asynccontextmanager
    async def channels(
        self, count: int, *, within_s: float | None = REQUEST_S
    ) -> AsyncIterator[Sequence[Channel]]:
        """As `channel`; up to `count` of them, as there is room."""
        with self.translated_errors(within_s):
            async with asyncio.timeout(within_s), self._room:
                connection = await self._connected()
                borrowed = await self._borrowed(connection, count)
                try:
                    yield borrowed
                except BaseException:
                    # A late answer to these requests must not reach another caller.
                    for channel in borrowed:
                        channel.close_soon()
                    raise
                self._return_channels(connection, borrowed)

    async def close(self, *, timeout_s: float = CLOSE_S) -> None:
        """Closes the connection: waiting callers get Unreachable. The broker's answer is waited for up to
        `timeout_s`."""
        self._is_closed = True
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._connection is not None:
            await self._connection.close(timeout_s=timeout_s)

    async def _connected(self) -> ClientConnection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._is_closed:
            raise ConnectError("this connection was closed")
        if self._connecting is None:
            self._connecting = asyncio.create_task(connect_any(self.places, name="lbg provisioning"))
            self._connecting.add_done_callback(self._on_connected)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():  # by `close`
                raise ConnectError("this connection was closed") from None
            raise

    def _on_connected(self, task: asyncio.Task[ClientConnection]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._connection = task.result()
            self._idle.clear()

    async def _borrowed(self, connection: ClientConnection, count: int) -> list[Channel]:
        channels: list[Channel] = []
        while self._idle and len(channels) < count:
            channel = self._idle.pop()
            if channel.is_open:
                channels.append(channel)
        try:
            opened = await asyncio.gather(
                *(connection.open_channel() for _ in range(count - len(channels))), return_exceptions=True
            )
        except asyncio.CancelledError:
            for channel in channels:
                channel.close_soon()
            raise
        channels += (one for one in opened if isinstance(one, Channel))
        failed = [one for one in opened if isinstance(one, BaseException)]
        if failed and not channels:
            raise failed[0]
        return channels

    def _return_channels(self, connection: ClientConnection, channels: Sequence[Channel]) -> None:
        for channel in channels:
            if connection is self._connection and len(self._idle) < IDLE_CHANNELS_MAX:
                self._idle.append(channel)
            else:
                channel.close_soon()

    @contextlib.contextmanager
    def translated_errors(self, within_s: float | None = None) -> Iterator[None]:
        """Turns the client's errors into an AdminError that names the broker; its connect errors do so themselves."""
        try:
            yield
        except SettingsError:
            raise  # no request was made: a file of the TLS settings cannot be used
        except AuthenticationError as error:
            raise Denied(f"the broker refuses the login: {error}") from error
        except ConnectError as error:
            raise Unreachable(f"the broker cannot be reached: {error}") from error
        except ChannelClosed as error:
            reason = plain_reason(error)
            if reason == str(error):
                reason = f"the broker at {self.where} says {error.reply_code} {error.reply_text}"
            raise Refused(reason, status=error.reply_code) from error
        except (Nacked, Unroutable) as error:
            raise Refused(
                f"the broker at {self.where} did not accept the message: {error}", status=0
            ) from error
        except ClientError as error:
            raise Unreachable(f"the broker at {self.where}: {error}") from error
        except TimeoutError as error:
            if within_s is None:
                raise
            raise Unreachable(f"the broker at {self.where}: no answer within {within_s:g} s") from error

    @property
    def where(self) -> str:
        place = self.places[0] if self._connection is None else self._connection.settings
        return place.address


LOCK_AGAIN_S = 5.0
"""Seconds to try for the lock that a lost connection of ours held: a killed one is gone in milliseconds."""


class Locks:
    """Of one link. A lock that was lost with its connection is acquired again before the next change to its group. If
    another process has it then, no further change is made."""

    def __init__(self, link: AmqpLink) -> None:
        self._link = link
        self._held: dict[str, ClientConnection | None] = {}
        self._permissions = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def of(self, group: str) -> AsyncIterator[None]:
        """Holds the lock of `group`. Raises Busy while another caller does, here or elsewhere, and SpecError for what
        cannot be a group's name."""
        Names(group)
        if group in self._held:
            raise Busy(group)
        self._held[group] = None
        try:
            await self._acquire(group)
            yield
        finally:
            if self._held.pop(group) is not None:
                await self._release(_lock_of(group))

    @contextlib.asynccontextmanager
    async def of_permissions(self, group: str) -> AsyncIterator[None]:
        """Holds the lock of all permissions in the virtual host, for a change of `group`: a user's are read and written
        as a whole, also what other groups have taken out of them. Raises Busy when others have it for `LOCK_S`."""
        async with self._permissions:
            await self._declare(_PERMISSIONS, group, within_s=LOCK_S)
            try:
                yield
            finally:
                await self._release(_PERMISSIONS)

    async def renew(self, group: str) -> bool:
        """Acquires a lost lock again, and is True then: another caller may have had it. Does nothing for a group that
        is not locked here. Raises Busy."""
        if group not in self._held:
            return False
        holder = self._held[group]
        if holder is None:
            raise Busy(group)
        if is_lost := not holder.is_open:
            await self._acquire(group, within_s=LOCK_AGAIN_S)
        return is_lost

    async def _acquire(self, group: str, *, within_s: float = 0.0) -> None:
        self._held[group] = None
        self._held[group] = await self._declare(_lock_of(group), group, within_s=within_s)

    async def _declare(self, lock: str, group: str, *, within_s: float) -> ClientConnection:
        with self._link.translated_errors(REQUEST_S):
            async with asyncio.timeout(REQUEST_S):
                connection = await self._link.connection()
                await _declare_lock(connection, lock, group, within_s=within_s)
        return connection

    async def _release(self, lock: str) -> None:
        """If it cannot be released, its connection is lost, and the lock with it."""
        with contextlib.suppress(AdminError):
            async with self._link.channel(within_s=CLOSE_S) as channel:
                await channel.queue_delete(lock)


_PERMISSIONS = "lbg._permissions"
"""A group's name has no `_`."""

LOCK_S = 10.0
"""To wait for a lock: a change of the number of queues holds its group's for each of its steps."""


async def hold_lock(connection: ClientConnection, group: str) -> None:
    """Holds the lock of `group` for as long as this connection is open: who works over it has no lock to lose. Raises
    Busy when another client has the lock for longer than a step of a change, and ClientError."""
    await _declare_lock(connection, _lock_of(group), group, within_s=LOCK_S)


async def _declare_lock(connection: ClientConnection, lock: str, group: str, *, within_s: float) -> None:
    """The connection has the lock from then on, unless this raises: Busy when another one has it, and ClientError."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while True:
        channel = await connection.open_channel()
        try:
            await channel.queue_declare(lock, exclusive=True)
            channel.close_soon()
            return
        except ChannelClosed as error:
            if not isinstance(error, ResourceLocked):
                raise
            if loop.time() >= deadline:
                raise Busy(group) from error
        except BaseException:
            # The broker may declare it still: once it has closed the channel, it has done so or never will.
            with contextlib.suppress(ClientError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await channel.close()
                    channel = await connection.open_channel()
                    await channel.queue_delete(lock)
                    channel.close_soon()
            raise
        await asyncio.sleep(0.05)


def _lock_of(group: str) -> str:
    return f"{Names(group).exchange}.provisioning"


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
