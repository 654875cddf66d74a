"""The embedded broker as a process: server, management API, reloaded files, signals."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from lbg_broker.reload import WatchedFile, administrator_accounts, read_administrator
from lbg_broker.server import Server
from lbg_broker.settings import Address, AdministratorFiles, ServerSettings, StartError, TlsSettings
from lbg_broker.store import StoreError
from lbg_core.peers import listen_reason, log_accept_errors, raise_descriptor_limit


@asynccontextmanager
async def running(settings: ServerSettings) -> AsyncIterator[Server]:
    """A broker, with its management API if that is set, while the block lasts. Raises `StartError`."""
    certificate = WatchedFile("the certificate", _certificate_files(settings.tls))
    login = WatchedFile("the administrator's login", _login_files(settings.administrator))
    server = Server(settings)
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        if settings.management is not None:
            server.management_port = await _manage(server, settings.management, stack)
            server.warn_of_plaintext("the management API", settings.management)
        for watched, renew in ((certificate, _renew_certificate), (login, _renew_login)):
            if watched.files:
                following = watched.follow(partial(renew, server), every_s=settings.files_check_s)
                stack.callback(asyncio.ensure_future(following).cancel)
        yield server


async def _manage(server: Server, address: Address, stack: AsyncExitStack) -> int:
    """Serve the management API until the stack ends; its port. Raises `StartError`."""
    from lbg_broker.management import managing  # only who manages pays for importing an HTTP server

    tls = None if server.tls is None else server.tls.context
    try:
        return await stack.enter_async_context(
            managing(
                server,
                host=address.host,
                port=address.port,
                peer_log=server.peer_log,
                tls=tls,
                console_url=server.settings.console_url,
            )
        )
    except OSError as error:
        raise StartError(f"cannot listen on {address}: {listen_reason(error)}") from error


def _certificate_files(tls: TlsSettings | None) -> list[Path]:
    if tls is None:
        return []
    return [tls.certificate_file, tls.key_file, *([tls.client_ca_file] if tls.client_ca_file else [])]


def _login_files(administrator: AdministratorFiles | None) -> list[Path]:
    return [] if administrator is None else [administrator.username_file, administrator.password_file]


async def _renew_certificate(server: Server) -> None:
    if server.tls is not None:
        await asyncio.to_thread(server.tls.read_again)


async def _renew_login(server: Server) -> None:
    if server.settings.administrator is not None:
        login = await asyncio.to_thread(read_administrator, server.settings.administrator)
        for account in administrator_accounts(server.users, login):
            await server.define(account)


SWITCH_INTERVAL_S = 0.0005
"""Seconds for which the loop may keep the interpreter to itself while the store's thread waits for it. With Python's
own 5 ms each of a batch's statements can wait that long, and every confirm with it."""


def serve(settings: ServerSettings, *, on_ready: Callable[[Server], None] | None = None) -> None:
    """Run a broker until SIGTERM or SIGINT. `on_ready` is called once it listens.

    Raises `StartError` when it cannot start and `StoreError` when the disk fails under it.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    raise_descriptor_limit()
    asyncio.run(_serve(settings, on_ready))


async def _serve(settings: ServerSettings, on_ready: Callable[[Server], None] | None) -> None:
    loop = asyncio.get_running_loop()
    stopped: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopped.done():
            stopped.set_result(None)

    # Before all else: to the first process of a container a signal that it has no handler for does not come, and
    # it could not be stopped while it recovers.
    loop.add_signal_handler(signal.SIGTERM, stop)
    async with running(settings) as server:
        log_accept_errors(loop, server.peer_log)
        loop.add_signal_handler(signal.SIGINT, stop)
        if on_ready is not None:
            on_ready(server)
        failing = asyncio.ensure_future(server.wait())
        await asyncio.wait((stopped, failing), return_when=asyncio.FIRST_COMPLETED)
        failing.cancel()
        if not stopped.done():
            raise _error_of(failing)


def _error_of(failing: asyncio.Future[None]) -> BaseException:
    return failing.exception() or StoreError("the store stopped")
