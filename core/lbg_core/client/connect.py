"""Connecting: one attempt at one address or at several, and the reconnect loop."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Self

from lbg_core.amqp import Table
from lbg_core.client.backoff import Backoff
from lbg_core.client.connection import ClientConnection
from lbg_core.client.errors import ConnectError, CredentialsUnreadable, NoListener, SettingsError, TlsError
from lbg_core.client.settings import ConnectionSettings, permitted
from lbg_core.peers import system_reason


async def connect(
    where: ConnectionSettings | str,
    *,
    name: str = "lbg",
    heartbeat_s: int | None = None,
    client_properties: Table | None = None,
) -> ClientConnection:
    """One attempt to open a connection. `name` is what operators see; `heartbeat_s` overrides the settings.

    The login and the TLS files are read now. Raises `SettingsError` or a `ConnectError`.
    """
    settings = ConnectionSettings.parse(where) if isinstance(where, str) else where
    if heartbeat_s is not None:
        settings = replace(settings, heartbeat_s=heartbeat_s)
    settings = await _with_login_of_now(settings)
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


async def connect_any(
    places: Sequence[ConnectionSettings],
    *,
    name: str = "lbg",
    within_s: float = 0.0,
    backoff: Backoff | None = None,
) -> ClientConnection:
    """A connection to the first of `places` that accepts one, tried in turn, again and again for `within_s`.

    Raises `SettingsError`, or a `ConnectError` with the error of each place: at once when a retry cannot help at any
    of them.
    """
    if not places:
        raise SettingsError("no address is given")
    deadline = asyncio.get_running_loop().time() + within_s
    waits = backoff or Backoff()
    rounds = 0
    while True:
        errors: list[ConnectError] = []
        for place in places:
            try:
                return await connect(place, name=name)
            except ConnectError as error:
                errors.append(error)
        rounds += 1
        delay_s = waits.delay_s(rounds)
        is_late = asyncio.get_running_loop().time() + delay_s > deadline
        if is_late or not any(error.retryable for error in errors):
            raise _of_all(errors)
        await asyncio.sleep(delay_s)


def _of_all(errors: Sequence[ConnectError]) -> ConnectError:
    """The one error, or one with the texts of all; its kind is that of an error that an operator has to repair."""
    if len(errors) == 1:
        return errors[0]
    telling = next((error for error in errors if not error.retryable), None)
    return (type(telling) if telling is not None else ConnectError)("; ".join(map(str, errors)))


async def _with_login_of_now(settings: ConnectionSettings) -> ConnectionSettings:
    if settings.credentials is None:
        return settings
    try:
        async with asyncio.timeout(settings.connect_timeout_s):
            login = await asyncio.to_thread(settings.credentials)
    except TimeoutError:
        text = f"no user and password within {settings.connect_timeout_s:g} s"
        raise CredentialsUnreadable(f"{settings.address}: {text}") from None
    except Exception as error:
        text = f"user and password cannot be read: {_why(error)}"
        raise CredentialsUnreadable(f"{settings.address}: {text}") from error
    return replace(settings, username=login.username, password=login.password)


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


async def _open_transport(
    made: Callable[[], ClientConnection], settings: ConnectionSettings, context: ssl.SSLContext | None
) -> None:
    server_name = None
    if settings.tls is not None:
        server_name = settings.tls.server_name or settings.host
    try:
        await _create_connection(made, settings, context, server_name)
    except ssl.SSLCertVerificationError as error:
        raise TlsError(f"{settings.address}: the broker's certificate: {system_reason(error)}") from None
    except ssl.SSLError as error:
        raise TlsError(f"{settings.address}: {system_reason(error)}") from None
    except OSError as error:
        kind = NoListener if error.errno == errno.ECONNREFUSED else ConnectError
        raise kind(f"{settings.address}: {system_reason(error)}") from None


async def _create_connection(
    made: Callable[[], ClientConnection],
    settings: ConnectionSettings,
    context: ssl.SSLContext | None,
    server_name: str | None,
) -> None:
    """Raises OSError: with `permits` of the last address that is permitted."""
    loop = asyncio.get_running_loop()
    addresses = [settings.host]
    if settings.permits is not None:
        found = await loop.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        addresses = permitted([str(one[4][0]) for one in found], settings.permits)
    for address in addresses:
        try:
            await loop.create_connection(
                made, address, settings.port, ssl=context, server_hostname=server_name
            )
        except OSError:
            if address == addresses[-1]:
                raise
        else:
            return


def _drop(connection: ClientConnection | None, reason: ConnectError | None) -> None:
    if connection is not None:
        connection.abort(reason)
        if connection.opened.done() and not connection.opened.cancelled():
            connection.opened.exception()  # in the error that is being raised


Opener = Callable[[ConnectionSettings], Awaitable[ClientConnection]]
"""Opens a connection to one place. It raises SettingsError or a ConnectError."""


class ReconnectLoop:
    """An endless iterator of live connections; see `reconnect_loop`."""

    def __init__(
        self,
        places: list[ConnectionSettings],
        open_one: Opener,
        backoff: Backoff,
        on_failure: Callable[[ConnectError, float], None] | None,
        uniform: Callable[[], float],
    ) -> None:
        self._places = places
        self._open_one = open_one
        self._backoff = backoff
        self._on_failure = on_failure
        self._uniform = uniform
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
                await asyncio.sleep(self._backoff.delay_s(self._failures, self._uniform))
            place = self._places[self._next % len(self._places)]
            try:
                self._current = await self._open(place)
            except ConnectError as error:
                refusals = 0 if error.retryable else refusals + 1
                if not self._was_open and refusals >= len(self._places):
                    raise
                self._next += 1
                self._failures += 1
                if self._on_failure is not None:
                    self._on_failure(error, self._backoff.delay_s(self._failures, self._uniform))
                continue
            self._was_open = True
            self._opened_at = asyncio.get_running_loop().time()
            return self._current

    async def _open(self, place: ConnectionSettings) -> ClientConnection:
        try:
            return await self._open_one(place)
        except SettingsError as error:
            if not self._was_open:
                raise
            # Certificate and key were readable before: they are being replaced, one file after the other.
            raise TlsError(f"{place.address}: {error}") from error

    async def _leave_current(self) -> None:
        if self._current is None:
            return
        await self._current.close()
        # A broker that accepts and then drops at once counts as failing.
        lived_s = asyncio.get_running_loop().time() - self._opened_at
        self._failures = 1 if lived_s > self._backoff.max_s else self._failures + 1
        self._next += 1
        self._current = None


def reconnect_loop(
    where: ConnectionSettings | str | Iterable[ConnectionSettings | str],
    *,
    name: str = "lbg",
    heartbeat_s: int | None = None,
    client_properties: Table | None = None,
    backoff: Backoff | None = None,
    on_failure: Callable[[ConnectError, float], None] | None = None,
    open_one: Opener | None = None,
    uniform: Callable[[], float] = random.random,
) -> ReconnectLoop:
    """Yield a live connection each time round; the last one is closed first if it still lives.

    ::

        async for connection in reconnect_loop(urls):
            channel = await connection.open_channel()
            ...
            await connection.closed

    Several addresses are tried in turn. Between attempts it waits by `backoff`, and calls `on_failure` with
    the error and the longest wait that follows. An attempt that would fail the same way again (login refused,
    certificate wrong, at every address) raises its `ConnectError` as long as there has been no connection at all;
    later it is retried too, because a broker that restarts may refuse for a while, and because a new password or
    certificate is on its way to every client while the broker has it already. A caller that breaks out of the loop
    owns the last connection.

    `open_one` opens a connection in the place of `connect`, and `uniform` gives the chance of `Backoff.delay_s`.
    """
    items = [where] if isinstance(where, str | ConnectionSettings) else list(where)
    if not items:
        raise SettingsError("no address is given")
    places = [ConnectionSettings.parse(item) if isinstance(item, str) else item for item in items]

    if open_one is None:
        open_one = partial(connect, name=name, heartbeat_s=heartbeat_s, client_properties=client_properties)
    return ReconnectLoop(places, open_one, backoff or Backoff(), on_failure, uniform)
