"""HTTP client of the channels that push, its target, and verdicts from replies.

A connection that received bytes which are no reply, or precede the next one, is closed, so that no byte is read as part
of another reply.

A request is written with one call, its reply parsed where it arrives, and nothing else happens: no task, no timer, no
object for each header (docs/adr/0021-pushed-requests-have-connections-of-their-own.md).
"""

from __future__ import annotations

import asyncio
import json
import reprlib
import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, urlsplit

import httptools

from lbg_core.peers import system_reason
from lbg_sidecar.errors import SettingsError
from lbg_sidecar.message import (
    ACK,
    AFTER_MAX_S,
    VERDICT_RULE,
    Kind,
    Verdict,
    drop,
    is_of_group,
    kind_of,
    retry,
    unreadable,
)

_RULE = "must be http://HOST:PORT/PATH, or unix:/PATH/TO.sock:/URL-PATH"


@dataclass(frozen=True, slots=True)
class Target:
    """`socket`: the unix socket to connect to, None for TCP. `base`: scheme, host and port. `path`: with its query."""

    base: str
    path: str
    socket: str | None = None

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for TCP."""
        parts = urlsplit(self.base)
        return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)

    def __str__(self) -> str:
        return f"unix:{self.socket}:{self.path}" if self.socket is not None else self.base + self.path


def parse_target(value: str) -> Target:
    """Raises SettingsError."""
    if value.startswith("unix:"):
        socket, colon, path = value.removeprefix("unix:").rpartition(":")
        if not colon or not socket.startswith("/") or not path.startswith("/"):
            raise SettingsError("target", value, _RULE)
        return Target("http://localhost", path, socket)
    try:
        parts = urlsplit(value)
        is_fit = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit or parts.fragment or "@" in parts.netloc:
        if "@" in value:  # what is before it may be a password
            raise SettingsError("target", "an address with '@'", f"{_RULE}, without a login")
        raise SettingsError("target", value, _RULE)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(f"{parts.scheme}://{parts.netloc}", path)


REASON_MAX_CHARS = 500

_BATCH_RULE = 'must be empty or {"verdicts": [{"id": …, "verdict": …}, …]}'


@dataclass(frozen=True, slots=True)
class BatchVerdicts:
    """Verdicts of a reply on a batch: on the messages that it names, and on the rest."""

    rest: Verdict
    named: Mapping[str, Verdict] = field(default_factory=dict)

    def of(self, name: str) -> Verdict:
        return self.named.get(name, self.rest)


def verdict_of_reply(reply: Reply, *, now_s: float) -> Verdict:
    """`now_s`: seconds since 1970, for a Retry-After that is a date.

    Only 422 and an explicit verdict drop a message: a wrong path (404) or a login page (302) must lose nothing. A JSON
    object that is cut is a retry: the rest may have a verdict, and an acknowledgement cannot be revoked.
    """
    after_s = retry_after_s(reply.retry_after, now_s=now_s)
    if reply.status == 422:
        return drop(_shown(reply.body) or "HTTP 422")
    if not reply.is_success:
        return _failed(reply, after_s)
    if not reply.body.lstrip().startswith(b"{"):
        return ACK
    if reply.is_cut:
        return _cut(reply, after_s)
    try:
        fields = json.loads(reply.body)
    except (ValueError, RecursionError):
        return ACK
    return verdict_of_fields(fields, after_s) if fields.keys() & {"verdict", "status"} else ACK


def verdicts_of_reply(reply: Reply, *, now_s: float) -> BatchVerdicts:
    """For a batch. Only an explicit word drops a message: a 422 may be about one of them, or about the batch's form.

    A 2xx without a body (or with `null`, which frameworks send for a handler that returns nothing) acknowledges all.
    """
    after_s = retry_after_s(reply.retry_after, now_s=now_s)
    if not reply.is_success:
        return BatchVerdicts(_failed(reply, after_s))
    if reply.is_cut:
        return BatchVerdicts(_cut(reply, after_s))
    if reply.body.strip() in (b"", b"null"):
        return BatchVerdicts(ACK)
    try:
        fields = json.loads(reply.body)
    except (ValueError, RecursionError):
        fields = None
    items = fields.get("verdicts") if isinstance(fields, dict) else None
    if not isinstance(items, list) or not all(_is_named(item) for item in items):
        shown = _shown(reply.body)[:100]
        return BatchVerdicts(unreadable(f"the reply {_BATCH_RULE}: {shown}", after_s=after_s))
    named: dict[str, Verdict] = {}
    for item in items:
        verdict = verdict_of_fields(item, after_s)
        if named.setdefault(item["id"], verdict) != verdict:
            named[item["id"]] = unreadable("the reply has two verdicts for it", after_s=after_s)
    return BatchVerdicts(retry("the reply has no verdict for it", after_s=after_s), named)


def verdict_of_fields(fields: dict[str, object], after_s: float | None = None) -> Verdict:
    """From ``{"verdict": …, "reason": …, "after_s": …, "scope": …}`` or Dapr's ``{"status": …}``; `after_s` where it
    has none.

    An unknown verdict is a retry with that reason: an acknowledgement cannot be revoked.
    """
    word = fields.get("verdict", fields.get("status"))
    kind = kind_of(word)
    if kind is None:
        return unreadable(f"the reply's verdict is {reprlib.repr(word)}: {VERDICT_RULE}")
    if kind is Kind.ACK:
        return ACK
    reason = str(fields.get("reason") or "")[:REASON_MAX_CHARS]
    if kind is Kind.DROP:
        return drop(reason)
    own = fields.get("after_s")
    if isinstance(own, int | float) and not isinstance(own, bool) and own >= 0:
        after_s = float(min(own, AFTER_MAX_S))
    try:
        return Verdict(Kind.RETRY, reason, after_s, is_of_group=is_of_group(fields.get("scope")))
    except ValueError as error:
        return unreadable(str(error), after_s=after_s)


def retry_after_s(value: str | None, *, now_s: float) -> float | None:
    """RFC 9110, section 10.2.3: seconds, or a date. None for anything else."""
    if value is None:
        return None
    value = value.strip()
    if value.isascii() and value.isdecimal():
        return float(min(int(value[:9]), AFTER_MAX_S))
    try:
        at = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    wait_s = (at - datetime.fromtimestamp(now_s, UTC)).total_seconds()
    return float(min(max(wait_s, 0.0), AFTER_MAX_S))


def _failed(reply: Reply, after_s: float | None) -> Verdict:
    shown = _shown(reply.body)
    reason = f"HTTP {reply.status}: {shown}" if shown else f"HTTP {reply.status}"
    return Verdict(Kind.RETRY, reason, after_s, is_of_group=reply.status == 503 and reply.is_of_group)


def _cut(reply: Reply, after_s: float | None) -> Verdict:
    limit = len(reply.body)
    return unreadable(
        f"the reply is longer than {limit} bytes, so that its verdict cannot be read: answer 204 or a verdict",
        after_s=after_s,
    )


def _is_named(item: object) -> bool:
    return isinstance(item, dict) and isinstance(item.get("id"), str)


def _shown(body: bytes) -> str:
    return " ".join(body[: REASON_MAX_CHARS * 4].decode("utf-8", "replace").split())[:REASON_MAX_CHARS]


HEAD_MAX_BYTES = 32 * 1024
"""Of all that is not body. The parser itself has no limit."""

FRAMING_MAX_BYTES_PER_BYTE = 10
"""A chunk of one byte has five bytes around it."""


class ReplyError(Exception):
    """The bytes received are no HTTP reply; `str()` gives the reason."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes  # as much of it as the limit allows
    retry_after: str | None
    is_cut: bool = False  # at the limit
    is_of_group: bool = False  # header Lbg-Scope: group

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class ReplyReader:
    """One reply: `receive` until it returns it. `reusable` is then True if the connection may have another."""

    def __init__(self, body_max_bytes: int) -> None:
        self.reusable = False
        self._body_max_bytes = body_max_bytes
        self._parser = httptools.HttpResponseParser(self)
        self._received_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._status = 0  # of the reply, once its head is read
        self._retry_after: str | None = None
        self._is_of_group = False
        self._coding: bytes | None = None
        self._is_framed = False
        self._is_whole = False
        self._is_followed = False

    def receive(self, data: bytes) -> Reply | None:
        """The reply, once it is whole or longer than the limit. Raises ReplyError."""
        self._received_bytes += len(data)
        wrong: httptools.HttpParserError | None = None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            raise ReplyError("the reply switches the protocol") from None
        except httptools.HttpParserError as error:
            wrong = error
        if self._status == 101:
            raise ReplyError("the reply switches the protocol")
        if 0 < self._status < 100:
            raise ReplyError(f"the reply's status is not one of HTTP: {self._status:03}")
        if self._coding is not None and self._coding.lower() != b"chunked":
            raise ReplyError(f"the reply's transfer encoding cannot be read: {self._coding[:80]!r}")
        if self._body_bytes > self._body_max_bytes:
            self.reusable = False
            return self._cut()
        if self._is_whole:
            self.reusable = self.reusable and wrong is None and not self._is_followed
            return self._cut()
        if wrong is not None:
            raise ReplyError(f"the reply cannot be read as HTTP/1.1: {wrong}")
        framing_max_bytes = HEAD_MAX_BYTES + FRAMING_MAX_BYTES_PER_BYTE * self._body_bytes
        if self._received_bytes - self._body_bytes > framing_max_bytes:
            raise ReplyError(f"the reply has more than {HEAD_MAX_BYTES} bytes that are not its body")
        return None

    def ended(self) -> Reply:
        """The connection has ended: that may be how the reply ends. Raises ReplyError if not."""
        if self._status and not self._is_framed:
            return self._cut()  # RFC 9112, section 6.3: neither a length nor chunks
        where = "in the middle of" if self._received_bytes else "before"
        raise ReplyError(f"the connection was closed {where} the reply")

    def _cut(self) -> Reply:
        body = b"".join(self._body)[: self._body_max_bytes]
        is_cut = self._body_bytes > self._body_max_bytes
        return Reply(self._status, body, self._retry_after, is_cut, self._is_of_group)

    # Callbacks of the parser. It replaces an exception in here by another one.

    def on_message_begin(self) -> None:
        self._is_followed = self._is_whole

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._is_whole:
            return
        match name.lower():
            case b"retry-after":
                self._retry_after = value.decode("latin-1")
            case b"lbg-scope":
                self._is_of_group = value.strip().lower() == b"group"
            case b"transfer-encoding":
                self._coding = value if self._coding is None else self._coding + b", " + value
                self._is_framed = True
            case b"content-length":
                self._is_framed = True
            case _:
                pass

    def on_headers_complete(self) -> None:
        if self._is_whole:
            return
        status = self._parser.get_status_code()
        # RFC 9110, 15.2: an interim one; the reply is still to come.
        if 100 <= status < 200 and status != 101:
            self._retry_after = self._coding = None
            self._is_framed = False
            return
        self._status = status

    def on_body(self, body: bytes) -> None:
        if not self._is_whole:
            self._body.append(body)
            self._body_bytes += len(body)

    def on_message_complete(self) -> None:
        if self._status and not self._is_whole:
            self._is_whole = True
            self.reusable = self._parser.should_keep_alive()


CONNECT_TIMEOUT_S = 5.0
IDLE_MAX_S = 4.0
"""Node and uvicorn close a connection that was idle for 5 s: a request must not meet that close on its way."""

_IN_PATH = "".join(chr(mark) for mark in range(0x21, 0x7F))


class Unreachable(Exception):
    """No reply: refused, reset, or cut off before it. `str()` gives the cause."""


class Unconnected(Unreachable):
    """No connection: nothing of the request was sent."""


class HttpClient:
    """Raises Unreachable from each request; a request that is cancelled closes its connection."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tls = ssl.create_default_context() if target.base.startswith("https:") else None
        self._host = urlsplit(target.base).netloc
        self._idle: deque[_Connection] = deque()  # who was used last is last
        self._open: set[_Connection] = set()

    async def post(self, path: str, headers: dict[str, str], body: bytes, *, reply_max_bytes: int) -> Reply:
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        return await self._request(
            "POST", path, f"{fields}Content-Length: {len(body)}\r\n", body, reply_max_bytes
        )

    async def get(self, path: str, *, reply_max_bytes: int) -> Reply:
        return await self._request("GET", path, "", b"", reply_max_bytes)

    async def connect(self) -> None:
        """Checks that there can be a connection, and closes it in order: TLS servers log an abort."""
        (await self._connected()).close()

    def close(self) -> None:
        for connection in list(self._open):
            connection.abort()

    async def _request(self, method: str, path: str, fields: str, body: bytes, limit: int) -> Reply:
        head = (
            f"{method} {quote(path, safe=_IN_PATH)} HTTP/1.1\r\nHost: {self._host}\r\n{fields}\r\n".encode()
        )
        connection = self._idle_connection() or await self._connected()
        reply = connection.send(head + body, limit)
        try:
            return await reply
        except ReplyError as error:
            raise Unreachable(str(error)) from error
        except OSError as error:
            raise Unreachable(system_reason(error)) from error
        finally:
            if connection.is_reusable:
                connection.used_at = asyncio.get_running_loop().time()
                self._idle.append(connection)
            else:
                connection.abort()

    def _idle_connection(self) -> _Connection | None:
        fresh_since = asyncio.get_running_loop().time() - IDLE_MAX_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.used_at >= fresh_since:
                while self._idle and self._idle[0].used_at < fresh_since:
                    self._idle.popleft().abort()
                return connection
            connection.abort()
        return None

    async def _connected(self) -> _Connection:
        target, loop = self._target, asyncio.get_running_loop()

        def made() -> _Connection:
            return _Connection(self._open)

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if target.socket is not None:
                    _, connection = await loop.create_unix_connection(made, target.socket)
                else:
                    host, port = target.address
                    _, connection = await loop.create_connection(made, host, port, ssl=self._tls)
        except TimeoutError as error:
            raise Unconnected(f"not connected within {CONNECT_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise Unconnected(system_reason(error)) from error
        return connection


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, among: set[_Connection]) -> None:
        self.used_at = 0.0
        self._among = among
        self._transport: asyncio.Transport | None = None
        self._reader: ReplyReader | None = None
        self._reply: asyncio.Future[Reply] | None = None

    @property
    def is_reusable(self) -> bool:
        transport = self._transport
        return self._reply is None and transport is not None and not transport.is_closing()

    def send(self, request: bytes, reply_max_bytes: int) -> asyncio.Future[Reply]:
        """Raises, from the future, ReplyError and OSError."""
        assert self._reply is None
        assert self._transport is not None
        reply = self._reply = asyncio.get_running_loop().create_future()
        self._reader = ReplyReader(reply_max_bytes)
        self._transport.write(request)
        return reply

    def close(self) -> None:
        """In order: with TLS's close_notify."""
        assert self._transport is not None
        self._transport.close()

    def abort(self) -> None:
        """At once, with whatever is on its way."""
        self._among.discard(self)
        if self._transport is not None:
            self._transport.abort()

    # Callbacks of the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._among.add(self)

    def data_received(self, data: bytes) -> None:
        reader, reply = self._reader, self._reply
        if reader is None or reply is None or reply.done():
            self.abort()  # no request is open, and these bytes would be read as the next reply
            return
        try:
            whole = reader.receive(data)
        except ReplyError as error:
            self.abort()
            reply.set_exception(error)
            return
        if whole is not None:
            self._over(reply, whole, reusable=reader.reusable)

    def connection_lost(self, error: Exception | None) -> None:
        self._among.discard(self)
        reader, reply = self._reader, self._reply
        if reader is None or reply is None or reply.done():
            return
        if error is not None:
            reply.set_exception(error)
            return
        try:
            self._over(reply, reader.ended(), reusable=False)
        except ReplyError as ended:
            reply.set_exception(ended)

    def _over(self, reply: asyncio.Future[Reply], whole: Reply, *, reusable: bool) -> None:
        assert self._transport is not None
        # An early reply to a request that is not written yet: the rest of it would follow.
        if reusable and not self._transport.get_write_buffer_size():
            self._reader = self._reply = None
        else:
            self.abort()
        reply.set_result(whole)
