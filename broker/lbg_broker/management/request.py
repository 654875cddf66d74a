"""One request: caller, rights, path, query and body; columns and pages of lists; errors.

::

    ManagementError
    └── ApiError              carries the HTTP status, and RabbitMQ's word and reason for the JSON body
        ├── BadRequest        400 bad_request
        ├── NotAuthorised     401 not_authorised
        ├── NotFound          404 Object Not Found
        └── Failed            503 failed: a health check
"""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from itertools import compress
from operator import attrgetter
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from aiohttp import web

from lbg_broker.core.commands import Command
from lbg_broker.core.effects import Definition
from lbg_broker.core.entities import Vhost
from lbg_broker.core.errors import Refusal
from lbg_broker.core.permissions import LoginRefused, User, Users
from lbg_broker.core.state import State
from lbg_broker.logins import Logins, LoginUnchecked
from lbg_core.amqp import DecodeError, EncodeError, ReplyCode
from lbg_core.amqp.methods import Method, decode_method
from lbg_core.http_listener import cancel_when_lost
from lbg_core.name_pattern import NamePattern, PatternError


class ManagedBroker(Protocol):
    """The broker as the API sees it: a state to read, never to write, and three ways to have it changed."""

    users: Users
    logins: Logins

    @property
    def state(self) -> State:
        """The broker's state as of now."""

    @property
    def address(self) -> str:
        """HOST:PORT of the AMQP listener."""

    @property
    def unready_because(self) -> str | None:
        """Reason for which a publish may not be confirmed soon; None if it will be."""

    @property
    def is_short_of_memory(self) -> bool:
        """True while clients with incomplete messages take turns."""

    async def administer(self, user: str, vhost: str, method: Method) -> Method:
        """Carry out a declare, bind, delete or purge for a user; durable when this returns.

        Raises `core.errors.Refusal`, and KeyError for an unknown virtual host.
        """

    async def act(
        self, user: str, vhost: str, queue: str, action: str, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Have a queue do what only its kind can, and give its answer; durable when this returns.

        Raises `core.errors.Refusal`, and KeyError for an unknown virtual host.
        """

    async def define(self, definition: Definition) -> None:
        """Keep the row of a user or a permission; durable when this returns."""

    def apply(self, command: Command) -> None:
        """Give the core a command."""


class ManagementError(Exception):
    """Base of every error of the management API."""


class ApiError(ManagementError):
    """An answer that is an error; `str` is the reason."""

    status = 500
    error = "internal_error"

    def __init__(self, reason: str, *, error: str | None = None) -> None:
        super().__init__(reason)
        self.error = error or type(self).error

    def body(self) -> dict[str, object]:
        return {"error": self.error, "reason": str(self)}


class BadRequest(ApiError):
    """The body is invalid for the path, or the broker refuses the request."""

    status = 400
    error = "bad_request"


class NotAuthorised(ApiError):
    """Unknown user, wrong password, a missing tag or permission. RabbitMQ answers 401 to all of them."""

    status = 401
    error = "not_authorised"


class NotFound(ApiError):
    """There is no such object."""

    status = 404
    error = "Object Not Found"

    def __init__(self, reason: str = "Not Found", *, error: str | None = None) -> None:
        super().__init__(reason, error=error)


class Failed(ApiError):
    """A health check that fails."""

    status = 503

    def body(self) -> dict[str, object]:
        return {"status": "failed", "reason": str(self)}


def of_refusal(refusal: Refusal) -> ApiError:
    """Answer of RabbitMQ's management where AMQP would close a channel with this code."""
    reason = str(refusal).partition(" - ")[2]
    if refusal.code == ReplyCode.NOT_FOUND:
        return NotFound(reason, error="not_found")
    if refusal.code == ReplyCode.ACCESS_REFUSED:
        return NotAuthorised("Access refused.")
    return BadRequest(reason)


BROKER: Final[web.AppKey[ManagedBroker]] = web.AppKey("broker", ManagedBroker)
CALLER: Final[ContextVar[User]] = ContextVar("caller")
"""The user of the request that this task handles."""


ONE_VHOST: Final = (
    "the embedded broker has '/' alone. Tell applications apart by the names of their queues and by permissions, or "
    "use RabbitMQ"
)


class Request:
    """A request whose user has been let in. Raises NotAuthorised for a missing tag."""

    def __init__(self, request: web.Request) -> None:
        self.request = request
        self.broker = request.app[BROKER]
        self.user = CALLER.get()
        if not self.user.may_manage:
            raise NotAuthorised("Not management user")

    def need_administrator(self) -> None:
        if not self.user.is_administrator:
            raise NotAuthorised("Not administrator user")

    def need_monitor(self) -> None:
        if not self.user.may_monitor:
            raise NotAuthorised("Not monitor user")

    def name(self, part: str = "name") -> str:
        """A part of the path, decoded."""
        return self.request.match_info[part]

    def flag(self, parameter: str) -> bool:
        return self.request.query.get(parameter) == "true"

    @property
    def vhost(self) -> Vhost:
        """The path's virtual host. Raises NotFound, and NotAuthorised for who may not enter it."""
        name = self.name("vhost")
        vhost = self.broker.state.vhosts.get(name)
        if vhost is None:
            raise NotFound(f"there is no virtual host {name!r:.300}: {ONE_VHOST}", error="vhost_not_found")
        if not self.broker.users.can_enter(self.user.name, vhost.name):
            raise NotAuthorised("User not authorised to access virtual host")
        return vhost

    @property
    def visible_vhosts(self) -> list[Vhost]:
        """The path's virtual host, or without one in the path every one that the user may see."""
        if "vhost" in self.request.match_info:
            return [self.vhost]
        may_enter = self.broker.users.can_enter
        vhosts = self.broker.state.vhosts.values()
        return [vhost for vhost in vhosts if self.user.may_monitor or may_enter(self.user.name, vhost.name)]

    async def administer(self, method: Method) -> None:
        """Have the broker carry out a method for the user, in the path's virtual host, as it would come over AMQP.

        Raises BadRequest for what AMQP cannot encode (a name over 255 bytes, a number no table holds, text with half
        of a character), and what the broker refuses.
        """
        try:
            method = decode_method(method.encode(), "strict")
        except (EncodeError, DecodeError) as error:
            raise BadRequest(str(error)) from error
        await self.broker.administer(self.user.name, self.vhost.name, method)

    async def body(self) -> Mapping[str, Any]:
        """The JSON object in the body; no body is an empty one. Raises BadRequest."""
        text = await self.request.read()
        try:
            decoded = json.loads(text or b"{}")
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the request body is not JSON: {error}") from None
        if not isinstance(decoded, dict):
            raise BadRequest(f"the request body must be a JSON object, not {_described(decoded)}")
        return decoded


class Field:
    """Reads typed fields of a body. Each raises BadRequest naming the field."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def text(self, name: str, default: str | None = None) -> str:
        value = self._body.get(name, default)
        if isinstance(value, str):
            return value
        raise BadRequest(f"{name} must be a string, not {_described(value)}")

    def boolean(self, name: str) -> bool:
        value = self._body.get(name, False)
        # RabbitMQ takes the words as well: its own web pages send them.
        if value in (True, "true"):
            return True
        if value in (False, "false"):
            return False
        raise BadRequest(f"{name} must be true or false, not {_described(value)}")

    def table(self, name: str) -> dict[str, Any]:
        value = self._body.get(name, {})
        if value == []:  # what an empty table is to PHP's encoder, and RabbitMQ lets it pass
            return {}
        if isinstance(value, dict):
            return value
        raise BadRequest(f"{name} must be an object, not {_described(value)}")


def _described(value: object) -> str:
    return "nothing" if value is None else json.dumps(value)[:60]


async def log_in(broker: ManagedBroker, request: web.Request) -> User:
    """The request's user. Raises NotAuthorised, after a delay for a wrong password, and Failed."""
    name, password = _credentials(request.headers.get("Authorization", ""))
    address = request.remote or "unknown"
    answer = broker.logins.check(
        name,
        password,
        peer=f"{address} (management)",
        address=address,
        loopback=_is_loopback(request.remote),
    )
    if not answer.done():
        cancel_when_lost(request, answer)
        await asyncio.wait((answer,))
    if answer.cancelled():  # nobody reads the answer any more
        raise NotAuthorised("Login failed", error="not_authorized")
    outcome = answer.result()
    if isinstance(outcome, LoginUnchecked):
        raise Failed(outcome.reason)
    if isinstance(outcome, LoginRefused):
        raise NotAuthorised("Login failed", error="not_authorized")
    return outcome


def _credentials(header: str) -> tuple[str, str]:
    """User and password of a Basic header (RFC 7617). Raises NotAuthorised."""
    scheme, _, token = header.partition(" ")
    try:
        name, colon, password = base64.b64decode(token, validate=True).decode().partition(":")
    except ValueError:
        colon = ""
    if scheme.lower() != "basic" or not colon:
        raise NotAuthorised("Login failed", error="not_authorized")
    return name, password


def _is_loopback(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


Json = dict[str, Any]
Columns: TypeAlias = frozenset[str] | None
"""The columns that are asked for; None: all."""


class Named(Protocol):
    @property
    def name(self) -> str: ...


_T = TypeVar("_T")
_ResultT = TypeVar("_ResultT")
_NamedT = TypeVar("_NamedT", bound=Named)
PAGE_SIZE: Final = 100
PAGE_SIZE_MAX: Final = 500
_DIGITS_MAX: Final = 18


async def listed(
    request: web.Request, items: Sequence[_T], describe: Callable[[_T, Columns], Json]
) -> web.StreamResponse:
    """All items, or the page that the query asks for. Raises BadRequest for a page that cannot be."""
    return await _shown(request, items, lambda item: str(describe(item, None).get("name", "")), describe)


async def described(
    request: web.Request, items: Sequence[_NamedT], describe: Callable[[_NamedT, Columns], Json]
) -> web.StreamResponse:
    """As `listed`, in the order of their names, of what is described only where it is shown and only in the columns
    that are asked for: of thousands of queues as a rule a few are wanted, or two numbers of each. Raises BadRequest."""
    return await _shown(request, items, attrgetter("name"), describe, is_sorted=False)


async def _shown(
    request: web.Request,
    items: Sequence[_T],
    name: Callable[[_T], str],
    describe: Callable[[_T, Columns], Json],
    *,
    is_sorted: bool = True,
) -> web.StreamResponse:
    query = request.query
    paths = [column.split(".") for column in query["columns"].split(",")] if query.get("columns") else None
    columns = None if paths is None else frozenset(path[0] for path in paths)

    def json_of(one: _T) -> Json:
        item = describe(one, columns)
        return item if paths is None else _copied(item, paths)

    if "page" not in query:
        return await streamed(request, items if is_sorted else sorted(items, key=name), json_of)
    page = _number(query.get("page"), "page", most=None)
    size = _number(query.get("page_size", str(PAGE_SIZE)), "page_size", most=PAGE_SIZE_MAX)
    is_selected = _filter(request)
    if is_selected is None:
        selected = list(items)
    else:
        choices = [
            one
            async for part in _in_turns(request, items, lambda one: is_selected(name(one)))
            for one in part
        ]
        selected = list(compress(items, choices))
    if not is_sorted:
        selected.sort(key=name)
    pages = math.ceil(len(selected) / size)
    if page > max(1, pages):
        reason = f"Page out of range, page: {page} page size: {size}, len: {len(selected)}"
        raise BadRequest(reason, error="page_out_of_range")
    shown = selected[(page - 1) * size : page * size]
    return web.json_response(
        {
            "items": [one async for part in _in_turns(request, shown, json_of) for one in part],
            "item_count": len(shown),
            "filtered_count": len(selected),
            "total_count": len(items),
            "page": page,
            "page_count": pages,
            "page_size": size,
        }
    )


TURN: Final[web.AppKey[asyncio.Lock]] = web.AppKey("turn", asyncio.Lock)
TURN_S: Final = 0.005
"""Seconds for which answers may occupy the event loop at a stretch. A list of 10,000 queues takes 0.3 s."""


async def _in_turns(
    request: web.Request, items: Iterable[_T], convert: Callable[[_T], _ResultT]
) -> AsyncIterator[list[_ResultT]]:
    """Items as they are converted, in parts. All answers together take one turn of `TURN_S`, and then let the broker
    have one, so that however many are asked for, messages wait for one turn."""
    remaining = iter(items)
    is_over = False
    while not is_over:
        part: list[_ResultT] = []
        async with request.app[TURN]:
            ends_at, is_over = time.monotonic() + TURN_S, True
            for item in remaining:
                part.append(convert(item))
                if time.monotonic() >= ends_at:
                    is_over = False
                    break
            await asyncio.sleep(0)
        yield part


async def streamed(
    request: web.Request, items: Iterable[_T], json_of: Callable[[_T], Json]
) -> web.StreamResponse:
    """A JSON list. One that takes several turns is sent part by part, so that its whole is never in memory."""
    parts = _in_turns(request, items, lambda one: json.dumps(json_of(one)))
    text = ", ".join(await anext(parts))
    response: web.StreamResponse | None = None
    async for part in parts:
        if response is None:
            response = web.StreamResponse(headers={"Content-Type": "application/json; charset=utf-8"})
            await response.prepare(request)
            await response.write(f"[{text}".encode())
        if part:
            await response.write(f", {', '.join(part)}".encode())
    if response is None:
        return web.Response(text=f"[{text}]", content_type="application/json")
    await response.write_eof(b"]")
    return response


def chosen(request: web.Request, item: Json) -> Json:
    """The columns asked for; a dot leads into an object."""
    columns = request.query.get("columns")
    if not columns:
        return item
    return _copied(item, [column.split(".") for column in columns.split(",")])


def _copied(item: Json, paths: Sequence[Sequence[str]]) -> Json:
    result: Json = {}
    for path in paths:
        _copy(item, result, path)
    return result


def _copy(source: Json, target: Json, path: Sequence[str]) -> None:
    name, *rest = path
    if name not in source:
        return
    if not rest:
        target[name] = source[name]
    elif isinstance(source[name], dict):
        _copy(source[name], target.setdefault(name, {}), rest)


def _filter(request: web.Request) -> Callable[[str], bool] | None:
    """Filter of names that the query states; None where it states none. Raises BadRequest."""
    pattern = request.query.get("name", "")
    if not pattern:
        return None
    if request.query.get("use_regex") != "true":
        part = pattern.lower()
        return lambda name: part in name.lower()
    try:
        return NamePattern(pattern).matches
    except PatternError as error:
        raise BadRequest(f"name: {error}") from None


def _number(text: str | None, name: str, *, most: int | None) -> int:
    value = int(text) if text is not None and text.isdecimal() and len(text) <= _DIGITS_MAX else 0
    if not 1 <= value <= (most or value):
        raise BadRequest(f"{name} must be a number from 1{f' to {most}' if most else ''}, not {text!r:.40}")
    return value


def number_in(request: web.Request, parameter: str, *, default: int, most: int) -> int:
    """A number of the query. Raises BadRequest."""
    return _number(request.query.get(parameter, str(default)), parameter, most=most)
