"""Connecting: one attempt at one place, or at several in turn."""

import asyncio
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import replace

from lbg_broker.amqp import Table
from lbg_broker.client.backoff import Backoff
from lbg_broker.client.connection import ClientConnection
from lbg_broker.client.errors import ConnectError, CredentialsUnreadable, SettingsError, TlsError
from lbg_broker.client.settings import ConnectionSettings

__all__ = ["connect", "connect_any"]


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
    """A connection to the first of `places` that takes one, tried in turn, again and again for `within_s`.

    Raises `SettingsError`, or a `ConnectError` that tells what each place said: at once when trying again cannot
    help at any of them.
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
    """The one error, or one with the words of all; its kind is that of one that somebody has to repair."""
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
