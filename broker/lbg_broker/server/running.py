"""A whole broker: the server, its management API, and the files that may change under it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from lbg_broker.server.accounts import administrator_accounts
from lbg_broker.server.administrator import read_administrator
from lbg_broker.server.errors import StartError
from lbg_broker.server.serving import Server
from lbg_broker.server.settings import Address, AdministratorFiles, ServerSettings, TlsSettings
from lbg_broker.server.watching import Watched

__all__ = ["running"]


@asynccontextmanager
async def running(settings: ServerSettings) -> AsyncIterator[Server]:
    """A broker, with its management API if that is asked for, while the block lasts. Raises `StartError`."""
    certificate = Watched("the certificate", _certificate_files(settings.tls))
    login = Watched("the administrator's login", _login_files(settings.administrator))
    server = Server(settings)
    await server.start()
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.stop)
        if settings.management is not None:
            server.management_port = await _manage(server, settings.management, stack)
        for watched, renew in ((certificate, _renew_certificate), (login, _renew_login)):
            if watched.files:
                following = watched.follow(partial(renew, server), every_s=settings.files_check_s)
                stack.callback(asyncio.ensure_future(following).cancel)
        yield server


async def _manage(server: Server, address: Address, stack: AsyncExitStack) -> int:
    """Serve the management API until the stack ends; its port. Raises `StartError`."""
    from lbg_broker.server.management import managing  # only who manages pays for importing an HTTP server

    tls = None if server.tls is None else server.tls.context
    try:
        return await stack.enter_async_context(
            managing(server, host=address.host, port=address.port, tls=tls)
        )
    except OSError as error:
        raise StartError(f"cannot listen on {address}: {error}") from error


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
