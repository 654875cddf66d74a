"""Trace context and baggage from `POST /v1/publish` through the broker and each channel to the application."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from lbg_core.client import connect
from lbg_core.group import Names
from lbg_sidecar.stream_client import consume
from testing.admin.group_on_broker import declare_group
from testing.broker.embedded import EmbeddedBroker
from testing.member.group_load import group_spec
from testing.sidecar.process import Sidecar
from testing.waiting import until

TRACE = {
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    "baggage": "user=7,plan=gold",
}
KEEPS_LINES = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    open(sys.argv[1], "a").write(line)
    print(json.dumps({"id": message["id"], "verdict": "ack"}), flush=True)
"""


@asynccontextmanager
async def application(at: Path) -> AsyncIterator[list[tuple[dict[str, str], Any]]]:
    """An HTTP application that keeps headers and body of each request, and drops a message that says so."""
    got: list[tuple[dict[str, str], Any]] = []

    async def take(request: web.Request) -> web.Response:
        got.append(({name.lower(): value for name, value in request.headers.items()}, await request.text()))
        return web.Response(status=422 if got[-1][1] == "drop" else 204)

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app, handle_signals=False)
    await runner.setup()
    await web.UnixSite(runner, str(at)).start()
    try:
        yield got
    finally:
        await runner.cleanup()


async def started(
    broker: EmbeddedBroker, directory: Path, group: str, app: str = "", **settings: str
) -> Sidecar:
    await declare_group(broker.url, group_spec(group))
    return await asyncio.to_thread(Sidecar, broker, directory, group, app, **settings)


async def publish(sidecar: Sidecar, group: str, body: bytes = b"work") -> None:
    path = f"/v1/publish/{group}?key=k"
    status, text = await asyncio.to_thread(sidecar.ask, "POST", path, body, **TRACE)
    assert status == 200, text


async def test_over_http_and_into_the_dead_letter(broker: EmbeddedBroker, tmp_path: Path) -> None:
    async with application(tmp_path / "app.sock") as got:
        target = f"unix:{tmp_path}/app.sock:/"
        sidecar = await started(broker, tmp_path, "pushed", LBG_APP="http", LBG_TARGET=target)
        await publish(sidecar, "pushed")
        await publish(sidecar, "pushed", b"drop")
        await until(lambda: len(got) == 2)
        headers, _ = got[0]
        assert TRACE.items() <= headers.items()
        assert headers["ce-traceparent"] == TRACE["traceparent"]
        connection = await connect(broker.url)
        channel = await connection.open_channel()
        await until(
            lambda: re.search(r"^lbg_messages_dead_lettered_total{.*} 1.0$", sidecar.get("/metrics")[1], re.M)
        )
        letter = await channel.basic_get(Names("pushed").dead, no_ack=True)
        assert letter is not None
        assert TRACE.items() <= letter.headers.items()
        await connection.close()


async def test_over_http_in_batches(broker: EmbeddedBroker, tmp_path: Path) -> None:
    async with application(tmp_path / "app.sock") as got:
        target = f"unix:{tmp_path}/app.sock:/"
        sidecar = await started(broker, tmp_path, "batched", LBG_APP="http-batch", LBG_TARGET=target)
        await publish(sidecar, "batched")
        await until(lambda: got)
        (event,) = json.loads(got[0][1])
        assert TRACE.items() <= event.items()


async def test_over_the_stream(broker: EmbeddedBroker, tmp_path: Path) -> None:
    got: list[dict[str, Any]] = []

    async def handle(message: dict[str, Any]) -> None:
        got.append(message)

    sidecar = await started(broker, tmp_path, "streamed-trace", LBG_APP="stream")
    await until(lambda: "no application is connected" in sidecar.get("/readyz")[1])
    application = asyncio.create_task(
        consume("http://localhost/v1/stream", handle, unix_socket=str(sidecar.socket))
    )
    await publish(sidecar, "streamed-trace")
    await until(lambda: got)
    assert TRACE.items() <= got[0].items()
    application.cancel()
    await asyncio.gather(application, return_exceptions=True)


async def test_to_a_command(broker: EmbeddedBroker, tmp_path: Path) -> None:
    script, kept = tmp_path / "keeps.py", tmp_path / "kept"
    script.write_text(KEEPS_LINES)
    sidecar = await started(broker, tmp_path, "commanded", LBG_COMMAND=f"{sys.executable} {script} {kept}")
    await publish(sidecar, "commanded")
    await until(lambda: kept.exists() and kept.read_text().endswith("\n"))
    assert TRACE.items() <= json.loads(kept.read_text()).items()
