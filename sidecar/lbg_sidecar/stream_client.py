"""Client of the sidecar's stream, in as few lines as it takes (docs/app-channels.md).

::

    async def handle(message: dict) -> None:
        print(message["key"], message["data"])

    await consume("http://127.0.0.1:8780/v1/stream", handle)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import aiohttp

SUBPROTOCOL = "lbg.stream.v1"
FRAME_MAX_BYTES = 64 * 1024 * 1024
"""A frame holds a single message of any length; aiohttp would refuse more than 4 MB."""
REASON_MAX_CHARS = 500

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]


async def consume(
    url: str,
    handle: Handler,
    *,
    credit: int = 256,
    processed: Sequence[Any] = (),
    committed: int | tuple[int, str | None] | None = None,
    unix_socket: str | None = None,
) -> None:
    """Call `handle` with each message until the stream ends; call again to connect anew. `committed`: in mode Sessions,
    how far the application has committed its session itself: a number, or a pair of it and its message's epoch.

    None acknowledges; ``{"verdict": "retry" | "drop", "reason": …, "after_s": …}`` does not; an exception is a retry.
    """
    connector = aiohttp.UnixConnector(unix_socket) if unix_socket else None
    running: dict[int, asyncio.Future[dict[str, Any] | None]] = {}
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.ws_connect(url, protocols=(SUBPROTOCOL,), max_msg_size=FRAME_MAX_BYTES, compress=0) as socket,
    ):
        hello: dict[str, Any] = {"credit": credit, "processed": list(processed)}
        if committed is not None:
            hello["committed"] = committed
        await socket.send_str(json.dumps({"hello": hello}))

        acks: list[int] = []
        verdicts: list[dict[str, Any]] = []
        cancelled: list[int] = []
        answered = asyncio.Event()

        async def answer() -> None:
            """Sends the verdicts of one turn of the event loop in one frame."""
            while True:
                await answered.wait()
                answered.clear()
                fields = {"acks": acks[:], "verdicts": verdicts[:], "cancelled": cancelled[:]}
                for some in (acks, verdicts, cancelled):
                    some.clear()
                await socket.send_str(json.dumps({name: some for name, some in fields.items() if some}))

        def over(number: int, task: asyncio.Future[dict[str, Any] | None]) -> None:
            del running[number]
            if task.cancelled():
                cancelled.append(number)
            elif error := task.exception():
                verdicts.append({"n": number, "verdict": "retry", "reason": repr(error)[:REASON_MAX_CHARS]})
            elif verdict := task.result():
                verdicts.append({"n": number, **verdict})
            else:
                acks.append(number)
            answered.set()

        answering = asyncio.create_task(answer())
        try:
            async for frame in socket:
                fields = json.loads(frame.data)
                for number, message in enumerate(fields.get("messages", ()), fields.get("first", 0)):
                    task = running[number] = asyncio.ensure_future(handle(message))
                    task.add_done_callback(partial(over, number))
                for number in fields.get("cancel", ()):
                    if number in running:
                        running[number].cancel()
        finally:
            answering.cancel()
            for left in running.values():
                left.cancel()
            # The next connection gets their messages again.
            await asyncio.gather(*running.values(), return_exceptions=True)
