"""Changing a group's password or its user under members and publishers that stay: pure plans.

A new password for the same user: whoever is connected stays so, and reads the new one when it connects again. A new
user beside the old one: both are let in, until the old one has no connection left and is deleted.
"""

from __future__ import annotations

from lbg_broker.group import GroupSpec, closed_record, is_closed_in, topology_of

from .actions import Action, DeleteUser, PutPermissions, PutUser, WriteRecord
from .errors import GroupNotFound, RecordUnreadable, StillInUse, Taken
from .observed import UNKNOWN, Observed
from .planning import recorded, refuse_under_way, require_users

REMEDY = "have its clients log in as the new user, or use --force"


def plan_rotate(
    group: str, observed: Observed, *, password: str, username: str | None = None
) -> tuple[Action, ...]:
    """The actions that give the group `password`, for its user, or for `username`, its user from now on.

    Raises GroupNotFound, RecordUnreadable, Unsupported, and Taken when `username` is not free.
    """
    spec = _existing(group, observed)
    wanted = replace_user(spec, username or spec.client_username)
    user = observed.user(wanted.client_username)
    is_new = user is None
    if user is not None and user is not UNKNOWN and user.made_for != group:
        raise Taken(group, [f"user {user.name!r} exists and is not the group's"])
    put_user = PutUser(wanted.client_username, password, group, is_new)
    actions: list[Action] = [put_user] if is_new else []
    if is_new or wanted != spec:
        permissions = topology_of(spec, observed.engine).permissions
        actions.append(PutPermissions(wanted.client_username, permissions, None if is_new else permissions))
    if wanted != spec:
        actions.append(_record(wanted, observed))
    # Last: the password before this one cannot be put back.
    return tuple(actions if is_new else [*actions, put_user])


def plan_finish(group: str, observed: Observed, *, force: bool) -> tuple[Action, ...]:
    """The actions that delete every user of the group but the one it has now.

    Raises StillInUse while one of them has connections, or nobody knows, unless `force`.
    """
    spec = _existing(group, observed)
    before = [name for name in observed.users_of(group) if name != spec.client_username]
    if before and not force:
        if observed.connections is UNKNOWN:
            unknown = [f"the connections of user {name} are unknown" for name in before]
            raise StillInUse(group, unknown, remedy=REMEDY)
        connected = {name: observed.connections.get(name, 0) for name in before}
        if where := [f"user {name} has {count} connections" for name, count in connected.items() if count]:
            raise StillInUse(group, where, remedy=REMEDY)
    return tuple(DeleteUser(name) for name in before)


def _record(wanted: GroupSpec, observed: Observed) -> WriteRecord:
    """A group that is closed stays so."""
    assert isinstance(observed.record, str)
    text = closed_record(wanted) if is_closed_in(observed.record) else wanted.to_record()
    return WriteRecord(wanted.name, text, before=observed.record)


def replace_user(spec: GroupSpec, username: str) -> GroupSpec:
    """Raises SpecError for what cannot be a user's name."""
    return spec.altered(client_username=username)


def _existing(group: str, observed: Observed) -> GroupSpec:
    if observed.is_empty:
        raise GroupNotFound(group)
    spec = recorded(group, observed)
    if spec is None:
        raise RecordUnreadable(group, "it is missing or not one")
    refuse_under_way(spec, observed)
    require_users(observed, "changed")
    return spec
