"""The half of `BrokerAdmin` that AMQP can do: declare, bind, delete, count, read the record."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence

from lbg_broker.amqp import BasicProperties
from lbg_broker.client import AccessRefused, Channel, ConnectionSettings, NotFound, Publisher
from lbg_broker.group import IDENTITY_BYTES, Engine, Names, SpecError
from lbg_broker.group.topology import Binding, Exchange, Queue

from .amqp_link import AmqpLink
from .errors import GroupNotFound, Refused, StillInUse, Unsupported
from .locking import Locks
from .observed import UNKNOWN, QueueSeen, Unknown
from .reading import read_record

# A look at an empty record queue should not take as long as a member's patient read of it.
RECORD_LOOKS = 10
PERSISTENT = 2
BINDING_CHANNELS = 16


class AmqpSide:
    """What is asked over one link, by any number of callers at a time."""

    def __init__(self, places: Sequence[ConnectionSettings]) -> None:
        self.link = AmqpLink(places)
        self._locks = Locks(self.link)

    def lock(self, group: str) -> contextlib.AbstractAsyncContextManager[None]:
        return self._locks.of(group)

    async def keep_lock(self, group: str) -> None:
        """Have the lock again that is to be held, if it went with a connection. Raises Busy when another has it."""
        await self._locks.keep(group)

    async def engine(self) -> Engine:
        """What the broker is. Raises Unsupported for one that cannot carry a group."""
        said = (await self.link.connection()).server_properties
        try:
            return Engine.announced(said)
        except SpecError as error:
            raise Unsupported(f"the broker at {self.link.where} cannot carry a group: {error}") from error

    async def counts(self, queue: str) -> QueueSeen | Unknown | None:
        """Ready messages and consumers of a queue as the broker counts them now; None when there is none.

        UNKNOWN for a user who may do nothing with a queue of this name: RabbitMQ refuses that one from 4.3 on.
        """
        return (await self.counts_of([queue]))[queue]

    async def counts_of(self, queues: Sequence[str]) -> dict[str, QueueSeen | Unknown | None]:
        """As `counts`, asked for all at once."""
        found: dict[str, QueueSeen | Unknown | None] = {}
        while len(found) < len(queues):
            rest = queues[len(found) :]
            try:
                async with self.link.channel() as channel:
                    asked = [channel.queue_declare(name, passive=True) for name in rest]
                    for name, answer in zip(
                        rest, await asyncio.gather(*asked, return_exceptions=True), strict=True
                    ):
                        if isinstance(answer, BaseException):
                            raise answer
                        found[name] = QueueSeen(ready=answer.message_count, consumers=answer.consumer_count)
            except Refused as error:  # which closed the channel: the rest is asked for again
                found[queues[len(found)]] = _not_seen(error)
        return found

    async def has_exchange(self, name: str) -> bool | Unknown:
        """UNKNOWN as in `counts`."""
        try:
            async with self.link.channel() as channel:
                await channel.exchange_declare(name, passive=True)
        except Refused as error:
            return UNKNOWN if _not_seen(error) is UNKNOWN else False
        return True

    async def record(self, group: str) -> str | None:
        """The text of the group's record; None when its queue is missing or stays empty."""
        try:
            async with self.link.channel() as channel:
                return await read_record(channel, group, looks=RECORD_LOOKS)
        except GroupNotFound:
            return None

    async def declare_exchange(self, exchange: Exchange) -> None:
        async with self._changing(exchange.name) as channel:
            await channel.exchange_declare(
                exchange.name, exchange.type, durable=True, arguments=dict(exchange.arguments)
            )

    async def declare_queue(self, queue: Queue) -> None:
        async with self._changing(queue.name) as channel:
            await channel.queue_declare(queue.name, durable=queue.durable, arguments=dict(queue.arguments))

    async def bind(self, bindings: Sequence[Binding]) -> None:
        """Over several channels: a channel's next request waits until its last one is on the broker's disk."""
        if bindings:
            await self._locks.keep(bindings[0].queue.split(".")[1])
        async with self.link.channels(min(BINDING_CHANNELS, len(bindings)), within_s=None) as channels:
            asked = [
                channels[number % len(channels)].queue_bind(one.queue, one.exchange, one.routing_key)
                for number, one in enumerate(bindings)
            ]
            for answer in await asyncio.gather(*asked, return_exceptions=True):
                if isinstance(answer, BaseException):
                    raise answer

    async def unbind(self, bindings: Sequence[Binding]) -> None:
        for one in bindings:
            async with self._missing_is_fine(), self._changing(one.queue) as channel:
                await channel.queue_unbind(one.queue, one.exchange, one.routing_key)

    async def delete_exchange(self, name: str) -> None:
        async with self._missing_is_fine(), self._changing(name) as channel:
            await channel.exchange_delete(name)

    async def delete_queue(
        self, name: str, *, only_unused: bool, only_empty: bool, checked_by_broker: bool
    ) -> None:
        """Delete; with `only_unused` a queue with consumers raises StillInUse, with `only_empty` one with messages.

        RabbitMQ cannot check a quorum queue itself (it closes the connection with 540), so there it is asked
        just before, which is enough once nothing is published to it any more.
        """
        if only_unused or only_empty:
            seen = await self.counts(name)
            if seen is None:
                return
            if seen is UNKNOWN:
                raise StillInUse(name.split(".")[1], [f"{name} could not be asked"])
            if (seen.ready and only_empty) or (seen.consumers and only_unused):
                raise StillInUse(
                    name.split(".")[1], [f"{name} has {seen.ready} messages, {seen.consumers} consumers"]
                )
        async with self._missing_is_fine(), self._changing(name) as channel:
            await channel.queue_delete(
                name, if_unused=only_unused and checked_by_broker, if_empty=only_empty and checked_by_broker
            )

    async def announce(self, exchange: str, routing_key: str, body: str) -> None:
        """Whoever is not there does not hear it."""
        properties = BasicProperties(content_type="application/json")
        async with self.link.channel() as channel:
            if not channel.is_confirming:
                await channel.confirm_select()
            await Publisher(channel).publish(exchange, routing_key, body.encode(), properties=properties)

    async def write_record(self, group: str, text: str) -> None:
        """The record's queue has room for one message: this one takes the place of the one that was there."""
        properties = BasicProperties(content_type="application/json", delivery_mode=PERSISTENT)
        async with self._changing(Names(group).config) as channel:
            if not channel.is_confirming:
                await channel.confirm_select()
            publisher = Publisher(channel)
            await publisher.publish(
                "", Names(group).config, text.encode(), properties=properties, mandatory=True
            )

    async def own_queue(self) -> str:
        """A new queue for this connection alone, which goes with it; no group's name begins as its name does."""
        name = f"lbg._{secrets.token_hex(IDENTITY_BYTES)}"
        async with self.link.channel() as channel:
            await channel.queue_declare(name, exclusive=True)
        return name

    async def bind_own(self, queue: str, exchanges: Sequence[str], *, key: str) -> dict[str, Refused]:
        """All at once; returns those that cannot be bound to, and why. The first of them closes the channel: what comes
        after it is asked for again."""
        refused: dict[str, Refused] = {}
        rest = list(exchanges)
        while rest:
            bound = 0
            try:
                async with self.link.channel(within_s=None) as channel:
                    asked = [channel.queue_bind(queue, name, key) for name in rest]
                    for answer in await asyncio.gather(*asked, return_exceptions=True):
                        if isinstance(answer, BaseException):
                            raise answer
                        bound += 1
            except Refused as error:
                refused[rest[bound]] = error
            rest = rest[bound + 1 :]
        return refused

    async def unbind_own(self, queue: str, exchanges: Sequence[str], *, key: str) -> None:
        async with self.link.channel(within_s=None) as channel:
            await asyncio.gather(*(channel.queue_unbind(queue, name, key) for name in exchanges))

    async def delete_own(self, queue: str) -> None:
        async with self.link.channel() as channel:
            await channel.queue_delete(queue)

    async def close(self) -> None:
        await self.link.close()

    @contextlib.asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[Channel]:
        """A channel to change what is called `name`: its group's lock is still held, if it was taken."""
        await self._locks.keep(name.split(".")[1])
        async with self.link.channel() as channel:
            yield channel

    @contextlib.asynccontextmanager
    async def _missing_is_fine(self) -> AsyncIterator[None]:
        try:
            yield
        except Refused as error:
            if not isinstance(error.__cause__, NotFound):
                raise


def _not_seen(error: Refused) -> Unknown | None:
    """What the refusal of a look says of what was looked at: not there, or not for this user. Raises any other."""
    if isinstance(error.__cause__, NotFound):
        return None
    if isinstance(error.__cause__, AccessRefused):
        return UNKNOWN
    raise error
