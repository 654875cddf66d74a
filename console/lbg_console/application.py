"""The console's HTTP server: settings, rules of every request, and its life."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from lbg_console.protection import (
    TRANSPORT_SECURITY,
    add_headers,
    require_host,
    require_origin,
)
from lbg_console.survey import GroupSurvey
from lbg_console.views import Views
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.management import ManagementApi
from lbg_core.client import BrokerAddress, ClientError
from lbg_core.http_listener import BoundedRunner, bad_input
from lbg_core.peers import PeerLog, descriptors

log = logging.getLogger("lbg.console")

BODY_MAX_BYTES = 64 * 1024
CONNECTIONS_MAX = 2048
SHUTDOWN_S = 1.0

FILES_EVERY_S = 1.0
"""Login and certificates are read so often: who mounts them writes them later, and anew when they are rotated."""


@dataclass(frozen=True, slots=True)
class ConsoleSettings:
    """`address`: the broker, with the login that observes its groups. `groups`: these alone; none: all, for which it
    takes an administrator's login. `url`: public address, http[s]://host[:port], behind a proxy or an Ingress.
    `signs_in`: one browser may sign in with the login in `address`, by `Console.sign_in_url`."""

    address: BrokerAddress
    host: str = "127.0.0.1"
    port: int = 8780
    groups: tuple[str, ...] = ()
    url: str | None = None
    is_read_only: bool = False
    signs_in: bool = False

    @property
    def host_names(self) -> frozenset[str]:
        """Names that the console is called by, beside addresses and localhost."""
        hosts = (self.host, "" if self.url is None else urlsplit(self.url).hostname or "")
        return frozenset(host.lower() for host in hosts if host)


class Console:
    """The console for as long as the `async with` lasts. Raises OSError where it cannot listen, ValueError for
    addresses of the broker that are none, and CredentialsUnreadable and SettingsError for files of the login and of TLS
    that are there and cannot be used. Those that are not there yet are waited for."""

    def __init__(self, settings: ConsoleSettings) -> None:
        self._settings = settings
        address = settings.address
        self.survey = GroupSurvey(settings.groups)
        self.survey.awaited = _missing_file(address)
        if not self.survey.awaited:
            self._connected()
        self._peer_log = PeerLog(log)
        self._views = Views(
            address,
            self.survey,
            url=settings.url,
            is_read_only=settings.is_read_only,
            signs_in=settings.signs_in,
            peer_log=self._peer_log,
        )
        self._runner: web.AppRunner | None = None
        self._observing: asyncio.Task[None] | None = None
        self._rechecking: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Address of its first page on this machine."""
        assert self._runner is not None
        host, port = self._runner.addresses[0][:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def sign_in_url(self) -> str:
        """Address at which one browser signs in without a password, once, and gets the first page, or its one group."""
        groups = self._settings.groups
        next_ = f"/groups/{groups[0]}" if len(groups) == 1 else "/"
        return f"{self.url}/login?{urlencode({'token': self._views.sign_in_token, 'next': next_})}"

    async def __aenter__(self) -> Console:
        connections_max = min(CONNECTIONS_MAX, descriptors() // 4)
        application = web.Application(
            client_max_size=BODY_MAX_BYTES, middlewares=[self._errors(), bad_input, self._rules()]
        )
        application.on_response_prepare.append(add_headers)
        if self._settings.url is not None and self._settings.url.startswith("https:"):
            application.on_response_prepare.append(_add_transport_security)
        application.add_routes(self._views.routes())
        self._runner = BoundedRunner(
            application,
            connections_max=connections_max,
            of_an_address_max=connections_max * 3 // 4,
            peer_log=self._peer_log,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_S,
        )
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._settings.host, self._settings.port).start()
        except OSError:
            await self._runner.cleanup()
            raise
        self._observing = asyncio.create_task(self._observe())
        self._rechecking = asyncio.create_task(self._views.recheck())
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._runner is not None
        assert self._observing is not None
        assert self._rechecking is not None
        await self._views.acts.close()
        tasks = (self._observing, self._rechecking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._runner.cleanup()
        self._peer_log.close()

    async def wait(self) -> None:
        """Until the survey fails, which it does not by itself."""
        assert self._observing is not None
        await self._observing

    async def _observe(self) -> None:
        """The survey with the files of this moment, and anew when they change."""
        while True:
            files = _contents(self._settings.address)
            try:
                if missing := _missing_file(self._settings.address):
                    raise FileNotFoundError(missing)
                admin = self._connected()
            except (ClientError, OSError) as error:
                self.survey.wait_for(str(error))
                await asyncio.sleep(FILES_EVERY_S)
                continue
            surveying = asyncio.create_task(self.survey.run(admin))
            try:
                while files == _contents(self._settings.address):
                    done, _ = await asyncio.wait({surveying}, timeout=FILES_EVERY_S)
                    if done:
                        return surveying.result()
                log.info("the files of the login have changed: the broker is connected to anew")
            finally:
                surveying.cancel()
                await asyncio.gather(surveying, return_exceptions=True)
                await admin.close()

    def _connected(self) -> LiveAdmin:
        address = self._settings.address
        has_api = address.management_urls is not None
        return LiveAdmin(address.places(), ManagementApi.of_broker(address) if has_api else None)

    def _rules(self) -> Middleware:
        names, url = self._settings.host_names, self._settings.url

        @web.middleware
        async def checked(request: web.Request, handler: Handler) -> web.StreamResponse:
            require_host(request, names)
            if request.method not in ("GET", "HEAD"):
                require_origin(request, url)
            return await handler(request)

        return checked

    def _errors(self) -> Middleware:
        @web.middleware
        async def shown(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except web.HTTPException as error:
                if error.status < 400 or "text/html" not in request.headers.get("Accept", ""):
                    raise
                return self._views.error_page(request, error.status, error.text or error.reason)

        return shown


def _files(address: BrokerAddress) -> dict[Path, str]:
    """Files that are read for a connection, and what each is."""
    named = {
        "login file": (address.username_file, address.password_file),
        "certificate file": (address.cafile, address.certfile, address.keyfile),
    }
    return {Path(file): what for what, files in named.items() for file in files if file}


def _missing_file(address: BrokerAddress) -> str:
    """The first one that is not there, in a sentence; empty: all are."""
    for file, what in _files(address).items():
        try:
            file.stat()
        except FileNotFoundError:
            return f"the {what} {file} is not there yet: groups are observed as soon as it is"
        except OSError:
            continue  # who reads it says what is wrong
    return ""


def _contents(address: BrokerAddress) -> list[bytes | None]:
    """Bytes of the files; None for one that cannot be read."""
    contents: list[bytes | None] = []
    for file in _files(address):
        try:
            contents.append(file.read_bytes())
        except OSError:
            contents.append(None)
    return contents


async def _add_transport_security(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Strict-Transport-Security"] = TRANSPORT_SECURITY


def public_url(text: str) -> str:
    """`text` without its last slash. Raises ValueError for what is no http[s]://host[:port]."""
    parts: Any = urlsplit(text)
    is_plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username)
    if parts.scheme not in ("http", "https") or not parts.hostname or not is_plain:
        raise ValueError(
            "must be http[s]://host[:port] without a path: the console is at the root of its host"
        )
    return f"{parts.scheme}://{parts.netloc.lower()}"
