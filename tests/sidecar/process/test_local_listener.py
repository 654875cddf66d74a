"""Refusals of the local listener: pages of other hosts, slow senders, too large requests."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from lbg_core.peers import PeerLog, is_of_here
from lbg_sidecar.process.http import address_of, guard, listen, local_bounds
from lbg_sidecar.process.settings import ConfigurationError, Listener
from testing.waiting import GUARD_S

BOUNDS: Any = {"bounds": local_bounds(), "peer_log": PeerLog(logging.getLogger("test"))}


@pytest.mark.parametrize("here", ["//localhost:8750", "//127.0.0.1", "//127.8.8.8:1", "//[::1]:8750"])
def test_loopback_is_here(here: str) -> None:
    assert is_of_here(here)


@pytest.mark.parametrize(
    "elsewhere", ["//evil.example", "//127.0.0.1.evil.example", "null", "", "//[::1", "http://10.0.0.7"]
)
def test_other_names_and_none_are_elsewhere(elsewhere: str) -> None:
    assert not is_of_here(elsewhere)


async def asked(listener: Listener, **headers: str) -> tuple[int, str]:
    """Of a listener of this kind, with these headers."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="done")

    runner = await listen(
        listener,
        [web.post("/v1/drain", answer)],
        body_max_bytes=1000,
        setting="LBG_LOCAL",
        **BOUNDS,
        middlewares=[guard(listener)],
    )
    try:
        unix = str(listener.path) if listener.path is not None else None
        connector = aiohttp.UnixConnector(unix) if unix else aiohttp.TCPConnector()
        port = 0 if unix else Listener.parse(address_of(listener, runner)).port
        url = f"http://127.0.0.1:{port}/v1/drain"
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.post(url, headers=headers) as told,
        ):
            return told.status, await told.text()
    finally:
        await runner.cleanup()


LOOPBACK = Listener("127.0.0.1", 0)
ANYWHERE = Listener("0.0.0.0", 0)


async def test_a_page_of_another_host_may_ask_nothing() -> None:
    status, text = await asked(LOOPBACK, Origin="https://evil.example")
    assert status == 403
    assert text.startswith("Origin is 'https://evil.example'")
    assert (await asked(LOOPBACK, Origin="null"))[0] == 403
    assert (await asked(ANYWHERE, Origin="https://evil.example"))[0] == 403


async def test_nor_open_a_stream() -> None:
    """A WebSocket asks nobody first, whatever page opens it."""

    async def stream(request: web.Request) -> web.StreamResponse:
        await (opened := web.WebSocketResponse()).prepare(request)
        return opened

    runner = await listen(
        LOOPBACK,
        [web.get("/v1/stream", stream)],
        body_max_bytes=1000,
        setting="LBG_LOCAL",
        **BOUNDS,
        middlewares=[guard(LOOPBACK)],
    )
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/stream"
    async with aiohttp.ClientSession() as session:
        await (await session.ws_connect(url)).close()
        with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
            await session.ws_connect(url, origin="https://evil.example")
    await runner.cleanup()


async def test_a_name_that_was_rebound_to_loopback_is_refused() -> None:
    status, text = await asked(LOOPBACK, Host="evil.example:8750")
    assert status == 421
    assert text.startswith("Host is 'evil.example:8750'")


async def test_an_application_is_let_in(tmp_path: Path) -> None:
    assert await asked(LOOPBACK) == (200, "done")
    assert (await asked(LOOPBACK, Host="localhost:8750"))[0] == 200
    assert (await asked(LOOPBACK, Origin="http://localhost:3000"))[0] == 200
    assert (await asked(ANYWHERE, Host="sidecar:8750"))[0] == 200
    assert (await asked(Listener(path=tmp_path / "local.sock"), Host="sidecar"))[0] == 200


@pytest.fixture
async def quick() -> AsyncIterator[int]:
    """The port of a listener that waits a quarter of a second for the head of a request."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text="done")

    runner = await listen(
        LOOPBACK,
        [web.get("/", answer)],
        body_max_bytes=1000,
        setting="LBG_LOCAL",
        **BOUNDS,
        request_within_s=0.25,
    )
    yield runner.addresses[0][1]
    await runner.cleanup()


@pytest.mark.long
async def test_who_dribbles_the_head_of_a_request_loses_the_connection(quick: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", quick)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n")

    async def dribble() -> None:
        while True:
            writer.write(b"X-A: 1\r\n")
            await asyncio.sleep(0.05)

    dribbling = asyncio.create_task(dribble())
    try:
        with suppress(ConnectionResetError):  # where something that was sent is not read yet
            assert await asyncio.wait_for(reader.read(), GUARD_S) == b""
    finally:
        dribbling.cancel()
        writer.close()


@pytest.mark.long
async def test_who_asks_nothing_more_loses_the_connection(quick: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", quick)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), GUARD_S)).endswith(b"done")
    writer.close()


def test_a_taken_port_is_told_by_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listener = Listener("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(
            Exception, match=r"^LBG_LOCAL is 127\.0\.0\.1:\d+, but the address cannot be used: "
        ):
            asyncio.run(listen(listener, [], body_max_bytes=1000, setting="LBG_LOCAL", **BOUNDS))


async def test_a_socket_that_is_served_is_not_taken_and_one_that_is_left_over_is(tmp_path: Path) -> None:
    path = tmp_path / "local.sock"
    listener = Listener(path=path)
    runner = await listen(listener, [], body_max_bytes=1000, setting="LBG_LOCAL", **BOUNDS)
    with pytest.raises(ConfigurationError, match=r"LBG_LOCAL is unix:.*: Address already in use"):
        await listen(listener, [], body_max_bytes=1000, setting="LBG_LOCAL", **BOUNDS)
    await runner.cleanup()
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    runner = await listen(listener, [], body_max_bytes=1000, setting="LBG_LOCAL", **BOUNDS)
    await runner.cleanup()
