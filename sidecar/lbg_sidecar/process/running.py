"""The sidecar's process from its first line of log to its exit status."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack

from aiohttp import web

from ..publishing import EndpointSettings, Publishing
from ..publishing import routes as publish_routes
from .errors import ConfigurationError
from .lag import LagWatch
from .life import Life
from .listener import Listener
from .logs import configure_logging
from .measuring import Measures
from .routes import local_routes, observed_routes
from .settings import SidecarSettings

log = logging.getLogger("lbg.sidecar")

HEADER_MAX_BYTES = 8190
PUBLISH_GRACE_S = 5.0
REQUEST_WITHIN_S = 15.0
"""A client that opens a connection and asks nothing for so long loses it."""


def run_sidecar(settings: SidecarSettings) -> int:
    """The exit status: 0, or 1 when messages that were at work are delivered again. Raises MemberError."""
    configure_logging(settings.process.log_format)
    return asyncio.run(_run(settings))


async def _run(settings: SidecarSettings) -> int:
    loop = asyncio.get_running_loop()
    measures = Measures(loop.time)
    life = Life(settings, measures)
    lag = LagWatch(life.state, life.count, loop.time)
    publishing = Publishing(
        EndpointSettings(broker=settings.member.addresses, max_body_bytes=settings.process.body_max_bytes)
    )
    await publishing.start()
    ended = asyncio.Event()

    def end(number: signal.Signals) -> None:
        ended.set()
        life.stop(number.name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    async with AsyncExitStack() as stack:
        body_max_bytes = settings.process.body_max_bytes
        local = [*local_routes(life, publishing, lag), *publish_routes(publishing), *life.routes]
        for name, listener, routes in (
            ("local", settings.local, local),
            ("observed", settings.observed, observed_routes(life, measures, lag)),
        ):
            runner = await _listen(
                listener, routes, body_max_bytes=body_max_bytes, setting=f"LBG_{name.upper()}"
            )
            stack.push_async_callback(runner.cleanup)
            log.info("%s listener: %s", name, _address(listener, runner))
        looking = loop.create_task(lag.run())
        try:
            await life.run()
        finally:
            looking.cancel()
        again = life.again
        if again:
            log.warning("left the group: %d messages that were at work are delivered again", again)
        else:
            log.info("left the group: nothing is delivered again")
        # After a drain by the hook it stays, or Kubernetes would start the container again and it would join.
        await ended.wait()
        # An application that ends may still publish what it has: as long as the process lives.
        unconfirmed = await publishing.stop(PUBLISH_GRACE_S)
        if unconfirmed:
            log.warning("%d published events were not confirmed: whether they are is not known", unconfirmed)
    return 1 if again else 0


async def _listen(
    listener: Listener, routes: Sequence[web.RouteDef], *, body_max_bytes: int, setting: str
) -> web.AppRunner:
    application = web.Application(client_max_size=body_max_bytes)
    application.add_routes(routes)
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        keepalive_timeout=REQUEST_WITHIN_S,
        max_line_size=HEADER_MAX_BYTES,
        max_field_size=HEADER_MAX_BYTES,
        shutdown_timeout=1.0,
    )
    await runner.setup()
    site: web.BaseSite
    if listener.path is not None:
        site = web.UnixSite(runner, listener.path)
    else:
        site = web.TCPSite(runner, listener.host, listener.port)
    try:
        await site.start()
    except OSError as error:
        await runner.cleanup()
        raise ConfigurationError(
            f"{setting} is {listener}, but one cannot listen there: {error.strerror}"
        ) from None
    return runner


def _address(listener: Listener, runner: web.AppRunner) -> str:
    if listener.path is not None or not runner.addresses:
        return str(listener)
    return str(Listener(listener.host, runner.addresses[0][1]))
