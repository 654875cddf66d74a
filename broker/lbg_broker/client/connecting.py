"""Connecting: one attempt, or again and again."""

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Self

from lbg_broker.amqp import Table
from lbg_broker.client.backoff import Backoff
from lbg_broker.client.connection import ClientConnection
from lbg_broker.client.errors import ConnectError, SettingsError, TlsError
from lbg_broker.client.settings import ConnectionSettings

__all__ = ["Reconnecting", "connect", "reconnecting"]


async def connect(
    where: ConnectionSettings | str,
    *,
    name: str = "lbg",
    heartbeat_s: int | None = None,
    client_properties: Table | None = None,
) -> ClientConnection:
    """One attempt to open a connection. `name` is what operators see; `heartbeat_s` overrides the settings.

    Raises `SettingsError` or a `ConnectError`.
    """
    settings = ConnectionSettings.parse(where) if isinstance(where, str) else where
    if heartbeat_s is not None:
        settings = replace(settings, heartbeat_s=heartbeat_s)
    context = settings.tls.context() if settings.tls is not None else None
    connection: ClientConnection | None = None

    def made() -> ClientConnection:
        nonlocal connection
        connection = ClientConnection(settings, name=name, properties=client_properties)
        return connection

    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            await _open_transport(made, settings, context)
            assert connection is not None
            await connection.opened
    except TimeoutError:
        text = f"{settings.address}: no connection within {settings.connect_timeout_s:g} s"
        error = ConnectError(text)
        _drop(connection, error)
        raise error from None
    except BaseException:
        _drop(connection, None)
        raise
    return connection


async def _open_transport(
    made: Callable[[], ClientConnection], settings: ConnectionSettings, context: ssl.SSLContext | None
) -> None:
    server_name = None
    if settings.tls is not None:
        server_name = settings.tls.server_name or settings.host
    try:
        await asyncio.get_running_loop().create_connection(
            made, settings.host, settings.port, ssl=context, server_hostname=server_name
        )
    except ssl.SSLCertVerificationError as error:
        raise TlsError(f"{settings.address}: the broker's certificate: {error.verify_message}") from None
    except ssl.SSLError as error:
        raise TlsError(f"{settings.address}: TLS: {error.reason or error}") from None
    except OSError as error:
        # asyncio puts "Connect call failed" in place of the system's word for it.
        reason = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or error
        raise ConnectError(f"{settings.address}: {reason}") from None


def _drop(connection: ClientConnection | None, reason: ConnectError | None) -> None:
    if connection is not None:
        connection.abort(reason)
        if connection.opened.done() and not connection.opened.cancelled():
            connection.opened.exception()  # told by what is being raised


class Reconnecting:
    """An endless iterator of live connections; see `reconnecting`."""

    def __init__(
        self,
        places: list[ConnectionSettings],
        open_one: Callable[[ConnectionSettings], Awaitable[ClientConnection]],
        backoff: Backoff,
        on_failure: Callable[[ConnectError, float], None] | None,
    ) -> None:
        self._places = places
        self._open_one = open_one
        self._backoff = backoff
        self._on_failure = on_failure
        self._next = 0
        self._failures = 0
        self._current: ClientConnection | None = None
        self._opened_at = 0.0
        self._was_open = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ClientConnection:
        await self._leave_current()
        refusals = 0
        while True:
            if self._failures:
                await asyncio.sleep(self._backoff.delay_s(self._failures))
            place = self._places[self._next % len(self._places)]
            try:
                self._current = await self._open_one(place)
            except ConnectError as error:
                refusals = 0 if error.retryable else refusals + 1
                if not self._was_open and refusals >= len(self._places):
                    raise
                self._next += 1
                self._failures += 1
                if self._on_failure is not None:
                    self._on_failure(error, self._backoff.delay_s(self._failures))
                continue
            self._was_open = True
            self._opened_at = asyncio.get_running_loop().time()
            return self._current

    async def _leave_current(self) -> None:
        if self._current is None:
            return
        await self._current.close()
        # A broker that accepts and then drops at once counts as failing.
        lived_s = asyncio.get_running_loop().time() - self._opened_at
        self._failures = 1 if lived_s > self._backoff.max_s else self._failures + 1
        self._next += 1
        self._current = None


def reconnecting(
    where: ConnectionSettings | str | Iterable[ConnectionSettings | str],
    *,
    name: str = "lbg",
    heartbeat_s: int | None = None,
    client_properties: Table | None = None,
    backoff: Backoff | None = None,
    on_failure: Callable[[ConnectError, float], None] | None = None,
) -> Reconnecting:
    """Yield a live connection each time round; the last one is closed first if it still lives.

    ::

        async for connection in reconnecting(urls):
            channel = await connection.open_channel()
            ...
            await connection.closed

    Several addresses are tried in turn. Between attempts it waits as `backoff` says, and calls `on_failure` with
    the error and the longest wait that follows. An attempt that would fail the same way again (login refused,
    certificate wrong, at every address) raises its `ConnectError` as long as there has been no connection at all;
    later it is retried too, because a broker that restarts may refuse for a while. Whoever breaks out of the loop
    owns the last connection.
    """
    items = [where] if isinstance(where, str | ConnectionSettings) else list(where)
    if not items:
        raise SettingsError("no address is given")
    places = [ConnectionSettings.parse(item) if isinstance(item, str) else item for item in items]

    async def open_one(place: ConnectionSettings) -> ClientConnection:
        return await connect(place, name=name, heartbeat_s=heartbeat_s, client_properties=client_properties)

    return Reconnecting(places, open_one, backoff or Backoff(), on_failure)
