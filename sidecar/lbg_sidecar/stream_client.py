"""An application's side of the stream, in as few lines as it takes (docs/app-channels.md).

::

    async def handle(message: dict) -> None:
        print(message["key"], message["data"])

    await consume("http://127.0.0.1:8780/v1/stream", handle)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

SUBPROTOCOL = "lbg.stream.v1"
FRAME_MAX_BYTES = 64 * 1024 * 1024
"""A frame holds a single message of any length; aiohttp would refuse more than 4 MB."""

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | None]]


async def consume(
    url: str,
    handle: Handler,
    *,
    credit: int = 256,
    processed: Sequence[Any] = (),
    unix_socket: str | None = None,
) -> None:
    """Call `handle` with each message until the stream ends; call again to connect anew.

    None acknowledges; ``{"verdict": "retry" | "drop", "reason": …, "after_s": …}`` does not; an exception is a retry.
    """
    connector = aiohttp.UnixConnector(unix_socket) if unix_socket else None
    running: dict[int, asyncio.Task[None]] = {}
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.ws_connect(url, protocols=(SUBPROTOCOL,), max_msg_size=FRAME_MAX_BYTES, compress=0) as socket,
    ):
        await socket.send_str(json.dumps({"hello": {"credit": credit, "processed": list(processed)}}))

        async def call(number: int, message: dict[str, Any]) -> None:
            try:
                verdict = await handle(message)
            except asyncio.CancelledError:
                await socket.send_str(json.dumps({"cancelled": [number]}))
                return
            except Exception as error:
                verdict = {"verdict": "retry", "reason": repr(error)}
            finally:
                del running[number]
            answer = {"verdicts": [{"n": number, **verdict}]} if verdict else {"acks": [number]}
            await socket.send_str(json.dumps(answer))

        try:
            async for frame in socket:
                fields = json.loads(frame.data)
                for number, message in enumerate(fields.get("messages", ()), fields.get("first", 0)):
                    running[number] = asyncio.create_task(call(number, message))
                for number in fields.get("cancel", ()):
                    if number in running:
                        running[number].cancel()
        finally:
            for task in running.values():
                task.cancel()
