"""One HTTP listener of the process: where it listens, and what it lets a client do to it."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from contextlib import suppress

from aiohttp import web
from aiohttp.typedefs import Middleware

from ..leaving import LISTENERS_S
from .errors import ConfigurationError
from .listener import Listener

HEADER_MAX_BYTES = 8190
REQUEST_WITHIN_S = 15.0
"""A client that has not sent the whole head of a request for so long, or asks nothing more, loses its connection."""

SHUTDOWN_S = LISTENERS_S / 2
"""What is under way at the end gets so long, and as long again once it is cancelled; nobody may hold the process up by
sending slowly."""


async def listen(
    listener: Listener,
    routes: Sequence[web.RouteDef],
    *,
    body_max_bytes: int,
    setting: str,
    middlewares: Sequence[Middleware] = (),
    request_within_s: float = REQUEST_WITHIN_S,
) -> web.AppRunner:
    """Raises ConfigurationError, which names `setting`."""
    application = web.Application(client_max_size=body_max_bytes, middlewares=middlewares)
    application.add_routes(routes)
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        keepalive_timeout=request_within_s,
        max_line_size=HEADER_MAX_BYTES,
        max_field_size=HEADER_MAX_BYTES,
        shutdown_timeout=SHUTDOWN_S,
    )
    await runner.setup()
    site: web.BaseSite
    if listener.path is not None:
        site = web.UnixSite(runner, listener.path)
    else:
        site = web.TCPSite(runner, listener.host, listener.port)
    try:
        _require_unserved(listener)
        await site.start()
    except OSError as error:
        await runner.cleanup()
        # asyncio puts a sentence of its own in place of the system's word for it.
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
        raise ConfigurationError(f"{setting} is {listener}, but one cannot listen there: {why}") from None
    return runner


def _require_unserved(listener: Listener) -> None:
    """asyncio takes a unix socket from whoever listens there as it takes one that a killed process left. Raises
    OSError."""
    if listener.path is None:
        return
    with socket.socket(socket.AF_UNIX) as asked, suppress(FileNotFoundError, ConnectionRefusedError):
        asked.setblocking(False)
        asked.connect(str(listener.path))
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))


def address_of(listener: Listener, runner: web.AppRunner) -> str:
    """With the port that was taken, where any was asked for."""
    if listener.path is not None or not runner.addresses:
        return str(listener)
    return str(Listener(listener.host, runner.addresses[0][1]))
