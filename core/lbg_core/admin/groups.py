"""Operations on groups: create, show, list, close, rotate, park and delete, each observe, plan, apply.

A new password for the same user: clients stay connected, and read the new one when they connect again. A new
user beside the old one: both can log in, until the old one has no connection left and is deleted.

A group gets a parking queue when its members are to park poisoned messages (docs/adr/0065-parked-keys-are-a-log.md),
and keeps it. Members that run then do not read the parked keys, so they have to be stopped first.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from lbg_core.admin.actions import (
    ADMINISTRATOR,
    Action,
    ActOnQueue,
    Announce,
    Bind,
    CheckPolicies,
    DeclareQueue,
    DeleteUser,
    PutPermissions,
    PutUser,
    WriteRecord,
    undo_of,
)
from lbg_core.admin.describe import Description, describe
from lbg_core.admin.drift import conflicting_user, is_only_a_record_queue
from lbg_core.admin.errors import (
    ApplyFailed,
    MembersRun,
    Refused,
    SessionNotFound,
    StillInUse,
    Taken,
    Unsupported,
)
from lbg_core.admin.plan import (
    DesiredUser,
    additions,
    existing,
    plan_create,
    plan_delete,
    publishers_of,
    record_in,
    refuse_under_way,
    require_by_hand,
    require_owned,
    require_owner,
    require_supported,
    require_users,
    unfinished,
)
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject
from lbg_core.admin.protocol import BrokerAdmin, observe_existing, rewrite_record
from lbg_core.admin.record import BY_HAND, CLAIM_BY_HAND, Claim, Record, is_of_kubernetes, refuse_change
from lbg_core.admin.snapshot import CLOSING, SAMPLED_S, UNKNOWN, QueueStatus, SessionsStatus, Snapshot
from lbg_core.group import (
    ONE_USER,
    SESSIONS,
    Assignment,
    Difference,
    GroupSpec,
    Names,
    Permissions,
    Publishers,
    closed_record,
    differences,
    is_closed_in,
)
from lbg_core.group.members_protocol import Assign
from lbg_core.group.spec import username as valid_username
from lbg_core.group.topology import why_without_assignment, why_without_parking

COUNT_AGAIN_S = 0.5
COUNT_FOR_S = 2 * SAMPLED_S
"""Before a deletion is refused for what RabbitMQ may have counted late: a busy node counts later than it should."""


async def apply(admin: BrokerAdmin, actions: Sequence[Action]) -> None:
    """Perform `actions` in order. When one fails, take back all before it, last first, and raise ApplyFailed.

    A cancelled apply is taken back as well, and ends with the cancellation.
    """
    done: list[Action] = []
    for action in actions:
        try:
            await admin.perform(action)
        except BaseException as error:
            # Unless the broker refused it, the last one may have happened: it is undone too. Of many
            # bindings it may have refused only one.
            is_refused = isinstance(error, Refused) and not isinstance(action, Bind)
            doubtful = [] if is_refused else [action]
            left_behind = await _undo(admin, [*done, *doubtful])
            if isinstance(error, Exception):
                raise ApplyFailed(str(action), error, left_behind=left_behind) from error
            raise
        done.append(action)


async def apply_all(admin: BrokerAdmin, actions: Sequence[Action]) -> None:
    """Perform `actions` in order and stop at the first failure: what a delete removed stays removed."""
    for action in actions:
        await admin.perform(action)


UNDO_S = 20.0
"""Without any answer, after which the rest is left behind: who waits for a broker that stands still takes it for a
caller that hangs."""


async def _undo(admin: BrokerAdmin, done: Sequence[Action]) -> list[str]:
    loop = asyncio.get_running_loop()
    left_behind, deadline = [], loop.time() + UNDO_S
    for action in reversed(done):
        undo = undo_of(action)
        if undo is None:
            continue
        try:
            async with asyncio.timeout_at(deadline):
                await admin.perform(undo)
        except TimeoutError:
            left_behind.append(f"{undo} failed: no answer in time")
            continue
        except Exception as error:
            left_behind.append(f"{undo} failed: {error}")
        deadline = loop.time() + UNDO_S
    return left_behind


def plan_close(group: str, observed: Snapshot, *, session: str | None) -> tuple[Action, ...]:
    """The record first: publishers read there why they are refused. No actions where it is closed already.

    Raises GroupNotFound, RecordUnreadable, SessionNotFound, and Unsupported for a group without sessions, and where the
    broker does not report them.
    """
    spec, present = existing(group, observed)
    if spec.mode != SESSIONS:
        raise Unsupported(
            f"group {group!r} is in mode {spec.mode}, and only a group in mode {SESSIONS} can be closed: stop its "
            f"publishers, and `lbg group delete {group}` when it is drained"
        )
    parent = Names(group).parent
    queue = observed.queues.get(parent)
    sessions = queue.native if isinstance(queue, QueueStatus) else queue
    if sessions is UNKNOWN:
        why = next(iter(observed.why.values()), "no reason known")
        raise Unsupported(
            f"group {group!r} cannot be closed: its sessions are unknown ({why}); give the management API's "
            "address with --management"
        )
    if not isinstance(sessions, SessionsStatus):
        raise Unsupported(f"group {group!r} cannot be closed: queue {parent} is missing, or has no sessions")
    if session is None:
        actions: list[Action] = []
        if (record := replace(present, text=closed_record(spec))) != present:
            actions.append(WriteRecord(group, record, replace(present, text=spec.to_record())))
        return (*actions, *(() if sessions.closed else (ActOnQueue(parent, "close"),)))
    states = {one.session: one.state for one in sessions.sessions}
    if session not in states:
        raise SessionNotFound(group, session=session, sessions=sorted(states))
    return () if states[session] == CLOSING else (ActOnQueue(parent, "close-session", {"session": session}),)


def plan_rotate(
    group: str, observed: Snapshot, *, password: str, username: str | None = None
) -> tuple[Action, ...]:
    """The actions that give the group `password`, for its user, or for `username`, its user from now on.

    Raises GroupNotFound, RecordUnreadable, Unsupported, and Taken when `username` is not free.
    """
    spec, record = _existing(group, observed)
    desired = spec.altered(client_username=username or spec.client_username)
    _refuse_taken(group, desired.client_username, observed, other=observed.publishers.username)
    is_new = observed.user(desired.client_username) is None
    put_user = PutUser(desired.client_username, password, group, is_new)
    actions: list[Action] = [put_user] if is_new else []
    if is_new or desired != spec:
        permissions = observed.topology_of(spec).permissions
        actions.append(PutPermissions(desired.client_username, permissions, None if is_new else permissions))
    if desired != spec:
        is_closed = is_closed_in(record.text)  # a group that is closed stays so
        text = closed_record(desired) if is_closed else desired.to_record()
        actions.append(WriteRecord(group, replace(record, text=text), record))
    # Last: the password before this one cannot be put back.
    return tuple(actions if is_new else [*actions, put_user])


def plan_publisher(
    group: str,
    observed: Snapshot,
    *,
    user: DesiredUser,
    username: str | None = None,
    members_publish: bool | None = None,
    claim: Claim = CLAIM_BY_HAND,
) -> tuple[Action, ...]:
    """The actions that give the publishers `username` with its password; None: the user they have, or else a new one.

    `members_publish` False: publishers that log in as the members' user are refused from now on; None: as before.

    Raises GroupNotFound, NotOwned, RecordUnreadable, Unsupported, UnderWay, and Taken when `username` is not free.
    """
    spec, before = _existing(group, observed, claim)
    former = observed.publishers
    may_publish = former.members_publish if members_publish is None else members_publish
    name = valid_username(
        username or former.username or Names(group).publisher_user, field="publisher_username"
    )
    publishers = Publishers(name, may_publish)
    there = observed.user(name)
    is_new = there is None
    _refuse_taken(group, name, observed, other=spec.client_username)
    topology = observed.topology_of(spec, publishers)
    stream = Names(group).record
    actions: list[Action] = [
        DeclareQueue(queue)
        for queue in topology.queues
        if queue.name == stream and observed.queues.get(stream) is None
    ]
    if is_new:
        actions.append(PutUser(name, user.password, group))
    if is_new or name != former.username or observed.publisher_permissions != topology.publisher_permissions:
        assert topology.publisher_permissions is not None
        actions.append(PutPermissions(name, topology.publisher_permissions))
    record = replace(before, publishers=publishers)
    if actions or record != before:
        actions.append(WriteRecord(group, record, before))
    if observed.permissions != topology.permissions:
        present = observed.permissions if isinstance(observed.permissions, Permissions) else None
        actions.append(PutPermissions(spec.client_username, topology.permissions, present))
    if user.is_to_be_set(there):  # last: the password before this one cannot be put back
        actions.append(PutUser(name, user.password, group, is_new=False))
    return tuple(actions)


def plan_finish(group: str, observed: Snapshot, *, force: bool) -> tuple[Action, ...]:
    """The actions that delete every user of the group but those it has now.

    Raises StillInUse while one of them has connections, or their number is unknown, unless `force`.
    """
    spec, _ = _existing(group, observed)
    present = (spec.client_username, observed.publishers.username)
    before = [name for name in observed.users_of(group) if name not in present]
    causes = []
    for name in () if force else before:
        subject = Subject(group, user=name)
        if observed.connections is UNKNOWN:
            causes.append(Problem(Kind.USER_UNCOUNTED, subject))
        elif count := observed.connections.get(name):
            causes.append(Problem(Kind.USER_CONNECTED, subject, {"count": count}))
    if causes:
        raise StillInUse(group, causes=causes, kind=Kind.USERS_IN_USE)
    return tuple(DeleteUser(name) for name in before)


def plan_parking(group: str, observed: Snapshot, *, claim: Claim = CLAIM_BY_HAND) -> tuple[Action, ...]:
    """The actions that give the group a parking queue; none where it has one. The record comes last: members read there
    that they may write to it.

    Raises GroupNotFound, NotOwned, RecordUnreadable, UnderWay, KeysMove, Unsupported for modes without parking, and
    MembersRun while members run, which would not read the parked keys.
    """
    spec, before = existing(group, observed)
    require_owner(spec, observed, claim)
    refuse_change(spec, before)
    if reason := why_without_parking(spec, observed.engine):
        raise Unsupported(f"group {group!r} can have no parking queue in mode {spec.mode}: {reason}")
    if not observed.has_parking:
        refuse_served(group, observed)
    record = replace(before, has_parking=True)
    topology = replace(observed, record=record).topology_of(spec)
    of_parking = (Names(group).parking, Names(group).parked)
    added = replace(
        topology,
        exchanges=tuple(one for one in topology.exchanges if one.name in of_parking),
        queues=tuple(one for one in topology.queues if one.name in of_parking),
        bindings=tuple(one for one in topology.bindings if one.queue in of_parking),
    )
    judged = None if observed.policies is UNKNOWN else topology  # AMQP alone is enough
    actions = list(additions(spec, topology, added, observed, judged=judged))
    if record != before:
        actions.append(WriteRecord(group, record, before))
    return tuple(actions)


def refuse_served(group: str, observed: Snapshot) -> None:
    """Raises MembersRun if the group's queues have consumers, or may have."""
    if observed.is_served(group):
        raise MembersRun(group)


def _refuse_taken(group: str, username: str, observed: Snapshot, *, other: str) -> None:
    if causes := list(conflicting_user(group, username, observed, other=other)):
        raise Taken(group, causes=causes)


def _existing(group: str, observed: Snapshot, claim: Claim = CLAIM_BY_HAND) -> tuple[GroupSpec, Record]:
    if not is_of_kubernetes(claim.owner):
        require_by_hand(group, observed)
    spec, record = existing(group, observed)
    if is_of_kubernetes(claim.owner):
        require_owner(spec, observed, claim)
    refuse_under_way(spec, observed)
    require_users(observed, "changed")
    return spec, record


GENERATED_PASSWORD_BYTES = 24
# Members that are asked send a status report every second; a little longer receives one of each.
LISTEN_S = 1.5


@dataclass(frozen=True, slots=True)
class Created:
    """`changes` is empty when the group was there and whole. `was_begun`: an interrupted create had made parts of it,
    which are the group's now. `undone`: such a create had other attributes, a line for each (`field: its -> ours`),
    and what it had made was deleted. `unchecked` has a line for each object that could not be read. `password` is
    one that was generated, else None. `publishers` are those that the group has now, and `publisher_password` a
    generated one of their user."""

    spec: GroupSpec
    changes: tuple[Action, ...]
    was_there: bool
    was_begun: bool = False
    undone: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    password: str | None = field(default=None, repr=False)
    publishers: Publishers = ONE_USER
    publisher_password: str | None = field(default=None, repr=False)
    is_ingress_paused: bool = False
    has_parking: bool = False
    is_key_move_left: bool = False


async def create_group(
    admin: BrokerAdmin,
    spec: GroupSpec,
    *,
    password: str | None = None,
    with_user: bool = True,
    publishers: Publishers = ONE_USER,
    publisher_password: str | None = None,
    claim: Claim = CLAIM_BY_HAND,
    finish: bool = False,
    paused: bool | None = None,
    alters: bool = False,
) -> Created:
    """Creates group `spec` on the broker, completely or not at all; an existing group is repaired.

    What an interrupted create left is finished, or deleted where that had other attributes: StillInUse is raised when
    it holds messages or is used. A group that is not that of `claim` is not changed (NotOwned). `finish`: complete
    parts without a record too, which otherwise are refused as taken; for callers that own the name. A user's password
    is `password`, or generated where the user is new. `publishers`: those of a group that is new, whose user gets
    `publisher_password` or a generated one; not without `with_user`. `paused`: what the record is to state; None: as it
    is. `alters`: attributes that a group may change are changed, too.

    Raises ProvisioningError.
    """
    generated = secrets.token_urlsafe(GENERATED_PASSWORD_BYTES)
    wish = DesiredUser(password or generated, is_given=password is not None) if with_user else None
    publishers = publishers if with_user else ONE_USER
    generated_too = secrets.token_urlsafe(GENERATED_PASSWORD_BYTES)
    publisher = DesiredUser(publisher_password or generated_too, is_given=publisher_password is not None)
    async with admin.lock(spec.name):
        observed = await admin.observe(spec.name, desired=spec)
        require_owner(spec, observed, claim)
        begun = unfinished(spec.name, observed)
        was_begun = begun is not None or is_only_a_record_queue(Names(spec.name).config, observed)
        undone: tuple[Difference, ...] = ()
        if begun is not None and (undone := differences(begun, spec)):
            require_supported(spec, observed)
            left = await admin.observe(spec.name)
            await apply_all(admin, plan_delete(spec.name, left, force=False, with_user=with_user))
            observed, was_begun = await admin.observe(spec.name, desired=spec), False
        present = publishers_of(spec, observed, publishers)
        actions = plan_create(
            spec,
            observed,
            user=wish,
            publishers=publishers,
            publisher=publisher if publishers.username else None,
            claim=claim,
            finish=finish,
            paused=paused,
            alters=alters,
        )
        await apply(admin, actions)
    users = {action.name for action in actions if isinstance(action, PutUser)}
    changes = tuple(action for action in actions if not isinstance(action, CheckPolicies))
    unchecked = tuple(f"{', '.join(parts)} ({why})" for parts, why in observed.why.items())
    return Created(
        spec,
        changes,
        was_there=not observed.is_empty and not was_begun,
        was_begun=was_begun,
        undone=tuple(map(str, undone)),
        unchecked=unchecked,
        password=generated if password is None and spec.client_username in users else None,
        publishers=present,
        publisher_password=generated_too
        if publisher_password is None and present.username in users
        else None,
        is_ingress_paused=observed.is_ingress_paused(spec.name) is True,
        has_parking=observed.has_parking,
        is_key_move_left=observed.is_key_move_left(spec.name),
    )


async def assign_queues(
    admin: BrokerAdmin, group: str, assignment: Assignment, *, rebalance_threshold_percent: int | None = None
) -> bool:
    """Assigns the queues of a group by this rule from now on: its record states it, and members are told.

    A threshold of None stays as it is. False if all was so before.

    Raises NotOwned for a group of Kubernetes, SpecError or Unsupported where there is no such rule, GroupNotFound,
    RecordUnavailable, RecordUnreadable, UnderWay, KeysMove, Busy and AdminError.
    """
    async with admin.lock(group):
        observed = await observe_existing(admin, group)
        require_by_hand(group, observed)
        spec, record = existing(group, observed)
        refuse_change(spec, record)
        percent = rebalance_threshold_percent
        if percent is None:
            percent = spec.rebalance_threshold_percent
        wanted = spec.altered(assignment=assignment, rebalance_threshold_percent=percent)
        if reason := why_without_assignment(wanted, observed.engine):
            raise Unsupported(f"queues of group {group!r} cannot be assigned by {assignment}: {reason}")
        if wanted != spec:
            await rewrite_record(admin, group, record, text=wanted.to_record())
        await admin.perform(assignment_announced(wanted))
    return wanted != spec


def assignment_announced(spec: GroupSpec) -> Announce:
    """Members that are there serve the group's queues by its assignment."""
    told = Assign(ADMINISTRATOR, spec.assignment, spec.max_clients, spec.rebalance_threshold_percent)
    return Announce(spec.name, told)


@dataclass(frozen=True, slots=True)
class Rotated:
    """`password` is one that was generated, else None."""

    username: str
    changes: tuple[Action, ...]
    password: str | None = field(default=None, repr=False)


async def rotate_user(
    admin: BrokerAdmin, group: str, *, username: str | None = None, password: str | None = None
) -> Rotated:
    """Give the group's user a new password, or the group a new user beside the one it has.

    Raises ProvisioningError, and SpecError for what cannot be a group's or a user's name.
    """
    new = password or secrets.token_urlsafe(GENERATED_PASSWORD_BYTES)
    async with admin.lock(group):
        actions = plan_rotate(group, await admin.observe(group), password=new, username=username)
        await apply(admin, actions)
    (name,) = (action.name for action in actions if isinstance(action, PutUser))
    return Rotated(name, actions, None if password else new)


async def separate_publishers(
    admin: BrokerAdmin,
    group: str,
    *,
    username: str | None = None,
    password: str | None = None,
    members_publish: bool | None = None,
    claim: Claim = CLAIM_BY_HAND,
) -> Rotated:
    """Give the publishers of a group a user of their own, or that user a new password; see `plan_publisher`.

    No changes: all of this is there already.

    Raises ProvisioningError, and SpecError for what cannot be a group's or a user's name.
    """
    new = password or secrets.token_urlsafe(GENERATED_PASSWORD_BYTES)
    async with admin.lock(group):
        observed = await admin.observe(group)
        actions = plan_publisher(
            group,
            observed,
            user=DesiredUser(new),
            username=username,
            members_publish=members_publish,
            claim=claim,
        )
        await apply(admin, actions)
    name = username or observed.publishers.username or Names(group).publisher_user
    return Rotated(name, actions, None if password else new)


async def enable_parking(admin: BrokerAdmin, group: str, *, claim: Claim = CLAIM_BY_HAND) -> Sequence[Action]:
    """Give `group` a parking queue; returns what was done.

    A member reads the record once more when it has its mailbox. One that started meanwhile and read the former record
    has consumers by then, and MembersRun reports it.

    Raises ProvisioningError, and SpecError for what cannot be a group's name.
    """
    async with admin.lock(group):
        actions = plan_parking(group, await admin.observe(group), claim=claim)
        await apply(admin, actions)
        if any(isinstance(action, WriteRecord) for action in actions):
            refuse_served(group, await admin.observe(group))
    return actions


async def finish_rotation(admin: BrokerAdmin, group: str, *, force: bool = False) -> Sequence[Action]:
    """Delete the users that the group had before; returns what was done. Raises ProvisioningError."""
    async with admin.lock(group):
        actions = plan_finish(group, await admin.observe(group), force=force)
        await apply_all(admin, actions)
    return actions


async def delete_group(
    admin: BrokerAdmin, group: str, *, force: bool = False, with_user: bool = True
) -> Sequence[Action]:
    """Remove all of `group`, however much of it is left; returns what was done.

    For who works by hand: a group of Kubernetes is refused (NotOwned). See `delete_own`. If RabbitMQ counts
    unacknowledged messages and nothing else, they are counted again for `COUNT_FOR_S`.

    Raises ProvisioningError, and SpecError for what cannot be a group's name.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + COUNT_FOR_S
    async with admin.lock(group):
        while True:
            observed = await admin.observe(group)
            require_by_hand(group, observed)
            try:
                actions = plan_delete(group, observed, force=force, with_user=with_user)
                break
            except StillInUse:
                if loop.time() > deadline or not _is_counted_late(group, observed):
                    raise
            await asyncio.sleep(COUNT_AGAIN_S)
        await apply_all(admin, actions)
    return actions


def _is_counted_late(group: str, observed: Snapshot) -> bool:
    """True if only RabbitMQ's count of unacknowledged messages stands against a deletion."""
    queues = {
        name: replace(one, unacked=0) if isinstance(one, QueueStatus) else one
        for name, one in observed.queues.items()
    }
    try:
        plan_delete(group, replace(observed, queues=queues), force=False, with_user=False)
    except StillInUse:
        return False
    return observed.engine.is_rabbitmq


async def delete_own(
    admin: BrokerAdmin, spec: GroupSpec, *, claim: Claim, is_made: bool, force: bool = False
) -> Sequence[Action]:
    """Remove the group of `spec` and its user, and nothing that another owner has under its name; see `require_owned`.

    Raises ProvisioningError.
    """
    async with admin.lock(spec.name):
        observed = await admin.observe(spec.name)
        require_owned(spec, observed, claim, is_made=is_made)
        actions = plan_delete(spec.name, observed, force=force)
        await apply_all(admin, actions)
    return actions


async def check_owned(admin: BrokerAdmin, spec: GroupSpec, *, claim: Claim, is_made: bool) -> None:
    """Raise NotOwned for what has the name of `spec` and was not made for it; see `require_owned`."""
    require_owned(spec, await admin.observe(spec.name), claim, is_made=is_made)


@dataclass(frozen=True, slots=True)
class Adopted:
    """`before`: the former owner, as `lbg_core.admin.record` has it. Not changed: the group was by hand already."""

    before: str
    is_changed: bool


async def adopt_group(admin: BrokerAdmin, group: str) -> Adopted:
    """Have the group's record state that it is managed by hand. Nothing else of the group changes.

    Raises ProvisioningError, and SpecError for what cannot be a group's name.
    """
    async with admin.lock(group):
        before = record_in(group, await admin.observe(group))
        if is_changed := before.owner != BY_HAND:
            await rewrite_record(admin, group, before, owner=BY_HAND, object_name="")
    return Adopted(before.owner, is_changed)


async def close_group(admin: BrokerAdmin, group: str, *, session: str | None = None) -> Description:
    """End the sessions of `group`, or one of them; returns what is left then. Publishers are refused once all are to
    end, and consumers get what there is for them, and then End-of-Session.

    Raises ProvisioningError, and SpecError for what cannot be a group's name.
    """
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
    observed = await observe_existing(admin, group)
    if not observed.is_served(group):
        return describe(group, observed, beats=())
    try:
        return describe(group, observed, beats=await admin.listen(group, seconds=listen_s))
    except Refused as error:  # a user who may not make a queue to listen with
        return describe(group, observed, beats=error)
