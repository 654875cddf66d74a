"""What a handler knows to have processed: asked when the member starts, and of a session again and again."""

from __future__ import annotations

import asyncio
import inspect
import logging

from ..errors import AppError
from .channel import Calls
from .knowledge import parse_committed, parse_processed

log = logging.getLogger("lbg.member")

ASK_EVERY_S = 1.0


async def tell_positions(handler: object, calls: Calls) -> None:
    processed, committed = getattr(handler, "processed", None), getattr(handler, "committed", None)
    try:
        if processed is not None:
            calls.processed(parse_processed(await _said(processed())))
        if committed is not None and calls.session is not None:
            calls.committed(*parse_committed(await _said(committed(calls.session))))
    except Exception as error:
        raise AppError(
            f"the handler cannot say what it has processed: {type(error).__name__}: {error}"
        ) from error


ASKED_ANEW = "it is asked anew how far its session is"


class AskingAgain:
    """Asks a handler that is at work already."""

    def __init__(self, handler: object) -> None:
        self._handler = handler
        self._task: asyncio.Task[None] | None = None

    def again(self, calls: Calls) -> None:
        calls.ready(False, ASKED_ANEW)
        self._task = asyncio.get_running_loop().create_task(self._ask(calls))

    async def _ask(self, calls: Calls) -> None:
        while True:
            try:
                await tell_positions(self._handler, calls)
            except AppError as error:
                log.warning("%s; asking again in %g s", error, ASK_EVERY_S)
                await asyncio.sleep(ASK_EVERY_S)
            else:
                calls.ready(True)
                return

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _said(answer: object) -> object:
    return await answer if inspect.isawaitable(answer) else answer
