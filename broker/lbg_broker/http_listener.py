"""HTTP listeners: the guard against browsers, and a bound on connections.

What protects a listener on a loopback address is that only this pod, or this machine, reaches it. A browser there makes
a hole in that. Any page may have it POST to 127.0.0.1 without being asked (WHATWG Fetch, "simple" requests and
WebSockets), and a page whose name is made to resolve to 127.0.0.1 (DNS rebinding) may read the answers. Both show in
headers that a page cannot change: `Origin` is its own, and `Host` is the name that it was loaded from. That excludes no
application: it speaks to localhost, and sends no `Origin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lbg_broker.peers import FairPlaces, PeerLog, is_of_here


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
        super().__init__(application, **settings)
        self._peer_log = peer_log
        self._places: FairPlaces[_Bounded] = FairPlaces(in_all=connections_max, per_address=of_an_address_max)

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
