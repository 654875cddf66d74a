"""Publishing with confirms: one future for each message, and back-pressure in bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from lbg_core.amqp import BasicProperties
from lbg_core.client.channel import Channel
from lbg_core.client.connection import ClientConnection
from lbg_core.client.errors import ClientError, Nacked, Unroutable
from lbg_core.client.messages import Returned
from lbg_core.client.retransmit import OpenTags

UNCONFIRMED_MAX_BYTES = 8 * 1024 * 1024


@dataclass(slots=True)
class _PendingConfirm:
    tag: int
    confirmed: asyncio.Future[None]
    size_bytes: int
    message: tuple[str, str, bytes] | None  # exchange, routing key and body, of a mandatory one
    returned: Returned | None = None


class ConfirmingPublisher:
    """Publishes on a channel of its own, which must be in confirm mode: use `Publisher.open`.

    At most `max_unconfirmed_bytes` of bodies and properties are on the way: beyond, `publish` and `drain` wait,
    as they do while the transport is full or the broker blocks publishers. `publish_soon` never waits.
    """

    def __init__(self, channel: Channel, *, max_unconfirmed_bytes: int = UNCONFIRMED_MAX_BYTES) -> None:
        if not channel.is_confirming:
            raise ClientError("a publisher needs a channel on which confirm_select was awaited")
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._max_unconfirmed_bytes = max_unconfirmed_bytes
        self._unconfirmed = OpenTags[_PendingConfirm]()
        self._mandatory: dict[tuple[str, str, bytes], deque[_PendingConfirm]] = {}
        self._room = asyncio.Event()
        self._room.set()
        self.unconfirmed_bytes = 0
        channel.on_confirm = self._on_confirm
        channel.on_return = self._on_return
        channel.closed.add_done_callback(self._on_closed)

    @classmethod
    async def open(
        cls, connection: ClientConnection, *, max_unconfirmed_bytes: int = UNCONFIRMED_MAX_BYTES
    ) -> ConfirmingPublisher:
        """A publisher on a new channel. Raises `ConnectionLost`."""
        channel = await connection.open_channel()
        await channel.confirm_select()
        return cls(channel, max_unconfirmed_bytes=max_unconfirmed_bytes)

    @property
    def channel(self) -> Channel:
        return self._channel

    @property
    def has_room(self) -> bool:
        """Less than `max_unconfirmed_bytes` are on the way."""
        return self._room.is_set()

    @property
    def unconfirmed_count(self) -> int:
        return len(self._unconfirmed)

    async def publish(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        *,
        properties: BasicProperties | None = None,
        header: bytes | None = None,
        mandatory: bool = False,
    ) -> None:
        """Publish and await the confirm.

        Raises `Nacked`, `Unroutable` (mandatory only), `ChannelClosed` or `ConnectionLost`; after the last two it
        is not known whether the message arrived. Cancelling does not take the message back.
        """
        await self.drain()
        await self.publish_soon(
            exchange, routing_key, body, properties=properties, header=header, mandatory=mandatory
        )

    def publish_soon(
        self,
        exchange: str,
        routing_key: str,
        body: bytes,
        *,
        properties: BasicProperties | None = None,
        header: bytes | None = None,
        mandatory: bool = False,
    ) -> asyncio.Future[None]:
        """Publish at the end of the loop turn; the future is the confirm and fails as `publish` does."""
        if header is None:
            header = properties.encode() if properties is not None else b"\x00\x00"
        tag = self._channel.publish(exchange, routing_key, body, header=header, mandatory=mandatory)
        confirmed = self._loop.create_future()
        size_bytes = len(body) + len(header)
        message = (exchange, routing_key, body) if mandatory else None
        entry = _PendingConfirm(tag, confirmed, size_bytes, message)
        self._unconfirmed.sent(tag, entry)
        if message is not None:
            self._mandatory.setdefault(message, deque()).append(entry)
        self.unconfirmed_bytes += size_bytes
        if self.unconfirmed_bytes >= self._max_unconfirmed_bytes:
            self._room.clear()
        return confirmed

    async def drain(self) -> None:
        """Wait until there is room for more. Raises `ChannelClosed` or `ConnectionLost`."""
        while True:
            await self._channel.drain()
            if self._room.is_set():
                return
            await self._room.wait()

    async def flush(self) -> None:
        """Wait until everything published so far is confirmed, refused or lost. Raises nothing for them."""
        waiting = [entry.confirmed for entry in self._unconfirmed.open]
        if waiting:
            await asyncio.wait(waiting)

    def _on_confirm(self, tag: int, multiple: bool, ok: bool) -> None:
        for entry in self._unconfirmed.answered(tag, multiple=multiple):
            self._settle(entry, ok)
        if self.unconfirmed_bytes < self._max_unconfirmed_bytes and not self._room.is_set():
            self._room.set()

    def _settle(self, entry: _PendingConfirm, ok: bool) -> None:
        self.unconfirmed_bytes -= entry.size_bytes
        if entry.message is not None:
            self._forget_mandatory(entry.message, entry)
        if entry.confirmed.done():  # the waiting caller was cancelled
            return
        if not ok:
            entry.confirmed.set_exception(Nacked(entry.tag))
        elif entry.returned is not None:
            entry.confirmed.set_exception(Unroutable(entry.returned))
        else:
            entry.confirmed.set_result(None)

    def _on_return(self, returned: Returned) -> None:
        # A return carries no delivery tag. It comes before its confirm, and of equal messages on the way the
        # first is as good as any: they went to the same place.
        same = self._mandatory.get((returned.exchange, returned.routing_key, returned.body), ())
        for entry in same:
            if entry.returned is None:
                entry.returned = returned
                return

    def _forget_mandatory(self, message: tuple[str, str, bytes], entry: _PendingConfirm) -> None:
        same = self._mandatory[message]
        if same[0] is entry:
            same.popleft()
        else:
            same.remove(entry)
        if not same:
            del self._mandatory[message]

    def _on_closed(self, closed: asyncio.Future[ClientError | None]) -> None:
        error = closed.result() or self._channel.why_closed()
        entries = self._unconfirmed.clear()
        self._mandatory.clear()
        self.unconfirmed_bytes = 0
        self._room.set()
        for entry in entries:
            if not entry.confirmed.done():
                entry.confirmed.set_exception(error)
                entry.confirmed.exception()  # one error, reported by the connection: not once more for each message
