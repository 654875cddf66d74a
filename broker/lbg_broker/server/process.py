"""A broker as a process: until a signal, or until its disk fails."""

import asyncio
import signal
import sys
from collections.abc import Callable

from lbg_broker.server.running import running
from lbg_broker.server.serving import Server
from lbg_broker.server.settings import ServerSettings
from lbg_broker.server.store import StoreError

__all__ = ["serve"]

SWITCH_INTERVAL_S = 0.0005
"""How long the loop may keep the interpreter to itself while the store's thread waits for it. With Python's own
5 ms each of a batch's statements can wait that long, and every confirm with it."""


def serve(settings: ServerSettings, *, on_ready: Callable[[Server], None] | None = None) -> None:
    """Run a broker until SIGTERM or SIGINT. `on_ready` is called once it listens.

    Raises `StartError` when it cannot start and `StoreError` when the disk fails under it.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    asyncio.run(_serve(settings, on_ready))


async def _serve(settings: ServerSettings, on_ready: Callable[[Server], None] | None) -> None:
    loop = asyncio.get_running_loop()
    told: asyncio.Future[None] = loop.create_future()

    def tell() -> None:
        if not told.done():
            told.set_result(None)

    # Before all else: to the first process of a container a signal that it has no handler for does not come, and
    # whoever wants to stop it while it recovers would wait in vain.
    loop.add_signal_handler(signal.SIGTERM, tell)
    async with running(settings) as server:
        loop.add_signal_handler(signal.SIGINT, tell)
        if on_ready is not None:
            on_ready(server)
        failing = asyncio.ensure_future(server.wait())
        await asyncio.wait((told, failing), return_when=asyncio.FIRST_COMPLETED)
        failing.cancel()
        if not told.done():
            raise _error_of(failing)


def _error_of(failing: "asyncio.Future[None]") -> BaseException:
    return failing.exception() or StoreError("the store stopped")
