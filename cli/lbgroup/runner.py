"""`lbgroup.run`: runs a program and ends it in order on Ctrl-C and SIGTERM.

`asyncio.run` cancels its program on Ctrl-C, so that `async with Member(...)` leaves the group, and then raises
KeyboardInterrupt, with a traceback. On SIGTERM a Python program ends without any of that. Neither can be
changed from inside `Member` without changing the signals of every program that uses one, so it is done where a program
asks for it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as `asyncio.run` does, and return its result.

    The first SIGINT or SIGTERM cancels `main`: every `async with` is left, so members hand their queues over. Then
    SystemExit is raised with the status that shells report for the signal, 130 or 143. A second signal ends the process
    at once. Signals are handled as before when `run` returns. It has to be called in the main thread.
    """
    received: list[signal.Signals] = []

    async def cancelled_by_signals() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def on_signal(number: signal.Signals) -> None:
            received.append(number)
            for one in SIGNALS:
                loop.remove_signal_handler(one)
                signal.signal(one, signal.SIG_DFL)
            task.cancel()

        for number in SIGNALS:
            loop.add_signal_handler(number, on_signal, number)
        return await main

    handlers = {number: signal.getsignal(number) or signal.SIG_DFL for number in SIGNALS}
    try:
        return asyncio.run(cancelled_by_signals())
    except asyncio.CancelledError:
        if not received:
            raise
        raise SystemExit(128 + received[0]) from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
