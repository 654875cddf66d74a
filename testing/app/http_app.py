"""An application for the conformance test: a process of its own, told by each body what to answer.

``python -m testing.app.http_app LOG PORT|unix:SOCKET`` appends to the file LOG; `subjects` explains the bodies. It
takes single messages at `/`, batches at `/batch`.
"""

from __future__ import annotations

import asyncio
import base64
import sys
import zlib
from typing import Any

from aiohttp import web


async def handle(request: web.Request) -> web.Response:
    body = await request.read()
    seq, attempt = int(request.headers["ce-sequence"]), int(request.headers["ce-lbgattempt"])
    log = request.app[LOG]
    log.write(f"begin {seq}\n")
    word, _, rest = body.decode("utf-8", "replace").partition(" ")
    try:
        if word == "retry" and attempt < int(rest):
            return web.Response(status=503, text="busy", headers={"Retry-After": "0"})
        if word == "later" and attempt == 1:
            return web.Response(status=503, text="busy", headers={"Retry-After": rest})
        if word == "drop":
            return web.Response(status=422, text=rest)
        if word == "sum":
            return web.Response(status=422, text=f"{len(body)} {zlib.crc32(body)}")
        if word == "sleep" and attempt == 1:
            await asyncio.sleep(float(rest))
        return web.Response(status=204)
    finally:
        log.write(f"end {seq}\n")


async def handle_batch(request: web.Request) -> web.Response:
    assert request.content_type == "application/cloudevents-batch+json"
    events = await request.json()
    verdicts = await asyncio.gather(*(verdict(request.app[LOG], event) for event in events))
    return web.json_response({"verdicts": verdicts})


async def verdict(log: Any, event: dict[str, Any]) -> dict[str, Any]:
    seq, attempt = int(event["sequence"]), int(event["lbgattempt"])
    body = (
        str(event["data"])  # what is JSON comes as JSON
        if "data" in event
        else base64.b64decode(event["data_base64"]).decode("utf-8", "replace")
    )
    log.write(f"begin {seq}\n")
    word, _, rest = body.partition(" ")
    try:
        if word == "retry" and attempt < int(rest):
            return {"id": event["id"], "verdict": "retry", "reason": "busy", "after_s": 0}
        if word == "later" and attempt == 1:
            return {"id": event["id"], "verdict": "retry", "reason": "busy", "after_s": float(rest)}
        if word == "drop":
            return {"id": event["id"], "verdict": "drop", "reason": rest}
        if word == "sum":
            counted = f"{len(body)} {zlib.crc32(body.encode())}"
            return {"id": event["id"], "verdict": "drop", "reason": counted}
        if word == "sleep" and attempt == 1:
            await asyncio.sleep(float(rest))
        return {"id": event["id"], "verdict": "ack"}
    finally:
        log.write(f"end {seq}\n")


async def healthy(request: web.Request) -> web.Response:
    return web.Response(text="ok")


LOG = web.AppKey("log", object)


def main() -> None:
    place, address = sys.argv[1:]
    app = web.Application(client_max_size=64 * 1024 * 1024)
    app[LOG] = open(place, "a", buffering=1)  # noqa: SIM115 (for the life of the process)
    app.router.add_post("/", handle)
    app.router.add_post("/batch", handle_batch)
    app.router.add_get("/healthz", healthy)
    if address.startswith("unix:"):
        web.run_app(app, path=address.removeprefix("unix:"), print=None, handler_cancellation=True)
    else:
        web.run_app(app, host="127.0.0.1", port=int(address), print=None, handler_cancellation=True)


if __name__ == "__main__":
    main()
