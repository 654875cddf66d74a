"""The management API over a broker without sockets or disk."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer
from yarl import URL

from lbg_broker.core.permissions import Grant, User
from lbg_broker.management import application
from lbg_core.passwords import hash_password
from testing.broker.managed import Ask, FakeManagedBroker


@pytest.fixture
def broker() -> FakeManagedBroker:
    return FakeManagedBroker()


@pytest.fixture
async def ask(broker: FakeManagedBroker) -> AsyncIterator[Ask]:
    """`await ask("GET", "/queues", body, user="ada")`: the status, and the JSON or text of the answer."""
    async with TestServer(application(broker)) as server, ClientSession() as session:

        async def ask(
            verb: str, path: str, body: Any = None, *, user: str | None = "guest"
        ) -> tuple[int, Any]:
            headers = (
                {}
                if user is None
                else {"Authorization": _basic(user, "guest" if user == "guest" else "secret")}
            )
            url = URL(f"http://{server.host}:{server.port}/api{path}", encoded=True)
            content = {"data": body} if isinstance(body, str) else {"json": body}
            async with session.request(verb, url, headers=headers, **content) as answer:
                is_json = answer.content_type == "application/json"
                return answer.status, await answer.json() if is_json else await answer.text()

        yield ask


@pytest.fixture
def add_user(broker: FakeManagedBroker) -> Callable[..., None]:
    def add(name: str, *tags: str, patterns: tuple[str, str, str] | None = (".*", ".*", ".*")) -> None:
        broker.users.put(User(name, hash_password("secret"), tags))
        if patterns is not None:
            broker.users.grant(Grant(name, "/", *patterns))

    return add


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
