"""The HTTP client of the channels that push: one host, kept connections, replies that are never larger than a limit.

A request is written with one call, its reply parsed where it arrives, and nothing else happens: no task, no timer, no
object for each header (docs/adr/0021-pushed-requests-have-connections-of-their-own.md).
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from urllib.parse import quote, urlsplit

from .reply_reading import Reply, ReplyError, ReplyReader
from .targets import Target

CONNECT_TIMEOUT_S = 5.0
IDLE_MAX_S = 4.0
"""Node and uvicorn close a connection that was idle for 5 s: a request must not meet that close on its way."""

_IN_PATH = "".join(chr(mark) for mark in range(0x21, 0x7F))


class Unreachable(Exception):
    """Nobody answered: refused, reset, or cut off before the reply. `str()` says which."""


class Requester:
    """Raises Unreachable from each request; a request that is cancelled closes its connection."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tls = ssl.create_default_context() if target.base.startswith("https:") else None
        self._host = urlsplit(target.base).netloc
        self._idle: deque[_Connection] = deque()  # who was used last is last
        self._open: set[_Connection] = set()
        self._loop = asyncio.get_running_loop()

    async def post(self, path: str, headers: dict[str, str], body: bytes, *, reply_max_bytes: int) -> Reply:
        fields = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        return await self._ask(
            "POST", path, f"{fields}Content-Length: {len(body)}\r\n", body, reply_max_bytes
        )

    async def get(self, path: str, *, reply_max_bytes: int) -> Reply:
        return await self._ask("GET", path, "", b"", reply_max_bytes)

    async def close(self) -> None:
        for connection in list(self._open):
            connection.close()

    async def _ask(self, method: str, path: str, fields: str, body: bytes, limit: int) -> Reply:
        head = (
            f"{method} {quote(path, safe=_IN_PATH)} HTTP/1.1\r\nHost: {self._host}\r\n{fields}\r\n".encode()
        )
        connection = self._kept() or await self._connected()
        reply = connection.ask(head + body, limit)
        try:
            return await reply
        except ReplyError as error:
            raise Unreachable(str(error)) from error
        except OSError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
        finally:
            if connection.is_reusable:
                connection.used_at = self._loop.time()
                self._idle.append(connection)
            else:
                connection.close()

    def _kept(self) -> _Connection | None:
        fresh_since = self._loop.time() - IDLE_MAX_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.used_at >= fresh_since:
                while self._idle and self._idle[0].used_at < fresh_since:
                    self._idle.popleft().close()
                return connection
            connection.close()
        return None

    async def _connected(self) -> _Connection:
        target = self._target
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if target.socket is not None:
                    _, connection = await self._loop.create_unix_connection(
                        lambda: _Connection(self._open), target.socket
                    )
                else:
                    host, port = target.address
                    _, connection = await self._loop.create_connection(
                        lambda: _Connection(self._open), host, port, ssl=self._tls
                    )
        except TimeoutError as error:
            raise Unreachable(f"not connected within {CONNECT_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise Unreachable(f"{type(error).__name__}: {error}") from error
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

    def ask(self, request: bytes, reply_max_bytes: int) -> asyncio.Future[Reply]:
        """Raises, from the future, ReplyError and OSError."""
        assert self._reply is None
        assert self._transport is not None
        reply = self._reply = asyncio.get_running_loop().create_future()
        self._reader = ReplyReader(reply_max_bytes)
        self._transport.write(request)
        return reply

    def close(self) -> None:
        """At once, with whatever is on its way."""
        self._among.discard(self)
        if self._transport is not None:
            self._transport.abort()

    # What the event loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._among.add(self)

    def data_received(self, data: bytes) -> None:
        reader, reply = self._reader, self._reply
        if reader is None or reply is None or reply.done():
            self.close()  # nobody asked for this, and it would be taken for the next reply
            return
        try:
            whole = reader.receive(data)
        except ReplyError as error:
            self.close()
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
            self.close()
        reply.set_result(whole)
