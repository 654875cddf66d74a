"""The sidecar's process, from its first line of log to its exit status."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from aiohttp import web

from lbg_core.counted_nouns import counted
from lbg_core.peers import PeerLog, log_accept_errors
from lbg_core.tracing import exporting
from lbg_sidecar.core.presence import PUBLISHERS_S, LeavingTime
from lbg_sidecar.process.http import (
    address_of,
    guard,
    listen,
    local_bounds,
    local_routes,
    observed_bounds,
    observed_routes,
)
from lbg_sidecar.process.lag import LagWatch
from lbg_sidecar.process.lifecycle import MemberLifecycle
from lbg_sidecar.process.logs import configure_logging
from lbg_sidecar.process.metrics import Measures
from lbg_sidecar.process.settings import SidecarSettings
from lbg_sidecar.publish_api import EndpointSettings, PublishService
from lbg_sidecar.publish_api import routes as publish_routes

_PREFIX = "lbg-lookup"
_IDLE_ENDS_WITHIN_S = 0.5


def use_resolver_threads(loop: asyncio.AbstractEventLoop) -> ThreadPoolExecutor:
    """The executor of the loop from now on."""
    executor = ThreadPoolExecutor(thread_name_prefix=_PREFIX)
    loop.set_default_executor(executor)
    return executor


def end_threads(executor: ThreadPoolExecutor) -> bool:
    """Returns whether all have ended."""
    executor.shutdown(wait=False, cancel_futures=True)
    until = time.monotonic() + _IDLE_ENDS_WITHIN_S
    threads = [thread for thread in threading.enumerate() if thread.name.startswith(_PREFIX)]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def exit_at_once(status: int) -> None:
    """Ends the process without waiting for an open DNS lookup: everything else is done."""
    logging.shutdown()
    os._exit(status)


log = logging.getLogger("lbg.sidecar")

OPEN = (
    "LBG_LOCAL is %s, which is not a loopback address and has no authentication: every client that reaches it can "
    "publish and drain; listen on 127.0.0.1 or on a unix socket, unless a network policy blocks other clients"
)


def run_sidecar(settings: SidecarSettings) -> int:
    """The exit status: 0, or 1 when messages that were at work are delivered again. Raises MemberError."""
    configure_logging(settings.process.log_format)
    with asyncio.Runner() as runner:
        executor = use_resolver_threads(runner.get_loop())
        with exporting("lbg-sidecar"):
            status = runner.run(_run(settings))
        if not end_threads(executor):
            exit_at_once(status)
    return status


async def _run(settings: SidecarSettings) -> int:
    loop = asyncio.get_running_loop()
    measures = Measures(loop.time)
    life = MemberLifecycle(settings, measures)
    lag = LagWatch(life.state, life.count, loop.time)
    publishing = PublishService(
        EndpointSettings(
            broker=settings.publisher,
            max_body_bytes=settings.process.body_max_bytes,
            journal=settings.member.journal,
        )
    )
    ended = asyncio.Event()
    leaving_time = LeavingTime(settings.member.shutdown_grace_s)

    def end(number: signal.Signals) -> None:
        leaving_time.begin(loop.time())
        ended.set()
        life.stop(number.name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    runners: list[web.AppRunner] = []
    peer_log = PeerLog(log)
    log_accept_errors(loop, peer_log)
    try:
        body_max_bytes = settings.process.body_max_bytes
        local = [*local_routes(life, publishing, lag), *publish_routes(publishing), *life.routes]
        if not settings.local.is_local:
            log.warning(OPEN, settings.local)
        observed = observed_routes(life, measures, lag)
        for name, listener, routes, guards, bounds in (
            ("local", settings.local, local, [guard(settings.local)], local_bounds()),
            ("observed", settings.observed, observed, [], observed_bounds()),
        ):
            runner = await listen(
                listener,
                routes,
                body_max_bytes=body_max_bytes,
                setting=f"LBG_{name.upper()}",
                bounds=bounds,
                peer_log=peer_log,
                middlewares=guards,
                ends_with_client=routes is observed,
            )
            runners.append(runner)
            log.info("%s listener: %s", name, address_of(listener, runner))
        counting = loop.create_task(lag.run())
        try:
            await life.run()
        finally:
            counting.cancel()
        again = life.again
        if again:
            cut_off = counted(again, "message with a running call is", "messages with running calls are")
            log.warning("left the group: %s delivered again", cut_off)
        else:
            log.info("left the group: nothing is delivered again")
        # After a drain by the hook it stays, or Kubernetes would start the container again and it would join.
        await ended.wait()
        # An application that ends may still publish what it has: as long as the process lives.
        confirms_s = leaving_time.confirms_s(loop.time())
        unconfirmed = await publishing.stop(confirms_s, close_within_s=PUBLISHERS_S)
        if unconfirmed:
            events = counted(unconfirmed, "published event has", "published events have")
            log.warning("%s no confirm: the broker may have them", events)
    finally:
        await asyncio.gather(*(runner.cleanup() for runner in runners))
        peer_log.close()
    return 1 if again else 0
