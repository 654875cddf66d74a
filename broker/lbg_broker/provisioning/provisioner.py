"""Create, delete, list and look at groups: each is observe, plan, apply."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lbg_broker.group import Difference, GroupSpec, Names, differences

from .actions import Action, CheckPolicies, PutUser
from .admin import BrokerAdmin
from .applying import apply, apply_all
from .closing import plan_close
from .describing import Description, describe
from .errors import ApplyFailed, GroupNotFound, Refused
from .observed import UNKNOWN
from .planning import UserWish, plan_create, plan_delete, unfinished
from .rotating import plan_finish, plan_rotate
from .supporting import is_older_than_mode, refuse_unsupported, too_old
from .taking import is_only_a_record_queue

GENERATED_PASSWORD_BYTES = 24
# Members send a beat every second; a little longer hears each of them once.
LISTEN_S = 1.5


@dataclass(frozen=True, slots=True)
class Created:
    """`changes` is empty when the group was there and whole. `was_begun`: an interrupted create had made parts of it,
    which are the group's now. `undone`: such a create had other attributes, a line for each (`field: its -> ours`),
    and what it had made was deleted. `unchecked` holds a line for each thing that could not be looked at. `password` is
    one that was generated, else None."""

    spec: GroupSpec
    changes: tuple[Action, ...]
    was_there: bool
    was_begun: bool = False
    undone: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    password: str | None = field(default=None, repr=False)


async def create_group(
    admin: BrokerAdmin,
    spec: GroupSpec,
    *,
    password: str | None = None,
    with_user: bool = True,
    finish: bool = False,
) -> Created:
    """Have `spec` on the broker, all of it or nothing; a group that is there is repaired.

    What an interrupted create left is finished, or deleted where that had other attributes: StillInUse is raised when
    it holds messages or is used. `finish`: go on from parts without a record too, which otherwise are refused as
    taken. For who knows that the name is its own. A user's password is `password`, or generated where the user is new.

    Raises ProvisioningError.
    """
    generated = secrets.token_urlsafe(GENERATED_PASSWORD_BYTES)
    wish = UserWish(password or generated, given=password is not None) if with_user else None
    async with admin.lock(spec.name):
        observed = await admin.observe(spec.name, wanted=spec)
        begun = unfinished(spec.name, observed)
        was_begun = begun is not None or is_only_a_record_queue(Names(spec.name).config, observed)
        undone: tuple[Difference, ...] = ()
        if begun is not None and (undone := differences(begun, spec)):
            refuse_unsupported(spec, observed)
            left = await admin.observe(spec.name)
            await apply_all(admin, plan_delete(spec.name, left, force=False, with_user=with_user))
            observed, was_begun = await admin.observe(spec.name, wanted=spec), False
        actions = plan_create(spec, observed, user=wish, finish=finish)
        try:
            await apply(admin, actions)
        except ApplyFailed as error:
            if is_older_than_mode(spec, observed.engine, error) and not error.left_behind:
                raise too_old(spec, observed.engine) from error
            raise
    is_generated = password is None and any(isinstance(action, PutUser) for action in actions)
    changes = tuple(action for action in actions if not isinstance(action, CheckPolicies))
    unchecked = tuple(f"{what} ({why})" for what, why in observed.why.items())
    return Created(
        spec,
        changes,
        was_there=not observed.is_empty and not was_begun,
        was_begun=was_begun,
        undone=tuple(map(str, undone)),
        unchecked=unchecked,
        password=generated if is_generated else None,
    )


@dataclass(frozen=True, slots=True)
class Rotated:
    """`password` is one that was generated, else None."""

    username: str
    changes: tuple[Action, ...]
    password: str | None = field(default=None, repr=False)


async def rotate_user(
    admin: BrokerAdmin, group: str, *, username: str | None = None, password: str | None = None
) -> Rotated:
    """Give the group's user a new password, or the group a new user beside the one it has; see `rotating`.

    Raises ProvisioningError, and SpecError for what cannot be a group's or a user's name.
    """
    Names(group)
    new = password or secrets.token_urlsafe(GENERATED_PASSWORD_BYTES)
    async with admin.lock(group):
        actions = plan_rotate(group, await admin.observe(group), password=new, username=username)
        await apply(admin, actions)
    (name,) = (action.name for action in actions if isinstance(action, PutUser))
    return Rotated(name, actions, None if password else new)


async def finish_rotation(admin: BrokerAdmin, group: str, *, force: bool = False) -> Sequence[Action]:
    """Delete the users that the group had before; returns what was done. Raises ProvisioningError."""
    Names(group)
    async with admin.lock(group):
        actions = plan_finish(group, await admin.observe(group), force=force)
        await apply_all(admin, actions)
    return actions


async def delete_group(
    admin: BrokerAdmin, group: str, *, force: bool = False, with_user: bool = True
) -> Sequence[Action]:
    """Remove all of `group`, however much of it is left; returns what was done.

    Raises ProvisioningError, and SpecError for what cannot be a group's name.
    """
    Names(group)
    async with admin.lock(group):
        actions = plan_delete(group, await admin.observe(group), force=force, with_user=with_user)
        await apply_all(admin, actions)
    return actions


async def close_group(admin: BrokerAdmin, group: str, *, session: str | None = None) -> Description:
    """End the sessions of `group`, or one of them; returns what is left then. Publishers are refused once all are to
    end, and consumers get what there is for them, and then End-of-Session.

    Raises ProvisioningError, and SpecError for what cannot be a group's name.
    """
    Names(group)
    async with admin.lock(group):
        await apply_all(admin, plan_close(group, await admin.observe(group), session=session))
    return await show_group(admin, group)


async def list_groups(admin: BrokerAdmin) -> list[Description]:
    """Every group on the broker, without its members."""
    return [describe(group, await admin.observe(group), beats=()) for group in sorted(await admin.groups())]


async def show_group(admin: BrokerAdmin, group: str, *, listen_s: float = LISTEN_S) -> Description:
    """One group with its queues and members.

    Raises GroupNotFound, AdminError, and SpecError for what cannot be a group's name.
    """
    Names(group)
    observed = await admin.observe(group)
    if observed.is_empty:
        raise GroupNotFound(group)
    if not observed.is_served(group):
        return describe(group, observed, beats=())
    try:
        return describe(group, observed, beats=await admin.listen(group, seconds=listen_s))
    except Refused as error:  # a user who may not make a queue to listen with
        why = {**observed.why, "members": str(error)}
        return describe(group, replace(observed, why=why), beats=UNKNOWN)
