"""Which requests the local listener refuses: those that a browser sends for a page of somebody else.

The listener has no login; what protects it is that only this pod, or this machine, reaches its loopback address. A
browser there makes a hole in that. Any page may have it POST to 127.0.0.1 without being asked (WHATWG Fetch, "simple"
requests and WebSockets), and a page whose name is made to resolve to 127.0.0.1 (DNS rebinding) may read the answers.
Both show in headers that a page cannot change: `Origin` is its own, and `Host` is the name that it was loaded from.
No application is kept out by that: it speaks to localhost, and sends no `Origin`.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from .listener import Listener


def guard(listener: Listener) -> Middleware:
    """`Host` is looked at on a loopback address only: elsewhere, names lead to it that nobody here knows, and no
    browser speaks to a unix socket."""
    checks_host = listener.path is None and listener.is_local

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        host, origin = request.headers.get("Host"), request.headers.get("Origin")
        if checks_host and host is not None and not is_of_here(f"//{host}"):
            raise web.HTTPMisdirectedRequest(
                text=f"Host is {host!r:.100}, but this listener is on loopback: ask for localhost or 127.0.0.1\n"
            )
        if origin is not None and not is_of_here(origin):
            raise web.HTTPForbidden(
                text=f"Origin is {origin!r:.100}: pages of other hosts may ask nothing here\n"
            )
        return await handler(request)

    return guarded


def is_of_here(url: str) -> bool:
    """Whether its host is this machine by name or address."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    name = host.removesuffix(".")
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761, section 6.3
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
