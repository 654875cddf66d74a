"""Streams of a group over AMQP: their entries as they come, from the first one, from an offset or from a snapshot on.

Members and administrators follow the parked keys (`lbg_core.group.parked_keys`) and the change of a group's number of
queues (`lbg_core.group.key_moves`) with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar

from lbg_core.client import BasicProperties, Channel, ClientConnection, Delivery
from lbg_core.client.retransmit import ANSWER_S
from lbg_core.group.errors import EntryError
from lbg_core.group.json_codec import EntryCodec
from lbg_core.group.parked_keys import Entry
from lbg_core.group.parked_snapshot import FIRST_ENTRY_S, SnapshotMissing, SnapshotPlace, SnapshotReader

T = TypeVar("T")
Order = Callable[[Iterable[T]], Iterable[T]]

READ_AHEAD_MESSAGES = 2000
"""Entries that the broker sends before they are acknowledged; an acknowledgement in a stream only asks for more."""

FIRST = "first"


def entry_properties() -> BasicProperties:
    """Properties of an entry that is published."""
    return BasicProperties(content_type="application/json", delivery_mode=2)


class StreamFollower(Generic[T]):
    """Reads `stream` from `follow` to `stop`, over one channel at a time: what another one delivers is dropped.

    `on_read` gets the entries with their deliveries, in the stream's order. `on_unreadable` gets the error for a
    message that is no entry: neither what came with it is read, nor what comes later. `on_cancelled` is called when the
    stream is deleted. `watch` gets the channel once it consumes.
    """

    def __init__(
        self,
        connection: ClientConnection,
        stream: str,
        codec: EntryCodec[T],
        *,
        on_read: Callable[[list[tuple[T, Delivery]]], None],
        on_unreadable: Callable[[EntryError], None],
        on_cancelled: Callable[[], None] = lambda: None,
        watch: Callable[[Channel], None] = lambda channel: None,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._codec = codec
        self._on_read = on_read
        self._on_unreadable = on_unreadable
        self._on_cancelled = on_cancelled
        self._watch = watch
        self._channel: Channel | None = None
        self._stops = 0
        self._order: Order[T] = iter
        self.failure: EntryError | None = None
        """The error that ended the reading."""
        self._awaited: list[tuple[T, asyncio.Future[None]]] = []
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the first entries of this `follow` were read; raises what `order` does."""

    async def follow(self, offset: str | int = FIRST, *, order: Order[T] = iter) -> None:
        """Reads from here on. `order` gets the entries, and yields them as they are to be read. Raises NotFound without
        the stream, and ClientError."""
        self.stop()
        self.failure = None
        self._order, self.begun = order, asyncio.get_running_loop().create_future()
        stops = self._stops
        channel = await self._connection.open_channel()
        if stops != self._stops:
            channel.close_soon()
            return
        self._channel = channel
        await channel.consume(
            self._stream,
            lambda deliveries: self._on_deliveries(channel, deliveries),
            prefetch_count=READ_AHEAD_MESSAGES,
            arguments={"x-stream-offset": offset},
            on_cancelled=lambda: self._cancelled(channel),
        )
        self._watch(channel)

    def stop(self) -> None:
        self._stops += 1
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close_soon()

    async def read_up_to(self, barrier: T, write: Callable[[], Awaitable[None]]) -> None:
        """Writes a barrier by `write`, and returns when it is read: so is all that was confirmed before. Raises
        TimeoutError, EntryError, and what `write` raises."""
        if self.failure is not None:
            raise self.failure
        awaited = barrier, asyncio.get_running_loop().create_future()
        self._awaited.append(awaited)
        try:
            async with asyncio.timeout(ANSWER_S):
                await write()
                await awaited[1]
        finally:
            self._awaited.remove(awaited)

    def _on_deliveries(self, channel: Channel, deliveries: list[Delivery]) -> None:
        if channel is not self._channel:
            return
        channel.ack(deliveries[-1].delivery_tag, multiple=True)
        try:
            read = [
                (entry, one) for one in deliveries for entry in self._order([self._codec.decode(one.body)])
            ]
        except SnapshotMissing as error:
            if not self.begun.done():
                self.begun.set_exception(error)
            return
        except EntryError as error:
            self.failure, read = error, []
            self.stop()
            for _, future in self._awaited:
                if not future.done():
                    future.set_exception(error)
            self._on_unreadable(error)
        if not self.begun.done():
            self.begun.set_result(None)
        if read:
            self._on_read(read)
        for barrier, future in self._awaited:
            if not future.done() and any(entry == barrier for entry, _ in read):
                future.set_result(None)

    def _cancelled(self, channel: Channel) -> None:
        if channel is self._channel:
            self.stop()
            self._on_cancelled()


async def follow_parked(follower: StreamFollower[Entry], place: SnapshotPlace | None) -> bool:
    """Follows the parked keys from the snapshot at `place` on. False if there is none: then all of the stream is read.
    Raises ClientError."""
    if place is None:
        await follower.follow()
        return True
    await follower.follow(place.offset, order=SnapshotReader(place).read)
    try:
        async with asyncio.timeout(FIRST_ENTRY_S):
            await follower.begun
    except (SnapshotMissing, TimeoutError):
        await follower.follow()
        return False
    return True
