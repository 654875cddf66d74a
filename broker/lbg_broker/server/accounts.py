"""Users and permissions as rows of the store, and back."""

import json
from collections.abc import Iterable
from typing import Final

from lbg_broker.passwords import hash_password
from lbg_broker.server.administrator import Administrator
from lbg_broker.server.core.changes import Definition
from lbg_broker.server.core.users import Grant, LoginRefused, User, Users

__all__ = ["administrator_accounts", "first_accounts", "grant_definition", "load_users", "user_definition"]

USER: Final = "user"
PERMISSION: Final = "permission"
ADMINISTRATOR: Final = "administrator"
VHOST: Final = "/"


def user_definition(user: User, *, there: bool = True) -> Definition:
    """The row of a user; `there` False deletes it."""
    return Definition(USER, user.name, json.dumps(user.to_row()) if there else None)


def grant_definition(grant: Grant, *, there: bool = True) -> Definition:
    """The row of a permission; `there` False deletes it."""
    key = json.dumps([grant.vhost, grant.user])
    return Definition(PERMISSION, key, json.dumps(grant.to_row()) if there else None)


def load_users(definitions: Iterable[Definition]) -> Users:
    """The users and permissions among the stored definitions."""
    users: list[User] = []
    grants: list[Grant] = []
    for definition in definitions:
        if definition.kind == USER and definition.value is not None:
            users.append(User.from_row(json.loads(definition.value)))
        elif definition.kind == PERMISSION and definition.value is not None:
            grants.append(Grant.from_row(json.loads(definition.value)))
    return Users(users, grants)


def first_accounts(users: Users, administrator: Administrator | None) -> list[Definition]:
    """Make known to `users` who is to be there at the start; the rows that are new.

    Without an administrator a new broker knows, as RabbitMQ, `guest` with everything, let in from this machine only.
    With one there is no need for a user whose password everybody knows.
    """
    if administrator is not None:
        return administrator_accounts(users, administrator)
    if users.all():
        return []
    return _made(users, User("guest", hash_password("guest"), (ADMINISTRATOR,)))


def administrator_accounts(users: Users, wanted: Administrator) -> list[Definition]:
    """Give `wanted` its password and every permission; the rows that changed, none if all was so already."""
    there = users.get(wanted.username)
    is_known = not isinstance(users.log_in(wanted.username, wanted.password, loopback=True), LoginRefused)
    is_granted = users.grant_of(wanted.username, VHOST) == _everything(wanted.username)
    if there is not None and is_known and there.is_administrator and is_granted:
        return []
    tags = () if there is None else tuple(tag for tag in there.tags if tag != ADMINISTRATOR)
    return _made(users, User(wanted.username, hash_password(wanted.password), (*tags, ADMINISTRATOR)))


def _made(users: Users, user: User) -> list[Definition]:
    grant = _everything(user.name)
    users.put(user)
    users.grant(grant)
    return [user_definition(user), grant_definition(grant)]


def _everything(user: str) -> Grant:
    return Grant(user, VHOST, ".*", ".*", ".*")
