"""An application that replies too much, or without end: it is told of in one line, and loses nothing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from testing.app.noting_process import until_so
from testing.broker.embedded import EmbeddedBroker
from testing.sidecar.load import new_group, publish
from testing.sidecar.process import SidecarProcess
from testing.waiting import GUARD_S, until

COUNT = 24
BRISK = {
    "LBG_CALL_TIMEOUT_S": "0.5",
    "LBG_MAX_ATTEMPTS": "2",
    "LBG_RETRY_FIRST_S": "0.05",
    "LBG_RETRY_MAX_S": "0.2",
}


class Application:
    """Replies as `wrong` says, and after `repaired` with 204. `taken`: what it has acknowledged, in order."""

    def __init__(self, wrong: str) -> None:
        self.wrong: str | None = wrong
        self.taken: list[int] = []

    def repaired(self) -> None:
        self.wrong = None

    async def single(self, request: web.Request) -> web.StreamResponse:
        return await self._reply(request, [json.loads(await request.read())["n"]])

    async def batch(self, request: web.Request) -> web.StreamResponse:
        return await self._reply(request, [json.loads(event["data"])["n"] for event in await request.json()])

    async def _reply(self, request: web.Request, numbers: list[int]) -> web.StreamResponse:
        if self.wrong is None:
            self.taken += numbers
            return web.Response(status=204)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(b'{"verdicts": [], "verdict": "retry", "reason": "')
        while True:
            try:
                await response.write(b"x" * 65_536 if self.wrong == "too long" else b"x")
                await asyncio.sleep(0.01)
            except ConnectionError:
                return response


@asynccontextmanager
async def serving(application: Application, socket: Path) -> AsyncIterator[None]:
    app = web.Application(client_max_size=2**20)
    app.add_routes([web.post("/http", application.single), web.post("/http-batch", application.batch)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.UnixSite(runner, str(socket)).start()
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (
            "too long",
            r"failed 2 times .*; the last reason: the reply is longer than \d+ bytes, so that its verdict cannot be "
            "read",
        ),
        ("without end", r"failed 2 times .*; the last reason: no verdict within 0.5 s"),
    ],
)
@pytest.mark.parametrize("channel", ["http", "http-batch"])
async def test_a_reply_that_cannot_be_read_to_its_end_is_told_of_and_loses_nothing(
    broker: EmbeddedBroker, tmp_path: Path, channel: str, wrong: str, told: str
) -> None:
    group = f"{channel}-{wrong.replace(' ', '-')}"
    await new_group(broker.url, group)
    application, socket = Application(wrong), tmp_path / "app.sock"
    async with serving(application, socket):
        target = f"unix:{socket}:/{channel}"
        sidecar = SidecarProcess(
            broker.url, tmp_path, group, LBG_APP=channel, LBG_TARGET=target, LBG_NAME="a", **BRISK
        )
        await until_so(sidecar, sidecar.ready)
        await publish(broker.url, group, COUNT)
        await until_so(sidecar, lambda: re.search(told, sidecar.text), timeout_s=GUARD_S)
        assert application.taken == []
        assert sidecar.acked() == 0
        application.repaired()
        await until(lambda: set(application.taken) == set(range(COUNT)))
        sidecar.process.terminate()
        await until(lambda: sidecar.process.poll() == 0, every_s=0.05)
    for key in range(12):
        of_key = [number for number in application.taken if number % 12 == key]
        assert of_key == sorted(set(of_key))
