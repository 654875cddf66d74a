"""The sidecar's process from its first line of log to its exit status."""

from __future__ import annotations

import asyncio
import logging
import signal

from aiohttp import web

from ..leaving import PUBLISHERS_S, LeavingTime
from ..publishing import EndpointSettings, Publishing
from ..publishing import routes as publish_routes
from .guarding import guard
from .lag import LagWatch
from .life import Life
from .logs import configure_logging
from .lookups import end_threads, exit_at_once, look_up_in_own_threads
from .measuring import Measures
from .routes import local_routes, observed_routes
from .serving import address_of, listen
from .settings import SidecarSettings

log = logging.getLogger("lbg.sidecar")

OPEN = (
    "LBG_LOCAL is %s, which is no loopback address, and has no login: whoever reaches it can publish and make the "
    "member leave; listen on 127.0.0.1 or on a unix socket unless a network policy keeps others out"
)


def run_sidecar(settings: SidecarSettings) -> int:
    """The exit status: 0, or 1 when messages that were at work are delivered again. Raises MemberError."""
    configure_logging(settings.process.log_format)
    with asyncio.Runner() as runner:
        executor = look_up_in_own_threads(runner.get_loop())
        status = runner.run(_run(settings))
        if not end_threads(executor):
            exit_at_once(status)
    return status


async def _run(settings: SidecarSettings) -> int:
    loop = asyncio.get_running_loop()
    measures = Measures(loop.time)
    life = Life(settings, measures)
    lag = LagWatch(life.state, life.count, loop.time)
    publishing = Publishing(
        EndpointSettings(
            broker=settings.member.addresses,
            max_body_bytes=settings.process.body_max_bytes,
            journal=settings.member.journal,
        )
    )
    await publishing.start()
    ended = asyncio.Event()
    leaving_time = LeavingTime(settings.member.shutdown_grace_s)

    def end(number: signal.Signals) -> None:
        leaving_time.begin(loop.time())
        ended.set()
        life.stop(number.name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    runners: list[web.AppRunner] = []
    try:
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
            runners.append(runner)
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
        confirms_s = leaving_time.confirms_s(loop.time())
        unconfirmed = await publishing.stop(confirms_s, close_within_s=PUBLISHERS_S)
        if unconfirmed:
            log.warning("%d published events were not confirmed: whether they are is not known", unconfirmed)
    finally:
        await asyncio.gather(*(runner.cleanup() for runner in runners))
    return 1 if again else 0
