"""The half of `BrokerAdmin` that AMQP can do: declare, bind, delete, count, read the record, listen to beats."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence

from lbg_broker.amqp import BasicProperties
from lbg_broker.client import (
    AuthenticationError,
    Channel,
    ChannelClosed,
    ClientConnection,
    ClientError,
    ConnectError,
    ConnectionSettings,
    Delivery,
    Nacked,
    NotFound,
    Publisher,
    ResourceLocked,
    SettingsError,
    Unroutable,
    connect_any,
)
from lbg_broker.group import TO_ALL, Engine, Names, SpecError
from lbg_broker.group.topology import Binding, Exchange, Queue

from .admin import Beat
from .errors import Busy, Denied, GroupNotFound, Refused, StillInUse, Unreachable, Unsupported
from .observed import QueueSeen
from .reading import read_record

# A look at an empty record queue should not take as long as a member's patient read of it.
RECORD_LOOKS = 10
PERSISTENT = 2
BINDING_CHANNELS = 16
LOCK_AGAIN_S = 5.0
"""How long to try for the lock that a lost connection of ours held: a killed one is gone in milliseconds."""


class AmqpSide:
    """One connection, made when it is first needed and again when it was lost, at the first place that takes it."""

    def __init__(self, places: Sequence[ConnectionSettings]) -> None:
        self._places = places
        self._connection: ClientConnection | None = None
        self._channel: Channel | None = None
        self._side: list[Channel] = []
        self._locked: str | None = None

    async def engine(self) -> Engine:
        """What the broker is. Raises Unsupported for one that cannot carry a group."""
        async with self._open() as channel:
            said = self._server_properties(channel)
        try:
            return Engine.parse(said["product"], said["version"])
        except SpecError as error:
            raise Unsupported(f"the broker at {self._where} cannot carry a group: {error}") from error

    async def lock(self, group: str) -> None:
        """Hold an exclusive queue for as long as the connection lives: RabbitMQ answers 405 to everybody else."""
        try:
            async with self._open() as channel:
                await channel.queue_declare(f"{Names(group).exchange}.provisioning", exclusive=True)
        except Refused as error:
            if isinstance(error.__cause__, ResourceLocked):
                raise Busy(group) from error
            raise
        self._locked = group

    async def counts(self, queue: str) -> QueueSeen | None:
        """Ready messages and consumers of a queue as the broker counts them now; None when there is none."""
        try:
            async with self._open() as channel:
                answer = await channel.queue_declare(queue, passive=True)
        except Refused as error:
            if isinstance(error.__cause__, NotFound):
                return None
            raise
        return QueueSeen(ready=answer.message_count, consumers=answer.consumer_count)

    async def has_exchange(self, name: str) -> bool:
        try:
            async with self._open() as channel:
                await channel.exchange_declare(name, passive=True)
        except Refused as error:
            if isinstance(error.__cause__, NotFound):
                return False
            raise
        return True

    async def record(self, group: str) -> str | None:
        """The text of the group's record; None when its queue is missing or stays empty."""
        try:
            async with self._open() as channel:
                return await read_record(channel, group, looks=RECORD_LOOKS)
        except GroupNotFound:
            return None

    async def declare_exchange(self, exchange: Exchange) -> None:
        async with self._open() as channel:
            await channel.exchange_declare(
                exchange.name, exchange.type, durable=True, arguments=dict(exchange.arguments)
            )

    async def declare_queue(self, queue: Queue) -> None:
        async with self._open() as channel:
            await channel.queue_declare(queue.name, durable=queue.durable, arguments=dict(queue.arguments))

    async def bind(self, bindings: Sequence[Binding]) -> None:
        """Over several channels: a channel's next request waits until its last one is on the broker's disk."""
        async with self._open():
            channels = await self._side_channels(min(BINDING_CHANNELS, len(bindings)))
            asked = [
                channels[number % len(channels)].queue_bind(one.queue, one.exchange, one.routing_key)
                for number, one in enumerate(bindings)
            ]
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer

    async def unbind(self, bindings: Sequence[Binding]) -> None:
        for one in bindings:
            async with self._missing_is_fine(), self._open() as channel:
                await channel.queue_unbind(one.queue, one.exchange, one.routing_key)

    async def delete_exchange(self, name: str) -> None:
        async with self._missing_is_fine(), self._open() as channel:
            await channel.exchange_delete(name)

    async def delete_queue(self, name: str, *, only_idle: bool, checked_by_broker: bool) -> None:
        """Delete; with `only_idle` a queue with messages or consumers raises StillInUse.

        RabbitMQ cannot check a quorum queue itself (it closes the connection with 540), so there it is asked
        just before, which is enough once its exchange is gone.
        """
        if only_idle:
            seen = await self.counts(name)
            if seen is None:
                return
            if seen.ready or seen.consumers:
                raise StillInUse(
                    name.split(".")[1], [f"{name} has {seen.ready} messages, {seen.consumers} consumers"]
                )
        checks = only_idle and checked_by_broker
        async with self._missing_is_fine(), self._open() as channel:
            await channel.queue_delete(name, if_unused=checks, if_empty=checks)

    async def write_record(self, group: str, text: str) -> None:
        """The record's queue has room for one message: this one takes the place of the one that was there."""
        properties = BasicProperties(content_type="application/json", delivery_mode=PERSISTENT)
        async with self._open() as channel:
            publisher = Publisher(channel)
            await publisher.publish(
                "", Names(group).config, text.encode(), properties=properties, mandatory=True
            )

    async def listen(self, group: str, *, seconds: float) -> Sequence[Beat]:
        """What members say to all within `seconds`: their beats."""
        beats: list[Beat] = []

        def hear(deliveries: list[Delivery]) -> None:
            for delivery in deliveries:
                with contextlib.suppress(ValueError):
                    message = json.loads(bytes(delivery.body))
                    if isinstance(message, dict) and message.get("type") == "beat":
                        beats.append(message)

        async with self._open() as channel:
            queue = (await channel.queue_declare(exclusive=True, auto_delete=True)).queue
            await channel.queue_bind(queue, Names(group).members, TO_ALL)
            tag = await channel.consume(queue, hear, no_ack=True)
            await asyncio.sleep(seconds)
            await channel.cancel(tag)
        return beats

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[Channel]:
        """An open channel; what the client raises inside becomes an AdminError that names the broker.

        Its connect errors name the broker themselves.
        """
        try:
            yield await self._open_channel()
        except SettingsError:
            raise  # nothing was asked of a broker: a file of the TLS settings cannot be used
        except AuthenticationError as error:
            raise Denied(f"the broker refuses the login: {error}") from error
        except ConnectError as error:
            raise Unreachable(f"the broker cannot be reached: {error}") from error
        except ChannelClosed as error:
            raise Refused(
                f"the broker at {self._where} says {error.reply_code} {error.reply_text}",
                status=error.reply_code,
            ) from error
        except (Nacked, Unroutable) as error:
            raise Refused(
                f"the broker at {self._where} did not take the message: {error}", status=0
            ) from error
        except ClientError as error:
            raise Unreachable(f"the broker at {self._where}: {error}") from error

    async def _open_channel(self) -> Channel:
        if self._connection is None or not self._connection.is_open:
            self._connection = await connect_any(self._places, name="lbg provisioning")
            self._channel = None
            if self._locked is not None:
                await self._lock_again(self._locked)
        if self._channel is None or not self._channel.is_open:
            self._channel = await self._connection.open_channel()
            await self._channel.confirm_select()
        return self._channel

    async def _lock_again(self, group: str) -> None:
        """After a lost connection, for which a busy broker may hold the lock a little longer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + LOCK_AGAIN_S
        while True:
            try:
                return await self.lock(group)
            except Busy:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(0.05)

    async def _side_channels(self, count: int) -> list[Channel]:
        assert self._connection is not None
        self._side = [channel for channel in self._side if channel.is_open]
        missing = [self._connection.open_channel() for _ in range(count - len(self._side))]
        self._side += await asyncio.gather(*missing)
        return self._side[:count]

    @property
    def _where(self) -> str:
        place = self._places[0] if self._connection is None else self._connection.settings
        return place.address

    def _server_properties(self, channel: Channel) -> dict[str, str]:
        assert self._connection is not None
        said = self._connection.server_properties
        return {key: str(said.get(key, "")) for key in ("product", "version")}

    @contextlib.asynccontextmanager
    async def _missing_is_fine(self) -> AsyncIterator[None]:
        try:
            yield
        except Refused as error:
            if not isinstance(error.__cause__, NotFound):
                raise
