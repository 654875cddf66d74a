"""The console in a test: a client as a browser is one, a stream of events, and a member that is not of this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import aiohttp

from lbg_console.application import Console, ConsoleSettings
from lbg_core.client import BrokerAddress
from lbg_core.group import TO_ALL, GroupSpec, Names
from testing.admin.faked_member import FakedMember, member
from testing.admin.place import Place
from testing.waiting import GUARD_S

HTML = {"Accept": "text/html"}


def address_of(place: Place, username: str = "guest", password: str = "guest") -> BrokerAddress:
    one = place.settings
    vhost = "" if one.vhost == "/" else one.vhost
    url = f"amqp://{username}:{password}@{one.host}:{one.port}/{vhost}"
    return BrokerAddress((url,), (place.management.url,))


@asynccontextmanager
async def console_of(
    place: Place, *, username: str = "guest", password: str = "guest", **settings: Any
) -> AsyncIterator[Console]:
    address = address_of(place, username, password)
    async with Console(ConsoleSettings(address, port=0, **settings)) as console:
        yield console


@dataclass
class Answer:
    status: int
    text: str
    headers: Any

    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Client:
    """Keeps cookies, sends the Origin of the console with forms, and follows no redirect."""

    console: Console
    session: aiohttp.ClientSession
    csrf: str = ""
    origin: str | None = None

    async def get(self, path: str, **headers: str) -> Answer:
        async with self.session.get(
            self.console.url + path, headers={**HTML, **headers}, allow_redirects=False
        ) as answer:
            return Answer(answer.status, await answer.text(), answer.headers)

    async def post(self, path: str, fields: dict[str, str], **headers: str) -> Answer:
        sent = {**HTML, "Origin": self.console.url, **headers}
        sent = {name: value for name, value in sent.items() if value}
        async with self.session.post(
            self.console.url + path, data=fields, headers=sent, allow_redirects=False
        ) as answer:
            return Answer(answer.status, await answer.text(), answer.headers)

    async def sign_in(self, username: str = "guest", password: str = "guest", **fields: str) -> Answer:
        answer = await self.post("/login", {"username": username, "password": password, **fields})
        if answer.status == 303:
            page = await self.get("/")
            found = re.search(r'name="csrf" value="([^"]+)"', page.text)
            assert found is not None
            self.csrf = found[1]
        return answer

    async def act(self, path: str, **fields: str) -> Answer:
        return await self.post(path, {"csrf": self.csrf, **fields})

    @asynccontextmanager
    async def events(self, path: str, **headers: str) -> AsyncIterator[Events]:
        async with self.session.get(self.console.url + path, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            yield Events(answer)


@dataclass
class Events:
    answer: aiohttp.ClientResponse
    seen: list[tuple[str, str, Any]] = field(default_factory=list)
    """Type, id and data of each."""

    async def next(self, kind: str, holds: Callable[[Any], object] = lambda data: True) -> Any:
        """Data of the next event of this type of which it is so."""
        async with asyncio.timeout(GUARD_S):
            while True:
                type_, id_, data = await self._next()
                self.seen.append((type_, id_, data))
                if type_ == kind and holds(data):
                    return data

    @property
    def last_id(self) -> str:
        return next(id_ for _, id_, _ in reversed(self.seen) if id_)

    async def _next(self) -> tuple[str, str, Any]:
        fields: dict[str, str] = {}
        while True:
            line = (await self.answer.content.readline()).decode()
            assert line, "the stream has ended"
            if line == "\n":
                if "data" in fields:
                    return fields["event"], fields.get("id", ""), json.loads(fields["data"])
                fields = {}
                continue
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value


@asynccontextmanager
async def client_of(console: Console) -> AsyncIterator[Client]:
    jar = aiohttp.CookieJar(unsafe=True)  # of an address
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        yield Client(console, session)


@asynccontextmanager
async def live_member(place: Place, spec: GroupSpec, index: int = 0) -> AsyncIterator[FakedMember]:
    """A member with a mailbox, which goes with its connection."""
    names = Names(spec.name)
    async with member(place, spec, index=index) as faked:
        channel = await faked.connection.open_channel()
        await channel.queue_declare(names.mailbox(index), exclusive=True)
        for key in (str(index), TO_ALL):
            await channel.queue_bind(names.mailbox(index), names.members, key)
        yield faked


def cookie_of(answer: Answer) -> str:
    return cast(str, answer.headers["Set-Cookie"])
