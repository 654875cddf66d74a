"""Input that no handler expects: one line with 400, and one in the log for each address and minute."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, web

from lbg_core.http_listener import BoundedRunner, bad_input, form_of
from lbg_core.peers import PeerLog


async def handle(request: web.Request) -> web.Response:
    match request.path:
        case "/json":
            return web.Response(text=json.dumps(json.loads(await request.read())))
        case "/form":
            return web.Response(text=",".join(await form_of(request)))
        case "/text":
            return web.Response(text=str(len((await request.read()).decode())))
        case _:
            raise KeyError("a mistake of ours")


@pytest.fixture
async def url(caplog: pytest.LogCaptureFixture) -> AsyncIterator[str]:
    caplog.set_level(logging.INFO)
    app = web.Application(middlewares=[bad_input])
    app.router.add_route("*", "/{path}", handle)
    peer_log = PeerLog(logging.getLogger("lbg.tested"))
    runner = BoundedRunner(app, connections_max=10, of_an_address_max=10, peer_log=peer_log, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    peer_log.close()
    await runner.cleanup()


BAD: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "deep JSON": ("/json", b"[" * 100_000, {}),
    "no UTF-8": ("/text", b"\xff\xfe", {}),
    "no gzip": ("/json", b"no gzip", {"Content-Encoding": "gzip"}),
    "damaged gzip": ("/json", gzip.compress(b"x" * 1000)[:-9] + b"?" * 9, {"Content-Encoding": "gzip"}),
    "no deflate": ("/json", b"no deflate", {"Content-Encoding": "deflate"}),
    "another boundary": ("/form", b"--c--", {"Content-Type": "multipart/form-data; boundary=b"}),
    "no boundary": ("/form", b"x", {"Content-Type": "multipart/form-data"}),
    "unknown charset": (
        "/form",
        b"a=%ff",
        {"Content-Type": "application/x-www-form-urlencoded; charset=nonsense"},
    ),
}


@pytest.mark.parametrize(("path", "body", "headers"), BAD.values(), ids=BAD)
async def test_bad_input_is_400_with_one_line_in_the_log(
    url: str, caplog: pytest.LogCaptureFixture, path: str, body: bytes, headers: dict[str, str]
) -> None:
    async with ClientSession() as session:
        for _ in range(3):
            async with session.post(url + path, data=body, headers=headers) as answer:
                assert answer.status == 400
                assert len((await answer.text()).splitlines()) == 1
    (record,) = caplog.records
    assert "127.0.0.1: bad request: " in record.getMessage()
    assert record.exc_info is None


@pytest.mark.parametrize("head", [b"Content-Length: -5", b"bad\0header", b"Expect: \xed\xa0\x80", b"X: \xff"])
async def test_what_is_no_http_is_400_with_one_line_in_the_log(
    url: str, caplog: pytest.LogCaptureFixture, head: bytes
) -> None:
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /text HTTP/1.1\r\nHost: a\r\n" + head + b"\r\n\r\n")
        assert b" 400 " in await reader.readline()
        writer.close()
    (record,) = caplog.records
    assert record.getMessage().isprintable()
    assert record.exc_info is None


async def test_a_mistake_of_ours_is_500_with_one_traceback(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with ClientSession() as session:
        for _ in range(3):
            async with session.get(f"{url}/broken") as answer:
                assert answer.status == 500
    (record,) = caplog.records
    assert record.exc_info is not None
    assert "a mistake of ours" in str(record.exc_info[1])
