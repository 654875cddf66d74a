"""Users and permissions over HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lbg_broker.core.permissions import User
from lbg_broker.reload import load_users
from testing.broker.managed import Ask, FakeManagedBroker

ADA = {"password": "secret", "tags": "management"}


async def test_a_user_is_made_changed_and_deleted(ask: Ask, broker: FakeManagedBroker) -> None:
    assert (await ask("PUT", "/users/ada", ADA))[0] == 201
    assert (await ask("PUT", "/users/ada", {**ADA, "tags": ["monitoring", "lbg-group-orders"]}))[0] == 204
    status, user = await ask("GET", "/users/ada")
    assert (status, user["name"], user["tags"]) == (200, "ada", ["monitoring", "lbg-group-orders"])
    assert isinstance(broker.users.log_in("ada", "secret", loopback=False), User)
    assert (await ask("DELETE", "/users/ada"))[0] == 204
    assert (await ask("DELETE", "/users/ada"))[0] == 404
    assert (await ask("GET", "/users/ada"))[0] == 404


async def test_what_is_stored_never_holds_the_password_and_makes_the_same_users_again(
    ask: Ask, broker: FakeManagedBroker
) -> None:
    await ask("PUT", "/users/ada", ADA)
    await ask("PUT", "/permissions/%2F/ada", {"configure": "", "write": "", "read": "^q$"})
    assert "secret" not in json.dumps([definition.value for definition in broker.stored])
    again = load_users(broker.stored)
    assert isinstance(again.log_in("ada", "secret", loopback=False), User)
    assert again.can("ada", "/", "read", "q")


async def test_deleting_a_user_deletes_its_permissions_and_ends_its_connections(
    ask: Ask, broker: FakeManagedBroker
) -> None:
    await ask("PUT", "/users/ada", ADA)
    await ask("PUT", "/permissions/%2F/ada", {"configure": "", "write": "", "read": ""})
    broker.connect(1, "ada")
    broker.connect(2, "guest")
    await ask("DELETE", "/users/ada")
    assert [connection.user for connection in broker.state.connections.values()] == ["guest"]
    assert load_users(_last(broker)).all() == []
    assert load_users(_last(broker)).all_grants() == []


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"password": "x"}, "tags_not_present"),
        ({"password": 5, "tags": ""}, "password must be a string"),
        ({"password_hash": "zzz", "tags": ""}, "password_hash is neither"),
        ({"password": "x", "tags": [1]}, "tags must be a list"),
        ([], "not []"),
        ("{", "not JSON"),
    ],
)
async def test_a_body_that_makes_no_user_is_refused(
    ask: Ask, broker: FakeManagedBroker, body: Any, reason: str
) -> None:
    status, answer = await ask("PUT", "/users/ada", body)
    assert (status, answer["error"]) == (400, "bad_request")
    assert reason in answer["reason"]
    assert broker.stored == []


async def test_permissions_are_made_changed_and_deleted(ask: Ask, broker: FakeManagedBroker) -> None:
    await ask("PUT", "/users/ada", ADA)
    patterns = {"configure": "^a", "write": "", "read": ".*"}
    assert (await ask("GET", "/permissions/%2F/ada"))[0] == 404
    assert (await ask("PUT", "/permissions/%2F/ada", patterns))[0] == 201
    assert (await ask("PUT", "/permissions/%2F/ada", patterns))[0] == 204
    expected = {"user": "ada", "vhost": "/", **patterns}
    assert await ask("GET", "/permissions/%2F/ada") == (200, expected)
    assert await ask("GET", "/users/ada/permissions") == (200, [expected])
    assert len((await ask("GET", "/vhosts/%2F/permissions"))[1]) == 2
    assert (await ask("DELETE", "/permissions/%2F/ada"))[0] == 204
    assert (await ask("DELETE", "/permissions/%2F/ada"))[0] == 404


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        ("/permissions/%2F/none", {"configure": "", "write": "", "read": ""}, "vhost_or_user_not_found"),
        ("/permissions/none/guest", {"configure": "", "write": "", "read": ""}, "vhost_or_user_not_found"),
        ("/permissions/%2F/guest", {"configure": ""}, "write, read"),
        ("/permissions/%2F/guest", {"configure": "**", "write": "", "read": ""}, "configure: '**'"),
    ],
)
async def test_permissions_that_cannot_be_are_refused(
    ask: Ask, broker: FakeManagedBroker, path: str, body: dict[str, str], reason: str
) -> None:
    status, answer = await ask("PUT", path, body)
    assert status == 400
    assert reason in answer["reason"]
    assert broker.users.can("guest", "/", "configure", "x")


def _last(broker: FakeManagedBroker) -> list[Any]:
    """The rows as the store would hold them after everything so far."""
    rows = {(definition.kind, definition.key): definition for definition in broker.stored}
    return [definition for definition in rows.values() if definition.value is not None]
