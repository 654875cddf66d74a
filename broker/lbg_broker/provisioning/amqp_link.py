"""The AMQP connection of a `BrokerAdmin`: one for all its callers, made again when it was lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

from lbg_broker.client import (
    AuthenticationError,
    Channel,
    ChannelClosed,
    ClientConnection,
    ClientError,
    ConnectError,
    ConnectionSettings,
    Nacked,
    SettingsError,
    Unroutable,
    connect_any,
)

from .errors import Denied, Refused, Unreachable

REQUEST_S = 30.0
"""For what is asked on one borrowed channel. A quorum queue without a majority may never answer."""

CHANNELS_MAX = 512
"""At most so many callers are served at a time: RabbitMQ allows 2,047 channels by default."""

IDLE_CHANNELS_MAX = 64
CLOSE_S = 5.0


class AmqpLink:
    """Callers borrow a channel each, so that a slow answer, or a refusal, which closes the channel, is theirs alone.

    Whoever comes while there is no connection waits for the one attempt that is being made, and shares its error:
    a broker that is away costs all callers one timeout and not one each.
    """

    def __init__(self, places: Sequence[ConnectionSettings]) -> None:
        self._places = places
        self._connection: ClientConnection | None = None
        self._connecting: asyncio.Task[ClientConnection] | None = None
        self._idle: list[Channel] = []
        self._room = asyncio.Semaphore(CHANNELS_MAX)
        self._is_closed = False

    async def connection(self) -> ClientConnection:
        """The open connection. Raises AdminError."""
        with self.told_plainly():
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
        with self.told_plainly(within_s):
            async with asyncio.timeout(within_s), self._room:
                connection = await self._connected()
                borrowed = await self._borrowed(connection, count)
                try:
                    yield borrowed
                except BaseException:
                    # What was asked may still be answered: nobody else shall get that answer.
                    for channel in borrowed:
                        channel.close_soon()
                    raise
                self._give_back(connection, borrowed)

    async def close(self, *, timeout_s: float = CLOSE_S) -> None:
        """Whoever waits gets Unreachable; a broker that does not answer is waited for `timeout_s`."""
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
            raise ConnectError("this connection was closed for good")
        if self._connecting is None:
            self._connecting = asyncio.create_task(connect_any(self._places, name="lbg provisioning"))
            self._connecting.add_done_callback(self._on_connected)
        connecting = self._connecting
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            if connecting.cancelled():  # by `close`
                raise ConnectError("this connection was closed for good") from None
            raise

    def _on_connected(self, task: asyncio.Task[ClientConnection]) -> None:
        self._connecting = None
        if not task.cancelled() and task.exception() is None:
            self._connection = task.result()
            self._idle.clear()

    async def _borrowed(self, connection: ClientConnection, count: int) -> list[Channel]:
        found: list[Channel] = []
        while self._idle and len(found) < count:
            channel = self._idle.pop()
            if channel.is_open:
                found.append(channel)
        try:
            opened = await asyncio.gather(
                *(connection.open_channel() for _ in range(count - len(found))), return_exceptions=True
            )
        except asyncio.CancelledError:
            for channel in found:
                channel.close_soon()
            raise
        found += (one for one in opened if isinstance(one, Channel))
        failed = [one for one in opened if isinstance(one, BaseException)]
        if failed and not found:
            raise failed[0]
        return found

    def _give_back(self, connection: ClientConnection, channels: Sequence[Channel]) -> None:
        for channel in channels:
            if connection is self._connection and len(self._idle) < IDLE_CHANNELS_MAX:
                self._idle.append(channel)
            else:
                channel.close_soon()

    @contextlib.contextmanager
    def told_plainly(self, within_s: float | None = None) -> Iterator[None]:
        """What the client raises becomes an AdminError that names the broker; its connect errors do so themselves."""
        try:
            yield
        except SettingsError:
            raise  # nothing was asked of a broker: a file of the TLS settings cannot be used
        except AuthenticationError as error:
            raise Denied(f"the broker refuses the login: {error}") from error
        except ConnectError as error:
            raise Unreachable(f"the broker cannot be reached: {error}") from error
        except ChannelClosed as error:
            raise Refused(
                f"the broker at {self.where} says {error.reply_code} {error.reply_text}",
                status=error.reply_code,
            ) from error
        except (Nacked, Unroutable) as error:
            raise Refused(
                f"the broker at {self.where} did not take the message: {error}", status=0
            ) from error
        except ClientError as error:
            raise Unreachable(f"the broker at {self.where}: {error}") from error
        except TimeoutError as error:
            if within_s is None:
                raise
            raise Unreachable(f"the broker at {self.where}: no answer within {within_s:g} s") from error

    @property
    def where(self) -> str:
        place = self._places[0] if self._connection is None else self._connection.settings
        return place.address
