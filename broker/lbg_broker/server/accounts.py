"""Users and permissions as rows of the store, and back."""

import json
from collections.abc import Iterable
from typing import Final

from lbg_broker.server.core.changes import Definition
from lbg_broker.server.core.users import Grant, User, Users, hash_password

__all__ = ["first_accounts", "grant_definition", "load_users", "user_definition"]

USER: Final = "user"
PERMISSION: Final = "permission"


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


def first_accounts() -> list[Definition]:
    """Who a new broker knows: as RabbitMQ, `guest` with everything, let in from this machine only."""
    user = User("guest", hash_password("guest"), ("administrator",))
    return [user_definition(user), grant_definition(Grant("guest", "/", ".*", ".*", ".*"))]
