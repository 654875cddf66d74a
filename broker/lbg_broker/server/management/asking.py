"""One request: who asks, what they may, and what the path, the query and the body say."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from lbg_broker.amqp import EncodeError
from lbg_broker.amqp.methods import Method
from lbg_broker.server.core.users import LoginRefused, User
from lbg_broker.server.core.vhost import Vhost
from lbg_broker.server.management.errors import BadRequest, NotAuthorised, NotFound
from lbg_broker.server.management.seam import ManagedBroker

__all__ = ["BROKER", "Asked", "Field"]

BROKER: Final[web.AppKey[ManagedBroker]] = web.AppKey("broker", ManagedBroker)


class Asked:
    """A request whose user has been let in. Raises NotAuthorised for an unknown user or a missing tag."""

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.broker = request.app[BROKER]
        self.user = _log_in(self.broker, request)
        if not self.user.may_manage:
            raise NotAuthorised("Not management user")

    def need_administrator(self) -> None:
        if not self.user.is_administrator:
            raise NotAuthorised("Not administrator user")

    def need_monitor(self) -> None:
        if not self.user.sees_everything:
            raise NotAuthorised("Not monitor user")

    def name(self, part: str = "name") -> str:
        """A part of the path, decoded."""
        return self.request.match_info[part]

    def flag(self, parameter: str) -> bool:
        return self.request.query.get(parameter) == "true"

    @property
    def vhost(self) -> Vhost:
        """The path's virtual host. Raises NotFound, and NotAuthorised for who may not enter it."""
        vhost = self.broker.state.vhosts.get(self.name("vhost"))
        if vhost is None:
            raise NotFound
        if not self.broker.users.can_enter(self.user.name, vhost.name):
            raise NotAuthorised("User not authorised to access virtual host")
        return vhost

    @property
    def visible_vhosts(self) -> list[Vhost]:
        """The path's virtual host, or without one in the path every one that the user may look at."""
        if "vhost" in self.request.match_info:
            return [self.vhost]
        may_enter = self.broker.users.can_enter
        vhosts = self.broker.state.vhosts.values()
        return [
            vhost for vhost in vhosts if self.user.sees_everything or may_enter(self.user.name, vhost.name)
        ]

    async def administer(self, method: Method) -> None:
        """Have the broker carry out a method for the user, in the path's virtual host.

        Raises BadRequest for what AMQP could not say (a name over 255 bytes, a number no table holds), and what
        the broker refuses.
        """
        try:
            method.encode()
        except EncodeError as error:
            raise BadRequest(str(error)) from error
        await self.broker.administer(self.user.name, self.vhost.name, method)

    async def body(self) -> Mapping[str, Any]:
        """The JSON object in the body; no body is an empty one. Raises BadRequest."""
        text = await self.request.read()
        try:
            decoded = json.loads(text or b"{}")
        except ValueError as error:
            raise BadRequest(f"the request body is no JSON: {error}") from error
        if not isinstance(decoded, dict):
            raise BadRequest(f"the request body is to be a JSON object, not {_described(decoded)}")
        return decoded


class Field:
    """Reads typed fields of a body. Each raises BadRequest naming the field."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def text(self, name: str, default: str | None = None) -> str:
        value = self._body.get(name, default)
        if isinstance(value, str):
            return value
        raise BadRequest(f"{name} is to be a string, not {_described(value)}")

    def boolean(self, name: str) -> bool:
        value = self._body.get(name, False)
        # RabbitMQ takes the words as well: its own web pages send them.
        if value in (True, "true"):
            return True
        if value in (False, "false"):
            return False
        raise BadRequest(f"{name} is to be true or false, not {_described(value)}")

    def table(self, name: str) -> dict[str, Any]:
        value = self._body.get(name, {})
        if value == []:  # what an empty table is to PHP's encoder, and RabbitMQ lets it pass
            return {}
        if isinstance(value, dict):
            return value
        raise BadRequest(f"{name} is to be an object, not {_described(value)}")


def _described(value: object) -> str:
    return "nothing" if value is None else json.dumps(value)[:60]


def _log_in(broker: ManagedBroker, request: web.Request) -> User:
    name, password = _credentials(request.headers.get("Authorization", ""))
    user = broker.users.log_in(name, password, loopback=_is_loopback(request.remote))
    if isinstance(user, LoginRefused):
        raise NotAuthorised("Login failed", error="not_authorized")
    return user


def _credentials(header: str) -> tuple[str, str]:
    """User and password of a Basic header (RFC 7617). Raises NotAuthorised."""
    scheme, _, token = header.partition(" ")
    try:
        name, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        colon = ""
    if scheme.lower() != "basic" or not colon:
        raise NotAuthorised("Login failed", error="not_authorized")
    return name, password


def _is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
