"""Malformed HTTP and WebSocket traffic against one listener: statuses, tracebacks in the log, growth of live memory.

The process is a real one on an embedded broker of its own: the broker with its management API, `lbg console` after a
login, or `lbg sidecar` with both its listeners, its publishing API and a stream application. Each connection sends
requests that are valid but for one thing. `python -m testing.http_fuzz --target management --minutes 10 --seed 1`.
Exit status 1: a 500, a traceback, or live memory that grew from the half of the time to the end.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import http.client
import json
import random
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode

from testing.broker.embedded import PASSWORD, USER, EmbeddedBroker
from testing.command_line import clean_environment
from testing.live_memory import LiveMemory, live_memory, observable
from testing.sidecar.process import SidecarProcess, create
from testing.waiting import GUARD_S

TARGETS = ("management", "console", "sidecar")
SILENT_S = 0.5
"""For an answer to a request, whose end may be missing."""

ALIVE_S = 60.0
"""A listener that answers no valid request for so long has stopped."""

GROWTH_MAX = 0.05
"""Of live memory, from the half of the time to the end: in the first half modules are imported and caches fill. Live
objects of a broker vary by 3 %."""
GROUP = "orders"
PREFETCH = "64"
"""Of each queue of the sidecar. Nothing is acknowledged, so deliveries in flight grow to it, well before the half."""

ODD_TEXTS = (
    *(
        "",
        "a",
        "q1",
        "x" * 300,
        "(a+)+$",
        "a" * 30 + "!",
        "^(?!a).*",
        "(a)\\1",
        "[",
        "\ud800",
        "é\u202e",
        "\0",
        "../..",
        "~",
    ),
    *(
        "%",
        "{}",
        "9" * 5000,
        "-1",
        "1e400",
        "NaN",
        "a.*.#.*.#",
        "#." * 60 + "a",
        ",".join("ab" * 500),
        "\r\nX: y",
    ),
)
ODD_JSON = (
    *(
        b"[" * 50_000,
        b'{"a":' * 2000 + b"1" + b"}" * 2000,
        b"9" * 100_000,
        b'"\\ud800"',
        b"[1e400, NaN, -Infinity]",
    ),
    *(
        b"\xff\xfe",
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"arguments": {"a": "\\ud800"}}',
        b'{"arguments": ' + b'{"a":' * 40 + b"1" + b"}" * 41,
    ),
    *(
        b'{"routing_key": "\\udcff"}',
        b'{"password": "\\ud800", "tags": "\\ud800"}',
        b'{"tags": [1]}',
        b'{"type": "topic"}',
    ),
    *(
        b'{"arguments": {"x-max-length": 1e400, "k": NaN}}',
        b'{"arguments": {"x-message-ttl": 99999999999999999999}}',
    ),
    *(
        b'{"configure": "(a+)+$", "write": "(?<!a)", "read": "(a)\\\\1"}',
        b'{"configure": "", "write": "", "read": "\\ud800"}',
    ),
)
FORM = "application/x-www-form-urlencoded"
CONTENT_TYPES = (
    *(
        "application/json",
        FORM,
        "multipart/form-data",
        "multipart/form-data; boundary=b",
        "text/plain; charset=nonsense",
    ),
    *(
        "application/cloudevents+json",
        "application/cloudevents-batch+json",
        "application/cloudevents+avro",
        "\xff/\xfe",
        "",
    ),
)
MULTIPART = (
    *(
        b"--b\r\n\r\nx\r\n--b--",
        b'--b\r\nContent-Disposition: form-data; name="csrf"\r\n\r\nx',
        b"--c--",
        b"--b--",
    ),
    *(
        b"--b\r\nContent-Type: x;;=\xff\r\nContent-Transfer-Encoding: odd\r\n\r\nx\r\n--b--",
        b"--b\r\n" * 3000,
    ),
)


@dataclass(frozen=True, slots=True)
class Routes:
    """Routes of a listener: paths with {} for a name, headers of a login, and a path for WebSockets."""

    address: str | tuple[str, int]
    paths: tuple[tuple[str, str], ...]
    headers: tuple[str, ...] = ()
    stream: str = ""


@dataclass
class Findings:
    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    """Requests answered with 500, and tracebacks."""

    def __str__(self) -> str:
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        return (
            f"{self.requests} requests, {len(self.failures)} failures; statuses (0: closed without an answer): "
            f"{statuses}"
        )


class Fuzzer:
    """Requests of a seed, over as many connections as requests."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def ask(self, routes: Routes, findings: Findings) -> None:
        request = (
            self._stream(routes) if routes.stream and self.chance.random() < 0.2 else self._request(routes)
        )
        findings.requests += 1
        status = _answer(routes.address, request)
        findings.statuses[status] += 1
        if status == 500:
            findings.failures.append(f"500: {request[:300]!r}")

    def _text(self) -> str:
        chance = self.chance
        if chance.random() < 0.5:
            return f"q{chance.randrange(8)}"
        return chance.choice(ODD_TEXTS)

    def _request(self, routes: Routes) -> bytes:
        chance = self.chance
        verb, path = chance.choice(routes.paths)
        while "{}" in path:
            path = path.replace("{}", quote(self._text().encode("utf-8", "surrogatepass"), safe="")[:3000], 1)
        if chance.random() < 0.4:
            names = (
                "page",
                "page_size",
                "name",
                "use_regex",
                "columns",
                "count",
                "truncate",
                "wait",
                "from",
                "next",
                "key",
                "topic",
            )
            query = [(chance.choice(names), self._text()) for _ in range(3)] + [
                ("use_regex", "true"),
                ("page", "1"),
            ]
            path += (
                "?"
                + urlencode([(name, text.encode("utf-8", "surrogatepass")) for name, text in query])[:7000]
            )
        headers = [f"Host: {self._odd('localhost')}", *routes.headers]
        body = b""
        if verb not in ("GET", "DELETE") or chance.random() < 0.1:
            body = self._body(headers)
        if chance.random() < 0.1:
            verb = chance.choice(("HEAD", "OPTIONS", "PATCH", "POST", "PUT", "GET", "BREW", "g\0t"))
        if chance.random() < 0.1:
            path = self._damaged(path.encode()).decode("latin-1").replace(" ", "")
        if chance.random() < 0.1:
            names = ("Authorization", "Cookie", "ce-id", "lbg-key", "Expect", "Range", "Accept", "Upgrade")
            headers.append(f"{chance.choice(names)}: {self._odd('Basic !')}")
        head = "\r\n".join((f"{verb} {path} HTTP/1.1", *headers, "Connection: close", "", ""))
        whole = head.encode("utf-8", "surrogatepass") + body
        return self._damaged(whole) if chance.random() < 0.05 else whole

    def _odd(self, usual: str) -> str:
        return usual if self.chance.random() < 0.9 else self._text().replace("\r\n", "")

    def _body(self, headers: list[str]) -> bytes:
        chance = self.chance
        form = urlencode({"username": "a", "csrf": "b", "session": "s"}).encode()
        event = {
            "specversion": "1.0",
            "id": self._text(),
            "source": "/s",
            "type": "t",
            "partitionkey": self._text(),
            "data": self._text(),
        }
        body = chance.choice(
            (*ODD_JSON, *MULTIPART, form, json.dumps(event).encode(), json.dumps([event] * 3).encode())
        )
        if chance.random() < 0.1:
            body = self._damaged(body)
        headers.append(f"Content-Type: {chance.choice(CONTENT_TYPES)}")
        if chance.random() < 0.2:
            encoding = chance.choice(("gzip", "deflate", "br", "zstd", "odd"))
            headers.append(f"Content-Encoding: {encoding}")
            packed = gzip.compress(bytes(20_000_000) if chance.random() < 0.02 else body)
            body = chance.choice((packed, packed[:-5], self._damaged(packed), body))
        if chance.random() < 0.1:
            headers.append("Transfer-Encoding: chunked")
            return chance.choice((b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body), b"zz\r\n" + body, b"5\r\nab"))
        length = chance.choice((len(body) + 5, len(body) // 2, -1)) if chance.random() < 0.05 else len(body)
        headers.append(f"Content-Length: {length}")
        return body

    def _damaged(self, data: bytes) -> bytes:
        damaged = bytearray(data or b"?")
        for _ in range(self.chance.randrange(1, 4)):
            damaged[self.chance.randrange(len(damaged))] = self.chance.randrange(256)
        return bytes(
            damaged[: self.chance.randrange(1, len(damaged) + 1)] if self.chance.random() < 0.3 else damaged
        )

    def _stream(self, routes: Routes) -> bytes:
        """A WebSocket's handshake and frames behind it."""
        chance = self.chance
        head = (
            f"GET {routes.stream} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: {self._odd('lbg.stream.v1')}\r\n"
            f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n"
        ).encode("utf-8", "replace")
        texts = (
            *ODD_JSON,
            *(
                b'{"hello": {"credit": 5}}',
                b'{"hello": {"credit": 1e400}}',
                b'{"hello": {"credit": 1, "processed": [[]]}}',
            ),
            *(
                b'{"acks": [1, 2]}',
                b'{"ack": 99999999999999999999}',
                b'{"verdicts": [{"n": 1, "verdict": "\\ud800"}]}',
                b'{"credit": -1}',
            ),
        )
        frames = [b'{"hello": {"credit": 5}}'] if chance.random() < 0.6 else []
        frames += [chance.choice(texts) for _ in range(3)]
        data = head + b"".join(self._frame(text) for text in frames)
        return self._damaged(data) if chance.random() < 0.1 else data

    def _frame(self, text: bytes) -> bytes:
        chance = self.chance
        first = chance.choice((0x81,) * 12 + (0x82, 0x01, 0x80, 0x88, 0x89, 0x8A, 0xC1, 0x83))
        if len(text) < 126:
            size = bytes((0x80 | len(text),))
        else:
            size = bytes((0x80 | 127,)) + struct.pack(">Q", len(text) if chance.random() < 0.95 else 1 << 62)
        return bytes((first,)) + size + bytes(4) + text


def _answer(address: str | tuple[str, int], request: bytes, *, within_s: float = SILENT_S) -> int:
    """The status of the first answer; 0 where none comes."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family) as sock:
        sock.settimeout(within_s)
        sock.connect(address)
        answer = b""
        with suppress(ConnectionError, TimeoutError):
            sock.sendall(request)
            while b"\r\n" not in answer and (part := sock.recv(65536)):
                answer += part
    words = answer.split(b" ", 2)
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else 0


def _require_alive(routes: Routes) -> None:
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert _answer(routes.address, request, within_s=ALIVE_S), f"no answer within {ALIVE_S:g} s"


def fuzz(routes: list[Routes], fuzzer: Fuzzer, findings: Findings, *, goes_on: Callable[[int], bool]) -> None:
    """`goes_on` is given the number of requests so far."""
    while goes_on(findings.requests):
        fuzzer.ask(fuzzer.chance.choice(routes), findings)
        if findings.requests % 100 == 0:
            _require_alive(routes[0])


def tracebacks(log: str) -> list[str]:
    return [f"in the log: {log[at:][:1500]}" for at in _all(log, "Traceback")[:3]]


def _all(text: str, word: str) -> list[int]:
    found, at = [], text.find(word)
    while at >= 0:
        found.append(at)
        at = text.find(word, at + 1)
    return found


_NAMED = (
    "queues/%2F/{}",
    "exchanges/%2F/{}",
    "bindings/%2F/e/{}/q/{}",
    "bindings/%2F/e/{}/q/{}/{}",
    "queues/{}/{}",
    "users/{}x",
)
MANAGEMENT_PATHS: tuple[tuple[str, str], ...] = (
    *((verb, f"/api/{path}") for path in _NAMED for verb in ("GET", "PUT", "POST", "DELETE")),
    *(
        ("GET", f"/api/{one}")
        for one in ("overview", "queues", "exchanges", "bindings", "connections/", "channels", "consumers")
    ),
    *(
        ("GET", f"/api/{one}")
        for one in ("whoami", "nodes", "vhosts", "vhosts/{}", "users", "permissions", "policies/%2F")
    ),
    *(("PUT", f"/api/{one}") for one in ("vhosts/{}", "permissions/%2F/{}x", "policies/%2F/{}", "users/{}x")),
    *(
        ("GET", one)
        for one in ("/metrics", "/healthz", "/readyz", "/api/{}", "/{}", "/api/lbg/queues/%2F/{}/messages")
    ),
    *(("POST", f"/api/lbg/queues/%2F/{{}}/{one}") for one in ("close", "ingress", "close-session", "{}")),
    *(
        ("GET", f"/api/{one}")
        for one in ("queues/%2F/{}/bindings", "exchanges/%2F/{}/bindings/source", "aliveness-test/{}")
    ),
    ("DELETE", "/api/queues/%2F/{}/contents"),
    ("GET", "/api/connections/{}/channels"),
)
CONSOLE_PATHS: tuple[tuple[str, str], ...] = (
    *(
        ("GET", one)
        for one in (
            "/",
            "/login",
            "/groups/{}",
            f"/groups/{GROUP}",
            f"/groups/{GROUP}/timeline",
            "/static/{}",
        )
    ),
    *(("GET", f"/groups/{GROUP}/{one}") for one in ("key", "parked", "dead", "acts/pause", "acts/{}")),
    *(
        ("POST", one)
        for one in (
            "/login",
            f"/groups/{GROUP}/acts/skip",
            f"/groups/{GROUP}/acts/{{}}",
            "/groups/{}/acts/pause",
        )
    ),
    *(("GET", one) for one in ("/kubernetes/{}/{}", "/healthz", "/{}")),
)
LOCAL_PATHS: tuple[tuple[str, str], ...] = (
    *(("POST", one) for one in (f"/v1/publish/{GROUP}", f"/v1/publish/{GROUP}", "/v1/publish/{}")),
    *(("GET", one) for one in ("/v1/state", "/v1/stream", "/{}")),
)
OBSERVED_PATHS: tuple[tuple[str, str], ...] = tuple(
    ("GET", one) for one in ("/metrics", "/healthz", "/readyz", "/drained?wait=0", "/drained?wait={}", "/{}")
)


@contextmanager
def management(directory: Path) -> Iterator[tuple[list[Routes], int, Callable[[], str]]]:
    with EmbeddedBroker(directory / "data") as broker:
        login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        address = ("127.0.0.1", broker.management_port)
        yield (
            [Routes(address, MANAGEMENT_PATHS, (f"Authorization: Basic {login}",))],
            broker.pid,
            broker.log_file.read_text,
        )


@contextmanager
def console(directory: Path) -> Iterator[tuple[list[Routes], int, Callable[[], str]]]:
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(directory / "data"))
        create(broker, GROUP)
        log = directory / "console.log"
        environment = {
            **clean_environment(),
            "LBG_BROKER": broker.url,
            "LBG_MANAGEMENT": broker.management_url,
        }
        with log.open("w") as written:
            process = subprocess.Popen(
                [sys.executable, "-m", "lbgroup", "console", "--listen", "127.0.0.1:0"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=written,
            )
        stack.callback(process.wait)
        stack.callback(process.kill)
        deadline = time.monotonic() + GUARD_S
        while "http://127.0.0.1:" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        port = int(log.read_text().partition("http://127.0.0.1:")[2].split("/")[0].split()[0])
        cookie = _signed_in(port)
        headers = (f"Cookie: {cookie}", "Sec-Fetch-Site: same-origin", f"Origin: http://localhost:{port}")
        paths = Routes(("127.0.0.1", port), CONSOLE_PATHS, headers)
        yield [paths], process.pid, log.read_text


def _signed_in(port: int) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GUARD_S)
    form = urlencode({"username": USER, "password": PASSWORD})
    connection.request("POST", "/login", form, {"Content-Type": FORM, "Origin": f"http://127.0.0.1:{port}"})
    answer = connection.getresponse()
    cookie = answer.getheader("Set-Cookie", "")
    connection.close()
    assert answer.status == 303, answer.status
    return cookie.partition(";")[0]


@contextmanager
def sidecar(directory: Path) -> Iterator[tuple[list[Routes], int, Callable[[], str]]]:
    with EmbeddedBroker(directory / "data") as broker:
        create(broker, GROUP)
        process = SidecarProcess(broker.url, directory, GROUP, LBG_APP="stream", LBG_PREFETCH=PREFETCH)
        try:
            deadline = time.monotonic() + GUARD_S
            while not process.observed or not process.socket.exists():
                assert process.process.poll() is None, process.text
                assert time.monotonic() < deadline
                time.sleep(0.1)
            host, _, port = process.observed.rpartition(":")
            local = Routes(str(process.socket), LOCAL_PATHS, stream="/v1/stream")
            observed = Routes((host, int(port)), OBSERVED_PATHS)
            yield [local, local, local, observed], process.process.pid, lambda: process.text
        finally:
            process.process.kill()
            process.process.wait()


STARTED = {"management": management, "console": console, "sidecar": sidecar}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", choices=TARGETS, required=True)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    fuzzer, findings = Fuzzer(chosen.seed), Findings()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lbg-fuzz-")))
        stack.enter_context(observable(directory))
        routes, pid, log = stack.enter_context(STARTED[chosen.target](directory))
        half, end = (
            _measured(routes, pid, fuzzer, findings, directory, 30 * chosen.minutes) for _ in range(2)
        )
        findings.failures += tracebacks(log())
        lines = len(log().splitlines())
    growth = half.growth_to(end)
    print(f"{chosen.target}, seed {chosen.seed}: {findings}; {lines} lines of log")
    print(
        f"live memory at the half: {half}; at the end: {end}; growth {growth:.1%}, at most {GROWTH_MAX:.0%}"
    )
    for failure in findings.failures[:20]:
        print(failure)
    sys.exit(1 if findings.failures or growth > GROWTH_MAX else 0)


def _measured(
    routes: list[Routes], pid: int, fuzzer: Fuzzer, findings: Findings, directory: Path, for_s: float
) -> LiveMemory:
    ends_at = time.monotonic() + for_s
    fuzz(routes, fuzzer, findings, goes_on=lambda _: time.monotonic() < ends_at)
    return live_memory(pid, directory)


if __name__ == "__main__":
    main()
