"""The client of the channels that push, on a server that answers what a test tells it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

import pytest
import trustme

from lbg_sidecar.app.http_client import HttpClient, Unreachable, parse_target
from testing.waiting import until

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers the requests of each connection with `answers`, then closes it. `heads` are those of all."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = answers
        self.heads: list[bytes] = []
        self.connections = 0
        self.closed = 0
        self.open = 0
        self.port = 0
        self.reads_bodies = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            for answer in self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                if self.reads_bodies:
                    await reader.readexactly(_length(head))
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            self.closed += 1
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.open -= 1


def _length(head: bytes) -> int:
    return int(head.partition(b"Content-Length: ")[2].partition(b"\r")[0] or 0)


@asynccontextmanager
async def asking(*answers: bytes) -> AsyncIterator[tuple[Server, HttpClient]]:
    server = Server(*answers)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    requester = HttpClient(parse_target(f"http://127.0.0.1:{server.port}/"))
    try:
        yield server, requester
    finally:
        requester.close()
        listening.close()
        await until(lambda: not server.open)


async def post(requester: HttpClient, body: bytes = b"x", path: str = "/a") -> bytes:
    return (await requester.post(path, {"Ce-Id": "1"}, body, reply_max_bytes=100)).body


async def test_one_after_another_go_over_one_connection() -> None:
    async with asking(*[OK] * 9) as (server, requester):
        for _ in range(5):
            assert await post(requester) == b"ok"
    assert server.connections == 1


async def test_as_many_connections_are_kept_as_requests_were_under_way() -> None:
    async with asking(*[OK] * 9) as (server, requester):
        for _ in range(3):
            await asyncio.gather(*(post(requester) for _ in range(4)))
        assert server.connections == 4


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async with asking(OK) as (server, requester):
        for _ in range(3):
            assert await post(requester) == b"ok"
            await asyncio.sleep(0.01)  # the close comes after the reply
    assert server.connections == 3


async def test_what_nobody_asked_for_is_not_taken_for_the_next_reply() -> None:
    async with asking(OK + OK.replace(b"ok", b"no"), OK) as (server, requester):
        assert await post(requester) == b"ok"
        assert await post(requester) == b"ok"
    assert server.connections == 2


async def test_an_early_reply_to_what_is_not_sent_yet_ends_the_connection() -> None:
    large = bytes(32 * 1024 * 1024)
    async with asking(OK, OK) as (server, requester):
        server.reads_bodies = False
        for _ in range(2):
            assert await post(requester, large) == b"ok"
    assert server.connections == 2


async def test_a_request_that_is_cancelled_closes_its_connection() -> None:
    async with asking(b"", OK) as (server, requester):
        task = asyncio.create_task(post(requester))
        await until(lambda: server.heads)
        task.cancel()
        await until(lambda: server.closed == 1)
        assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [(b"", "before the reply"), (OK[:-1], "in the middle"), (b"what?\r\n\r\n", "cannot be read as HTTP")],
)
async def test_half_a_reply_and_none_are_unreachable_and_the_next_request_goes_on(
    answer: bytes, why: str
) -> None:
    async with asking(answer) as (server, requester):
        for _ in range(2):
            with pytest.raises(Unreachable, match=why):
                await post(requester)
    assert server.connections == 2


async def test_a_port_nobody_listens_on_is_unreachable() -> None:
    async with asking() as (server, _):
        pass
    requester = HttpClient(parse_target(f"http://127.0.0.1:{server.port}/"))
    with pytest.raises(Unreachable, match="Connection refused"):
        await post(requester)


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """Of a server named localhost, which `HttpClient` trusts."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return context


async def test_a_certificate_that_cannot_be_verified_is_named_as_the_cause(
    tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    listening = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=tls)
    port = listening.sockets[0].getsockname()[1]
    with pytest.raises(Unreachable, match=r"IP address mismatch, certificate is not valid for '127.0.0.1'"):
        await HttpClient(parse_target(f"https://127.0.0.1:{port}/")).connect()
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(Unreachable, match=r"^unable to get local issuer certificate$"):
        await HttpClient(parse_target(f"https://localhost:{port}/")).connect()
    listening.close()


async def test_a_check_of_a_tls_port_ends_with_close_notify(tls: ssl.SSLContext) -> None:
    def served(listening: socket.socket) -> bytes:
        plain, _ = listening.accept()
        with tls.wrap_socket(plain, server_side=True, suppress_ragged_eofs=False) as connection:
            return connection.recv(1)

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        received = asyncio.create_task(asyncio.to_thread(served, listening))
        await HttpClient(parse_target(f"https://localhost:{listening.getsockname()[1]}/")).connect()
        assert await received == b""


async def test_the_path_is_encoded_and_the_host_is_named() -> None:
    async with asking(OK) as (server, requester):
        await post(requester, path="/a b/ü?q=%20\r\nX: y")
    start, host, *_ = server.heads[0].split(b"\r\n")
    assert start == b"POST /a%20b/%C3%BC?q=%20%0D%0AX:%20y HTTP/1.1"
    assert host == b"Host: 127.0.0.1:%d" % server.port
