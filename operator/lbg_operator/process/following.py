"""kopf from its start to SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import signal

import kopf

from ..children.naming import MANAGER


async def follow(
    registry: kopf.OperatorRegistry,
    settings: kopf.OperatorSettings,
    *,
    namespaces: tuple[str, ...],
) -> None:
    """`namespaces` empty: all. Raises what ended kopf, if a signal did not.

    `kopf.operator` gives every task of the process that it has not seen before 5 s to end after a signal, and an open
    connection to our own listeners is such a task. Cancelled, it ends at once.
    """
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    stopping = asyncio.create_task(stopped.wait(), name="signals")
    ours = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=settings,
        standalone=True,
        # A name of its own kopf would make of the user's, and the image's user has none.
        identity=MANAGER,  # type: ignore[arg-type]  # a NewType that kopf does not export
        clusterwide=not namespaces,
        namespaces=namespaces,
    )
    for number in (signal.SIGTERM, signal.SIGINT):  # in place of kopf's
        loop.add_signal_handler(number, stopped.set)
    running = asyncio.create_task(kopf.run_tasks(tasks, ignored=ours), name="kopf")
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        was_running = running.cancel()
        (ended,) = await asyncio.gather(running, return_exceptions=True)
    if not was_running and isinstance(ended, BaseException):
        raise ended
