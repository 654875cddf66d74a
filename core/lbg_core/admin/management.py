"""HTTP client of RabbitMQ's management API; the embedded broker answers the same requests."""

from __future__ import annotations

import base64
import json
import socket
import ssl
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import aiohttp
from aiohttp.abc import ResolveResult
from yarl import URL

from lbg_core.admin.errors import Denied, Refused, Unreachable
from lbg_core.client import BrokerAddress, ConnectionSettings, Credentials, CredentialsUnreadable
from lbg_core.client.settings import AddressFilter, AddressRefused, permitted
from lbg_core.peers import system_reason

T = TypeVar("T")

REQUEST_TIMEOUT_S = 15.0
CONNECT_TIMEOUT_S = 5.0
NOT_NOW = frozenset({502, 503, 504})
"""A node that is starting or stopping, or a proxy in front of one that is gone."""

NOT_MANAGEMENT_USER = "Not management user"
"""RabbitMQ's reason for a user without one of the tags that let a user log in to the management API."""

DEFAULT_PORT = 15672
DEFAULT_TLS_PORT = 15671


@dataclass(frozen=True, slots=True)
class ManagementSettings:
    """Address and login of the management API. `url` holds no credentials; the password never shows in a repr."""

    url: str
    user: str
    password: str = field(repr=False)

    @classmethod
    def parse(cls, url: str, *, user: str = "guest", password: str = "guest") -> ManagementSettings:
        """From `http://user:password@host:port`; missing parts are as given. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("a management URL looks like http://user:password@host:15672")
        port = parts.port or (DEFAULT_TLS_PORT if parts.scheme == "https" else DEFAULT_PORT)
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(
            url=urlunsplit((parts.scheme, f"{host}:{port}", parts.path.rstrip("/"), "", "")),
            user=unquote(parts.username) if parts.username else user,
            password=unquote(parts.password) if parts.password else password,
        )

    def basic_authentication(self) -> str:
        """The value of the Authorization header (RFC 7617)."""
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def management_places(address: BrokerAddress) -> list[ManagementSettings]:
    """Settings of the API of a broker: of its URLs, or else on the usual port of the broker's hosts.

    The login is the broker's, unless a URL has one. Raises ValueError for a URL that is none, and
    CredentialsUnreadable.
    """
    places = address.places()
    urls = address.management_urls or dict.fromkeys(map(_usual_url, places))
    login = _login_of(places[0])
    return [ManagementSettings.parse(url, user=login.username, password=login.password) for url in urls]


def _usual_url(place: ConnectionSettings) -> str:
    host = f"[{place.host}]" if ":" in place.host else place.host
    return f"{'http' if place.tls is None else 'https'}://{host}"


def _login_of(place: ConnectionSettings) -> Credentials:
    if place.credentials is None:
        return Credentials(place.username, place.password)
    try:
        return place.credentials()
    except (OSError, ValueError) as error:
        raise CredentialsUnreadable(f"user and password cannot be read: {error}") from error


def path(*segments: str) -> str:
    """`/api/…` with every segment escaped whole: the default virtual host `/` becomes `%2F`."""
    return "/api/" + "/".join(quote(segment, safe="") for segment in segments)


class ManagementApi:
    """One HTTP session to the API. Raises Unreachable, Denied and Refused, each naming the URL.

    Several places, the nodes of a cluster, are tried in turn; the one that answered last is first. A request may be
    sent twice: every request declares a state, none adds to what is there.
    """

    def __init__(
        self,
        where: ManagementSettings | Sequence[ManagementSettings],
        *,
        tls: ssl.SSLContext | None = None,
        permits: AddressFilter | None = None,
    ) -> None:
        self.places = [where] if isinstance(where, ManagementSettings) else list(where)
        self._tls = tls
        self._permits = permits
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False
        self._cache: dict[str, tuple[bytes, Hashable, Any]] = {}
        """By address: the digest of the last answer, the key of the request, and the parsed value."""

    @classmethod
    def of_broker(
        cls, address: BrokerAddress, where: Sequence[ManagementSettings] | None = None
    ) -> ManagementApi:
        """The API of a broker; `where` is that of `management_places`, and found there when it is None.

        Raises ValueError and CredentialsUnreadable as that does, and SettingsError for TLS files that cannot be used.
        """
        where = management_places(address) if where is None else where
        if not any(one.url.startswith("https:") for one in where):
            return cls(where)
        tls = address.tls_files or next((place.tls for place in address.places() if place.tls), None)
        return cls(where, tls=tls.context() if tls is not None else None)

    async def get(self, where: str) -> Any:
        """The JSON at `where`, or None when the API has no such object (404)."""
        return await self._request("GET", where, None)

    async def get_as(self, where: str, read: Callable[[Any], T], *, key: Hashable) -> T:
        """Result of `read` on the JSON at `where`, None for 404. While the answer is the same one by byte, the same
        object as before for `key`: long lists of what is at rest are neither parsed nor kept twice."""

        def once(answer: bytes) -> T:
            digest = blake2b(answer, digest_size=16).digest()
            cached = self._cache.get(where)
            if cached is None or cached[:2] != (digest, key):
                cached = self._cache[where] = digest, key, read(_parsed(answer))
            return cast(T, cached[2])

        content = await self._request("GET", where, None, once)
        return read(None) if content is None else content

    async def post(self, where: str, body: Mapping[str, object]) -> Any:
        """The JSON of the answer, or None when the API has no such object (404)."""
        return await self._request("POST", where, body)

    async def put(self, where: str, body: Mapping[str, object]) -> None:
        await self._request("PUT", where, body)

    async def delete(self, where: str, *, reason: str = "") -> None:
        """Delete the object; one that is not there is fine. `reason`: of a connection, which its client gets."""
        await self._request("DELETE", where, None, headers={"X-Reason": reason} if reason else {})

    async def close(self) -> None:
        """Closes the client: waiting and later callers get Unreachable."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    async def _request(
        self,
        verb: str,
        where: str,
        body: Mapping[str, object] | None,
        read: Callable[[bytes], Any] | None = None,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Any:
        errors: list[Unreachable] = []
        for place in tuple(self.places):
            try:
                return await self._request_at(place, verb, where, body, read or _parsed, headers)
            except Unreachable as error:
                errors.append(error)
                self.places.append(self.places.pop(0))
        raise errors[0] if len(errors) == 1 else Unreachable("; ".join(map(str, errors)))

    async def _request_at(
        self,
        place: ManagementSettings,
        verb: str,
        where: str,
        body: Mapping[str, object] | None,
        read: Callable[[bytes], Any],
        more: Mapping[str, str],
    ) -> Any:
        if self._is_closed:
            raise Unreachable(f"the management API at {place.url} cannot be used: this session was closed")
        headers = {"Authorization": place.basic_authentication(), **more}
        url = _verbatim(place.url + where)
        try:
            if self._permits is not None:
                _check_literal(url, self._permits)
            request = self._open_session().request(
                verb, url, json=body, headers=headers, allow_redirects=False
            )
            async with request as response:
                answer = await response.read()
                if response.status == 404:
                    return None
                if 300 <= response.status < 400:
                    raise Unreachable(
                        f"the server at {place.url} is not a management API: it redirects {where} elsewhere"
                    )
                if response.status < 400:
                    return read(answer)
                answered = f"answered {response.status} to {verb} {where}: {_reason(answer)}"
                if response.status == 401:
                    reason = _reason(answer)
                    if reason == NOT_MANAGEMENT_USER:
                        reason += ": use --username or --management with an administrator's login"
                    raise Denied(f"the management API at {place.url} refuses user {place.user!r}: {reason}")
                if response.status in NOT_NOW:
                    raise Unreachable(f"the management API at {place.url} {answered}")
                raise Refused(f"the management API at {place.url} {answered}", status=response.status)
        except json.JSONDecodeError as error:
            raise Unreachable(
                f"the server at {place.url} is not a management API: {where} is not JSON"
            ) from error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise Unreachable(
                f"the management API at {place.url} cannot be reached: {_why(error)}"
            ) from error

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
                connector=aiohttp.TCPConnector(
                    ssl=self._tls or True,
                    resolver=None if self._permits is None else _FilteredResolver(self._permits),
                ),
            )
        return self._session


class _FilteredResolver(aiohttp.ThreadedResolver):
    """Names have permitted addresses only. aiohttp does not ask it for an address in place of a name."""

    def __init__(self, permits: AddressFilter) -> None:
        super().__init__()
        self._permits = permits

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        allowed = permitted([one["host"] for one in found], self._permits)
        return [one for one in found if one["host"] in allowed]


def _check_literal(url: URL, permits: AddressFilter) -> None:
    """Raises AddressRefused for a numeric address that is not permitted."""
    try:
        ip_address(url.host or "")
    except ValueError:
        return
    permitted([url.host or ""], permits)


def _verbatim(url: str) -> URL:
    # aiohttp would decode %2F, the default virtual host, into a path separator.
    return URL(url, encoded=True)


def _parsed(answer: bytes) -> Any:
    return json.loads(answer) if answer else None


def _reason(answer: bytes) -> str:
    try:
        problem = json.loads(answer)
        return str(problem.get("reason") or problem.get("error") or problem)
    except (ValueError, AttributeError):
        return answer[:200].decode("utf-8", "replace").strip() or "no reason given"


def _why(error: BaseException) -> str:
    if isinstance(error.__cause__, AddressRefused):
        return str(error.__cause__)
    if isinstance(error, AddressRefused):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no answer within {REQUEST_TIMEOUT_S:g} s"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return (
            f"its certificate: {getattr(error.certificate_error, 'verify_message', error.certificate_error)}"
        )
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host's name cannot be resolved"
    if isinstance(error, aiohttp.ClientOSError) and "[SSL" in str(error):
        return f"TLS: {error.strerror}"  # in TLS 1.3 a refused client certificate shows in the answer only
    return system_reason(error)
