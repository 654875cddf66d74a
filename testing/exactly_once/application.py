"""The application beside a sidecar: it inserts what it gets, and says what it has committed whenever it (re)connects.

`python -m testing.exactly_once.application '{"channel": "http-batch", "socket": …, "database": …, "place": …,
"inbox": true, "linger_s": 0}'`, in a process of its own. `socket`: for the HTTP channels where it listens, for the
stream where its sidecar does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import aiohttp
from aiohttp import web

from lbg_sidecar.stream_client import FRAME_MAX_BYTES, SUBPROTOCOL
from testing.chaos.stream import position_in, publisher_number

from .databases import DATABASES, Order

T = TypeVar("T")

COMPACT_EVERY = 5_000
RECONNECT_S = 0.05
CREDIT = 400


class Application:
    """All that touches the database happens in one thread. `linger_s`: how long a call goes on after its commit;
    what is killed then is given again."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._inbox: bool = told["inbox"]
        self._linger_s: float = told["linger_s"]
        self._since_compacted = 0
        self._database = self._thread.submit(DATABASES[told["database"]], told["place"]).result()

    async def insert(self, orders: Sequence[Order]) -> None:
        """Returns after the commit."""
        await self._in_thread(lambda: self._database.take(orders, inbox=self._inbox))
        self._since_compacted += len(orders)
        if self._inbox and self._since_compacted >= COMPACT_EVERY:
            self._since_compacted = 0
            await self._in_thread(self._database.compact)
        if self._linger_s:
            await asyncio.sleep(self._linger_s)

    async def processed(self) -> list[list[object]]:
        return await self._in_thread(self._database.processed) if self._inbox else []

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


async def serve(application: Application, socket: str) -> None:
    """HTTP push, one message a request and in batches."""

    async def batch(request: web.Request) -> web.Response:
        await application.insert([order_of_event(event) for event in await request.json()])
        return web.Response(status=204)

    async def single(request: web.Request) -> web.Response:
        headers = request.headers
        event = {name: headers[f"ce-{name}"] for name in ("id", "lbgpublisher", "lbghash", "sequence")}
        await application.insert([order_of_event({**event, "data": (await request.read()).decode()})])
        return web.Response(status=204)

    async def processed(_: web.Request) -> web.Response:
        return web.json_response(await application.processed())

    app = web.Application(client_max_size=64 * 1024 * 1024)
    app.add_routes([web.post("/", single), web.post("/batch", batch), web.get("/processed", processed)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.UnixSite(runner, socket).start()
    await asyncio.Event().wait()


async def converse(application: Application, socket: str) -> None:
    """The stream: all messages of a frame in one transaction, and one answer for them."""
    while True:
        try:
            await _conversation(application, socket)
        except aiohttp.ClientError:
            await asyncio.sleep(RECONNECT_S)


async def _conversation(application: Application, socket: str) -> None:
    async with (
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(socket)) as session,
        session.ws_connect(
            "http://sidecar/v1/stream", protocols=(SUBPROTOCOL,), max_msg_size=FRAME_MAX_BYTES, compress=0
        ) as stream,
    ):
        hello = {"credit": CREDIT, "processed": await application.processed()}
        await stream.send_str(json.dumps({"hello": hello}))
        async for frame in stream:
            fields = json.loads(frame.data)
            messages = fields.get("messages", ())
            if messages:
                await application.insert([order_of_message(message) for message in messages])
                await stream.send_str(json.dumps({"ack": fields["first"] + len(messages) - 1}))


def order_of_event(event: dict[str, Any]) -> Order:
    """Of a CloudEvent."""
    data = event["data"]
    position = data["n"] if isinstance(data, dict) else position_in(data.encode())
    publisher = event["lbgpublisher"]
    row = (publisher_number(publisher), position)
    return Order(event["id"], publisher, int(event["lbghash"]), int(event["sequence"]), row)


def order_of_message(message: dict[str, Any]) -> Order:
    """Of a message of the stream."""
    publisher = message["publisher"]
    row = (publisher_number(publisher), position_in(message["data"].encode()))
    return Order(message["id"], publisher, message["hash"], message["seq"], row)


def main() -> None:
    told = json.loads(sys.argv[1])
    talk = converse if told["channel"] == "stream" else serve
    asyncio.run(talk(Application(told), told["socket"]))


if __name__ == "__main__":
    main()
