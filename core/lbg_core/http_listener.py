"""HTTP listeners: the guard against browsers, answers to bad input, and a bound on connections.

What protects a listener on a loopback address is that only this pod, or this machine, reaches it. A browser there makes
a hole in that. Any page may have it POST to 127.0.0.1 without being asked (WHATWG Fetch, "simple" requests and
WebSockets), and a page whose name is made to resolve to 127.0.0.1 (DNS rebinding) may read the answers. Both show in
headers that a page cannot change: `Origin` is its own, and `Host` is the name that it was loaded from. That excludes no
application: it speaks to localhost, and sends no `Origin`.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from lbg_core.peers import FairPlaces, PeerLog, is_of_here, printable


def guard(*, checks_host: bool) -> Middleware:
    """Refuses pages of other hosts. `Host` is checked on a loopback address only: elsewhere, names lead to a listener
    that nobody here knows."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        if checks_host and host is not None and not is_of_here(f"//{host}"):
            raise web.HTTPMisdirectedRequest(
                text=f"Host is {host!r:.100}, but this listener is on loopback: use localhost or 127.0.0.1\n"
            )
        if origin is not None and not is_of_here(origin):
            raise web.HTTPForbidden(text=f"Origin is {origin!r:.100}: pages of other hosts have no access\n")
        return await handler(request)

    return guarded


PEER_LOG: Final[web.AppKey[PeerLog]] = web.AppKey("peer_log", PeerLog)

_BAD_INPUT: Final = (UnicodeError, RecursionError, zlib.error, HttpProcessingError, web.RequestPayloadError)
"""Faults of input that no handler expects: text that is none, JSON that is nested too deeply, and a body that is not
encoded as its headers state."""


@web.middleware
async def bad_input(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answers 400 where a handler fails on what a client has sent, with one line, which is logged at most once a minute
    for each address. Belongs inside the middleware that gives errors an application's form."""
    try:
        return await handler(request)
    except _BAD_INPUT as error:
        raise _bad_request(request, error) from None


async def form_of(request: web.Request) -> Mapping[str, Any]:
    """The fields of a form. Raises HTTPBadRequest for a body that is none."""
    try:
        return await request.post()
    except (web.HTTPException, OSError):
        raise
    except (
        Exception
    ) as error:  # aiohttp's parsers raise ValueError, LookupError, RuntimeError and AssertionError
        raise _bad_request(request, error) from None


def report(request: web.Request, line: str) -> None:
    """Log what a client can cause any number of times."""
    address, peer_log = request.remote or "unix", request.app.get(PEER_LOG)
    if peer_log is not None:
        peer_log.warn(address, f"{address}: {printable(line)}")


def _bad_request(request: web.Request, error: Exception) -> web.HTTPBadRequest:
    line = _line(error)
    report(request, f"bad request: {line}")
    answer = web.HTTPBadRequest(text=f"{line}\n")
    answer.force_close()  # the rest of a body that was not read to its end is no request
    return answer


def _line(error: BaseException) -> str:
    """Fault of the input in one printable line."""
    match error:
        case RecursionError():
            return "the body is nested too deeply"
        case UnicodeError():
            return "the request has text that is not Unicode"
        case HttpProcessingError():
            text = error.message
        case _:
            text = str(error).removeprefix("400, message:")
    return printable(" ".join(text.split()) or "the body is not encoded as its headers state", max_chars=200)


class _RequestErrors(logging.LoggerAdapter[logging.Logger]):
    """aiohttp's logger. It reports each request that fails with a traceback; here what clients cause is one line a
    minute for each address, and a fault of ours is one traceback a minute for each place."""

    def __init__(self, peer_log: PeerLog) -> None:
        super().__init__(logging.getLogger("lbg.http"))
        self._peer_log = peer_log

    def exception(self, msg: object, *args: object, exc_info: Any = True, **_: Any) -> None:
        error = exc_info if isinstance(exc_info, BaseException) else sys.exc_info()[1]
        if isinstance(error, ConnectionError):
            return  # the client is gone
        if isinstance(error, _BAD_INPUT):
            if args:  # else it was answered, and what follows in the body cannot be skipped
                address = str(args[0] or "unix")
                self._peer_log.warn(address, f"{address}: bad request: {_line(error)}")
            return
        trace = None if error is None else error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = "" if trace is None else f" {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        text = str(msg) % args if args else str(msg)
        self._peer_log.warn(f"{type(error).__name__}{place}", text, error=error)


_RequestHandler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

BUSY: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
)


class BoundedRunner(web.AppRunner):
    """An application's runner whose listeners have at most so many connections in all and of one address.

    One more connection of an address that has its share gets 503 and is closed; one of another address replaces the
    oldest connection of the address that has most.
    """

    __slots__ = ("_peer_log", "_places")

    def __init__(
        self,
        application: web.Application,
        *,
        connections_max: int,
        of_an_address_max: int,
        peer_log: PeerLog,
        **settings: Any,
    ) -> None:
        application[PEER_LOG] = peer_log
        super().__init__(application, logger=_RequestErrors(peer_log), **settings)
        self._peer_log = peer_log
        self._places: FairPlaces[_Bounded] = FairPlaces(in_all=connections_max, per_address=of_an_address_max)

    async def setup(self) -> None:
        await super().setup()
        server = super().server
        assert server is not None
        server.request_handler = self._of_text(server.request_handler)

    def _of_text(self, handler: _RequestHandler) -> _RequestHandler:
        """Refuses requests whose head is not UTF-8, which aiohttp fails on before any middleware."""

        async def checked(request: web.BaseRequest) -> web.StreamResponse:
            try:
                request.raw_path.encode()
                for _, value in request.raw_headers:
                    value.decode()
            except UnicodeError as error:
                address, line = request.remote or "unix", _line(error)
                self._peer_log.warn(address, f"{address}: bad request: {line}")
                return web.Response(status=400, text=f"{line}\n")
            return await handler(request)

        return checked

    @property
    def server(self) -> web.Server | None:
        """The factory of protocols that sites listen with."""
        found = super().server
        if found is None:
            return None
        return cast(web.Server, lambda: _Bounded(found, self._places, self._peer_log))


def cancel_when_lost(request: web.Request, awaited: asyncio.Future[Any]) -> None:
    """Cancels what a request of a `BoundedRunner` awaits as soon as its connection is lost. aiohttp lets the handler
    go on, and a look at the connection every few seconds costs more than the rest of a request that waits for long."""
    protocol = None if request.transport is None else request.transport.get_protocol()
    if request.transport is None:
        awaited.cancel()
    elif isinstance(protocol, _Bounded):
        protocol.awaited = awaited


class _Bounded(asyncio.Protocol):
    """Passes its connection on to aiohttp's protocol, if there is a place."""

    def __init__(
        self, make: Callable[[], asyncio.Protocol], places: FairPlaces[_Bounded], peer_log: PeerLog
    ) -> None:
        self.awaited: asyncio.Future[Any] | None = None
        self._make = make
        self._places = places
        self._peer_log = peer_log
        self._address = ""
        self._transport: asyncio.Transport | None = None
        self._served: asyncio.Protocol | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else "unix"
        has_place, loser = self._places.enter(self._address, self)
        if loser is not None:
            loser.lose_place()
        if has_place:
            self._served = self._make()
            self._served.connection_made(transport)
            return
        self._report("refused")
        self._transport.write(BUSY)
        self._transport.close()

    def data_received(self, data: bytes) -> None:
        if self._served is not None:
            self._served.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._served is None else self._served.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._places.leave(self._address, self)
        if self.awaited is not None:
            self.awaited.cancel()
        if self._served is not None:
            self._served.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._served is not None:
            self._served.pause_writing()

    def resume_writing(self) -> None:
        if self._served is not None:
            self._served.resume_writing()

    def lose_place(self) -> None:
        """End the connection: its place is another's now."""
        self._report("closed in favour of other addresses")
        if self._transport is not None:
            self._transport.abort()

    def _report(self, what: str) -> None:
        self._peer_log.warn(self._address, f"{self._address}: {what}: too many HTTP connections")
