"""One connection to the broker for all administrative callers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

from lbg_core.admin.errors import (
    Denied,
    Refused,
    Unreachable,
    plain_reason,
)
from lbg_core.client import (
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

REQUEST_S = 30.0
"""Time limit of the requests on one borrowed channel. A quorum queue without a majority may never answer."""

CHANNELS_MAX = 512
"""At most so many callers are served at a time: RabbitMQ allows 2,047 channels by default."""

IDLE_CHANNELS_MAX = 64
CLOSE_S = 5.0


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
