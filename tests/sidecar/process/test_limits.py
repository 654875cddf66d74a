"""The real process's listeners against clients that send too much, too slowly, or nonsense. No broker is needed."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from testing.broker.embedded import free_port
from testing.command_line import end_started, start_lbg
from testing.sidecar.process import BATCH, PROMPT, Sidecar
from testing.waiting import GUARD_S

pytestmark = pytest.mark.process

BODY_MAX_BYTES = 10_000


class Nowhere:
    """Address without a broker."""

    def __init__(self) -> None:
        self.url = f"amqp://guest:guest@127.0.0.1:{free_port()}/"


def started(directory: Path, name: str, **settings: str) -> tuple[Sidecar, int]:
    """A sidecar without a broker, and the port of its local listener."""
    told = {"LBG_LOCAL": "127.0.0.1:0", "LBG_BODY_MAX_BYTES": str(BODY_MAX_BYTES), **settings}
    sidecar = Sidecar(Nowhere(), directory, name, PROMPT, **told)
    found = re.search(r"local listener: \S+:(\d+)", sidecar.text)
    assert found is not None
    return sidecar, int(found[1])


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> None:
    """The sidecar outlives the test that needed it first."""


@pytest.fixture(scope="module")
def sidecar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sidecar, int]]:
    yield started(tmp_path_factory.mktemp("sidecar"), "limited")
    end_started()


@pytest.fixture
def port(sidecar: tuple[Sidecar, int]) -> int:
    return sidecar[1]


def ask(
    port: int, method: str, path: str, body: bytes | Iterator[bytes] = b"", **headers: str
) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_S)
    try:
        connection.request(method, path, body, headers, encode_chunked=not isinstance(body, bytes))
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_a_body_over_the_limit_is_refused_with_the_limit(port: int) -> None:
    status, text = ask(port, "POST", "/v1/publish/g", b"x" * (BODY_MAX_BYTES + 1))
    assert status == 413
    assert (
        json.loads(text)["detail"]
        == f"the body takes more than {BODY_MAX_BYTES} bytes: nothing was published"
    )


def test_a_body_that_does_not_say_how_long_it_is_ends_at_the_limit_too(port: int) -> None:
    chunks = iter([b"x" * 1000] * 11)
    status, _ = ask(port, "POST", "/v1/publish/g", chunks, **{"Transfer-Encoding": "chunked"})
    assert status == 413


@pytest.mark.parametrize("headers", [{"X-Long": "x" * 9000}, {f"X-{n}": "1" for n in range(200)}])
def test_headers_over_the_limit_are_refused(port: int, headers: dict[str, str]) -> None:
    assert ask(port, "GET", "/v1/state", **headers)[0] in (400, 431)


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status"),
    [
        ("POST", "/v1/publish/g", b"{", BATCH, 400),
        ("POST", "/v1/publish/g", b"[" * 5000, BATCH, 400),
        ("POST", "/v1/publish/g", b"\xff\xfe", "application/cloudevents+json", 400),
        ("POST", "/v1/publish/g", b"<a/>", "application/cloudevents+xml", 415),
        ("GET", "/v1/publish/g", b"", "text/plain", 405),
        ("DELETE", "/v1/state", b"", "text/plain", 405),
        ("POST", "/v1/drain?wait=soon", b"", "text/plain", 400),
        ("POST", "/v1/elsewhere", b"", "text/plain", 404),
        ("GET", "/v1/stream", b"", "text/plain", 404),
    ],
)
def test_nonsense_is_answered_with_its_status_and_a_line(
    port: int, method: str, path: str, body: bytes, kind: str, status: int
) -> None:
    found, text = ask(port, method, path, body, **{"Content-Type": kind})
    assert (found, bool(text.strip()), "Traceback" in text) == (status, True, False)


def test_a_page_of_another_host_may_not_make_it_leave(port: int, sidecar: tuple[Sidecar, int]) -> None:
    assert ask(port, "POST", "/v1/drain", Origin="https://evil.example")[0] == 403
    assert ask(port, "POST", "/v1/drain", Host="evil.example")[0] == 421
    assert "leaving" not in sidecar[0].get("/readyz")[1]


def test_what_is_not_http_is_refused_and_logs_no_traceback(port: int, sidecar: tuple[Sidecar, int]) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=GUARD_S) as raw:
        raw.sendall(b"\x16\x03\x01 not http at all\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.0 400")
    assert "Traceback" not in sidecar[0].text


def test_the_local_listener_is_on_its_loopback_address_alone(port: int) -> None:
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=GUARD_S)


def test_who_sends_slowly_holds_up_neither_others_nor_the_end(tmp_path: Path) -> None:
    slow, port = started(tmp_path, "slow", LBG_LOCAL="0.0.0.0:0")
    assert "LBG_LOCAL is 0.0.0.0:0, which is not a loopback address and has no authentication" in slow.text
    idle = [socket.create_connection(("127.0.0.1", port), timeout=GUARD_S) for _ in range(200)]
    head = socket.create_connection(("127.0.0.1", port), timeout=GUARD_S)
    head.sendall(b"GET /v1/state HTTP/1.1\r\nHost: localhost\r\nX-")
    body = socket.create_connection(("127.0.0.1", port), timeout=GUARD_S)
    body.sendall(b"POST /v1/publish/g HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\nx")
    try:
        assert ask(port, "GET", "/v1/state")[0] == 200
        assert slow.get("/healthz")[0] == 200
        for one in (head, body):  # which are still there: nobody was served because they had ended
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
        body.sendall(b"x")
        slow.process.send_signal(signal.SIGTERM)
        assert slow.process.wait(timeout=GUARD_S) == 0, slow.text
    finally:
        for each in (*idle, head, body):
            each.close()


def test_a_taken_port_ends_it_with_one_line_and_status_2(port: int) -> None:
    environment = {"LBG_GROUP": "g", "LBG_COMMAND": "cat", "LBG_LOCAL": f"127.0.0.1:{port}"}
    process = start_lbg("sidecar", environment=environment)
    _, err = process.communicate(timeout=GUARD_S)
    assert process.returncode == 2
    assert (
        err
        == f"lbg: error: LBG_LOCAL is 127.0.0.1:{port}, but the address cannot be used: Address already in use "
        "(another process listens there: end it, or choose another port)\n"
    )
