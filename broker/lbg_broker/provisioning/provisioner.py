"""Create, delete, list and look at groups: each is observe, plan, apply."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from lbg_broker.group import GroupSpec, Names

from .actions import Action, CheckPolicies, PutUser
from .admin import BrokerAdmin
from .applying import apply, apply_all
from .describing import Description, describe
from .errors import GroupNotFound
from .observed import UNKNOWN, QueueSeen
from .planning import UserWish, plan_create, plan_delete

GENERATED_PASSWORD_BYTES = 24
# Members send a beat every second; a little longer hears each of them once.
LISTEN_S = 1.5


@dataclass(frozen=True, slots=True)
class Created:
    """`changes` is empty when the group was there and whole. `password` is one that was generated, else None."""

    spec: GroupSpec
    changes: tuple[Action, ...]
    was_there: bool
    password: str | None = field(default=None, repr=False)


async def create_group(
    admin: BrokerAdmin, spec: GroupSpec, *, password: str | None = None, with_user: bool = True
) -> Created:
    """Have `spec` on the broker, all of it or nothing; a group that is there is repaired.

    A user's password is `password`, or generated where the user is new. Raises ProvisioningError.
    """
    await admin.lock(spec.name)
    observed = await admin.observe(spec.name, wanted=spec)
    generated = secrets.token_urlsafe(GENERATED_PASSWORD_BYTES)
    wish = UserWish(password or generated, given=password is not None) if with_user else None
    actions = plan_create(spec, observed, user=wish)
    await apply(admin, actions)
    is_generated = password is None and any(isinstance(action, PutUser) for action in actions)
    changes = tuple(action for action in actions if not isinstance(action, CheckPolicies))
    return Created(spec, changes, not observed.is_empty, generated if is_generated else None)


async def delete_group(
    admin: BrokerAdmin, group: str, *, force: bool = False, with_user: bool = True
) -> Sequence[Action]:
    """Remove all of `group`, however much of it is left; returns what was done.

    Raises ProvisioningError, and SpecError for what cannot be a group's name.
    """
    Names(group)
    await admin.lock(group)
    actions = plan_delete(group, await admin.observe(group), force=force, with_user=with_user)
    await apply_all(admin, actions)
    return actions


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
    seen = [one for one in observed.queues.values() if isinstance(one, QueueSeen)]
    idle = all(one.consumers is not UNKNOWN and one.consumers == 0 for one in seen)
    beats = () if idle else await admin.listen(group, seconds=listen_s)
    return describe(group, observed, beats=beats)
