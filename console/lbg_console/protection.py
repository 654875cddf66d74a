"""Protection of the console against other pages: Host, Origin, forms, and the headers of every answer.

- A page whose name is made to resolve to this address (DNS rebinding) has that name as its `Host`: only addresses,
  `localhost` and the console's own names are served.
- A page of another origin may have a browser send a form here. Its `Origin` is its own, the cookie is not sent with it
  (SameSite), and it does not have the token of the session.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from ipaddress import ip_address
from types import MappingProxyType
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Content-Security-Policy": CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        # Not no-referrer: with that, the Origin of a form is "null" (Fetch, "serializing a request origin").
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
        "Cache-Control": "no-store",
    }
)
TRANSPORT_SECURITY: Final = "max-age=31536000"


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Of every answer, errors too, unless it has its own."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


def require_host(request: web.Request, names: frozenset[str]) -> None:
    """Raises HTTPMisdirectedRequest for a Host that is neither an address, nor localhost, nor one of `names`."""
    host = request.headers.get("Host", "")
    name = (_hostname(f"//{host}") or "").removesuffix(".")
    if name in names or name == "localhost" or name.endswith(".localhost") or _is_address(name):
        return
    raise web.HTTPMisdirectedRequest(
        text=f"Host is {host!r:.100}: this console does not have this name. `lbg console --url` gives it one"
    )


def require_origin(request: web.Request, url: str | None) -> None:
    """Raises HTTPForbidden for a request that changes something and does not come from a page of the console. `url`:
    its public address, where it has one."""
    origin = request.headers.get("Origin")
    if origin is None:
        if request.headers.get("Sec-Fetch-Site") == "same-origin":
            return
        raise web.HTTPForbidden(text="the request has no Origin: it does not come from a page of the console")
    host = request.headers.get("Host", "").lower()
    if origin not in (f"http://{host}", f"https://{host}", url):
        raise web.HTTPForbidden(text=f"Origin is {origin!r:.100}: pages of other hosts have no access")


def require_token(request: web.Request, form: Mapping[str, object], token: str) -> None:
    """Raises HTTPForbidden for a form without the token of the session."""
    given = request.headers.get("X-CSRF-Token") or form.get("csrf")
    if not isinstance(given, str) or not hmac.compare_digest(given.encode(errors="replace"), token.encode()):
        raise web.HTTPForbidden(text="the form is not of this session: load the page again")


def local_path(path: str) -> str:
    """`path` if it leads to a page of the console, and not to another host; or else the first page."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable()
    return path if is_local else "/"


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
