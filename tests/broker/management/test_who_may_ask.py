"""Logins and tags: what the management API lets whom do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestServer

from lbg_broker.core.permissions import Grant, User
from lbg_broker.management import application
from lbg_core.passwords import hash_password
from testing.broker.managed import Ask, FakeManagedBroker


async def test_a_request_without_a_login_is_told_how_to_log_in(broker: FakeManagedBroker) -> None:
    async with TestServer(application(broker)) as server, ClientSession() as session:
        answer = await session.get(server.make_url("/api/overview"))
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    "header", ["", "Basic", "Basic !!!", "Basic Z3Vlc3Q=", "Bearer abc", "Basic /w==", "Basic Z3Vlc3Q6YmFk"]
)
async def test_a_broken_or_wrong_login_is_refused(broker: FakeManagedBroker, header: str) -> None:
    async with TestServer(application(broker)) as server, ClientSession() as session:
        answer = await session.get(server.make_url("/api/overview"), headers={"Authorization": header})
        assert answer.status == 401
        assert (await answer.json())["error"] == "not_authorized"


async def test_a_user_without_a_tag_may_not_use_the_api(ask: Ask, add_user: Callable[..., None]) -> None:
    add_user("ada")
    assert await ask("GET", "/whoami", user="ada") == (
        401,
        {"error": "not_authorised", "reason": "Not management user"},
    )


ADMINISTRATORS_ONLY = [
    ("GET", "/users"),
    ("GET", "/users/guest"),
    ("PUT", "/users/new"),
    ("DELETE", "/users/guest"),
    ("GET", "/users/guest/permissions"),
    ("GET", "/permissions"),
    ("GET", "/vhosts/%2F/permissions"),
    ("GET", "/permissions/%2F/guest"),
    ("PUT", "/permissions/%2F/guest"),
    ("DELETE", "/permissions/%2F/guest"),
    ("GET", "/vhosts/%2F"),
    ("PUT", "/vhosts/%2F"),
]


@pytest.mark.parametrize(("verb", "path"), ADMINISTRATORS_ONLY)
@pytest.mark.parametrize("tag", ["management", "monitoring", "policymaker"])
async def test_users_and_permissions_are_for_administrators(
    ask: Ask, add_user: Callable[..., None], broker: FakeManagedBroker, verb: str, path: str, tag: str
) -> None:
    add_user("ada", tag)
    body = {"password": "x", "tags": "", "configure": "", "write": "", "read": ""}
    status, answer = await ask(verb, path, body if verb == "PUT" else None, user="ada")
    assert (status, answer["reason"]) == (401, "Not administrator user")
    assert broker.stored == []


async def test_a_management_user_sees_the_hosts_it_may_enter(ask: Ask, add_user: Callable[..., None]) -> None:
    add_user("in", "management")
    add_user("out", "management", patterns=None)
    assert [vhost["name"] for vhost in (await ask("GET", "/vhosts", user="in"))[1]] == ["/"]
    assert await ask("GET", "/vhosts", user="out") == (200, [])
    assert await ask("GET", "/queues", user="out") == (200, [])
    assert (await ask("GET", "/queues/%2F", user="out"))[0] == 401
    assert (await ask("PUT", "/queues/%2F/q", {}, user="out"))[0] == 401


async def test_changing_topology_takes_the_permissions_that_amqp_takes(
    ask: Ask, add_user: Callable[..., None], broker: FakeManagedBroker
) -> None:
    add_user("ada", "management", patterns=("^mine", "^mine", "^amq.topic$"))
    assert (await ask("PUT", "/queues/%2F/mine", {}, user="ada"))[0] == 201
    assert await ask("PUT", "/queues/%2F/other", {}, user="ada") == (
        401,
        {"error": "not_authorised", "reason": "Access refused."},
    )
    assert (await ask("POST", "/bindings/%2F/e/amq.topic/q/mine", {}, user="ada"))[0] == 201
    assert (await ask("POST", "/bindings/%2F/e/amq.fanout/q/mine", {}, user="ada"))[0] == 401
    assert (await ask("DELETE", "/queues/%2F/mine/contents", user="ada"))[0] == 401
    assert sorted(broker.state.vhosts["/"].queues) == ["mine"]


async def test_messages_are_shown_to_those_who_may_read_the_queue(
    ask: Ask, add_user: Callable[..., None]
) -> None:
    add_user("ada", "management", patterns=(".*", ".*", "^mine$"))
    for name, status in (("mine", 200), ("other", 401)):
        await ask("PUT", f"/queues/%2F/{name}", {})
        assert (await ask("GET", f"/lbg/queues/%2F/{name}/messages", user="ada"))[0] == status


async def test_connections_of_others_are_for_monitors(
    ask: Ask, add_user: Callable[..., None], broker: FakeManagedBroker
) -> None:
    add_user("ada", "management")
    add_user("eve", "monitoring")
    broker.connect(1, "guest")
    broker.connect(2, "ada")
    assert [found["user"] for found in (await ask("GET", "/connections", user="ada"))[1]] == ["ada"]
    assert [found["user"] for found in (await ask("GET", "/connections", user="eve"))[1]] == ["guest", "ada"]
    assert (await ask("DELETE", "/connections/127.0.0.1%3A1%20-%3E%20127.0.0.1%3A5672", user="ada"))[0] == 404
    assert (await ask("GET", "/nodes", user="ada"))[0] == 401
    assert (await ask("GET", "/nodes", user="eve"))[0] == 200


async def test_guest_is_refused_from_another_machine(
    broker: FakeManagedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.users.put(User("ada", hash_password("guest"), ("administrator",)))
    broker.users.grant(Grant("ada", "/", ".*", ".*", ".*"))
    monkeypatch.setattr("aiohttp.web_request.BaseRequest.remote", "192.0.2.7")
    async with TestServer(application(broker)) as server, ClientSession() as session:
        for user, status in (("Z3Vlc3Q6Z3Vlc3Q=", 401), ("YWRhOmd1ZXN0", 200)):
            headers = {"Authorization": f"Basic {user}"}
            async with session.get(server.make_url("/api/whoami"), headers=headers) as answer:
                assert answer.status == status
