"""The sidecar's process from its first line of log to its exit status."""

from __future__ import annotations

import asyncio
import logging
import signal
from contextlib import AsyncExitStack

from ..publishing import EndpointSettings, Publishing
from ..publishing import routes as publish_routes
from .guarding import guard
from .lag import LagWatch
from .life import Life
from .logs import configure_logging
from .measuring import Measures
from .routes import local_routes, observed_routes
from .serving import address_of, listen
from .settings import SidecarSettings

log = logging.getLogger("lbg.sidecar")

PUBLISH_GRACE_S = 5.0

OPEN = (
    "LBG_LOCAL is %s, which is no loopback address, and has no login: whoever reaches it can publish and make the "
    "member leave; listen on 127.0.0.1 or on a unix socket unless a network policy keeps others out"
)


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
        if not settings.local.is_local:
            log.warning(OPEN, settings.local)
        for name, listener, routes, guards in (
            ("local", settings.local, local, [guard(settings.local)]),
            ("observed", settings.observed, observed_routes(life, measures, lag), []),
        ):
            runner = await listen(
                listener,
                routes,
                body_max_bytes=body_max_bytes,
                setting=f"LBG_{name.upper()}",
                middlewares=guards,
            )
            stack.push_async_callback(runner.cleanup)
            log.info("%s listener: %s", name, address_of(listener, runner))
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
