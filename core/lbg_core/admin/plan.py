"""Pure plans for creating and deleting a group: desired and observed state to actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from lbg_core.admin.actions import (
    Action,
    ActOnQueue,
    Bind,
    CheckPolicies,
    DeclareExchange,
    DeclareQueue,
    DeleteExchange,
    DeleteQueue,
    DeleteUser,
    OpenIngress,
    PutPermissions,
    PutUser,
    WriteRecord,
)
from lbg_core.admin.drift import (
    conflicting_names,
    conflicting_prefix,
    conflicting_user,
    drift,
    is_left_over,
    is_only_a_record_queue,
    lacks_only_its_record,
)
from lbg_core.admin.errors import (
    GroupDiffers,
    GroupNotFound,
    NotOwned,
    RecordNewer,
    RecordUnreadable,
    StillInUse,
    Taken,
    UnderWay,
    Unsupported,
)
from lbg_core.admin.policies import require_order
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject, difference_of
from lbg_core.admin.record import (
    CLAIM_BY_HAND,
    Claim,
    Record,
    is_of_kubernetes,
    is_same_owner,
    paused_words,
    spec_in,
)
from lbg_core.admin.snapshot import UNKNOWN, QueueStatus, Snapshot, Unknown, UserState, listed_publishers
from lbg_core.counted_nouns import counted
from lbg_core.group import (
    MESSAGE_GROUPS,
    ONE_USER,
    SESSIONS,
    UNCOUNTED_MODES,
    Engine,
    GroupSpec,
    Names,
    NewerRecordError,
    Permissions,
    Publishers,
    SpecError,
    Topology,
    closed_record,
    conflicts,
    differences,
    is_closed_in,
    is_native,
)
from lbg_core.group.topology import MEMBER_CHANNELS, OLDEST_RABBITMQ, why_without_assignment
from lbg_core.passwords import is_hash_of

_NOT_ON_RABBITMQ = {
    MESSAGE_GROUPS: (
        "no queue of RabbitMQ gives the messages of a key to one consumer at a time; use mode Exclusive with "
        "assignment ByLoad and 8 to 16 queues for each member, where a key stays in its queue, and the keys of a queue "
        "move to another member together"
    ),
    SESSIONS: (
        "no queue of RabbitMQ numbers its messages for sessions; the nearest there is mode Exclusive with members that "
        "remember what they have processed (docs/exactly-once.md)"
    ),
}


def require_supported(spec: GroupSpec, observed: Snapshot) -> None:
    """Raises Unsupported."""
    if reason := why_unsupported(spec, observed.engine):
        raise Unsupported(f"group {spec.name!r} is not possible on {observed.engine}: {reason}")
    require_order(spec.name, observed.topology_of(spec), observed)


def require_channels(spec: GroupSpec, observed: Snapshot, *, queues_meanwhile: int = 0) -> None:
    """A member that is left alone consumes each queue, on a channel of its own. `queues_meanwhile`: those that the
    group has until it has the number of `spec`. Raises Unsupported."""
    queues, allowed = max(spec.queue_count, queues_meanwhile), observed.channel_max
    needed = queues + MEMBER_CHANNELS
    if allowed is None or needed <= allowed or is_native(spec, observed.engine):
        return
    if queues > spec.queue_count:
        what = f"cannot get {counted(spec.queue_count, 'queue')} online, as it has {queues} meanwhile"
        instead = "use --offline"
    else:
        what = f"cannot have {counted(queues, 'queue')}"
        instead = f"choose at most {counted(max(0, allowed - MEMBER_CHANNELS), 'queue')}"
    raise Unsupported(
        f"group {spec.name!r} {what}: a member that is left alone needs {counted(needed, 'channel')} on a "
        f"connection, and this broker allows {allowed}; {instead}, or set the broker's channel_max to {needed} or more"
    )


def why_unsupported(spec: GroupSpec, engine: Engine) -> str | None:
    """None for what the engine can do."""
    if engine.is_too_old:
        return f"RabbitMQ {'.'.join(map(str, OLDEST_RABBITMQ))} or later is needed"
    if engine.counts_for_owners_only:
        return "it counts a queue only for users that may delete it, so members could not: 4.3.1 or later is needed"
    if engine.is_rabbitmq and (lacking := _NOT_ON_RABBITMQ.get(spec.mode)):
        return f"it has no mode {spec.mode}: {lacking}, and the embedded broker has mode {spec.mode} itself"
    return why_without_assignment(spec, engine)


@dataclass(frozen=True, slots=True)
class DesiredUser:
    """The password for the group's user. `is_given`: the caller chose it, so an existing user gets it as well."""

    password: str = field(repr=False)
    is_given: bool = True

    def is_to_be_set(self, there: UserState | Unknown | None) -> bool:
        """True if a user that is there needs it: setting the same again costs a broker a write and a hash."""
        return (
            self.is_given
            and isinstance(there, UserState)
            and not is_hash_of(self.password, there.password_hash)
        )


def plan_create(
    spec: GroupSpec,
    observed: Snapshot,
    *,
    user: DesiredUser | None,
    publishers: Publishers = ONE_USER,
    publisher: DesiredUser | None = None,
    claim: Claim = CLAIM_BY_HAND,
    finish: bool = False,
    paused: bool | None = None,
    alters: bool = False,
) -> tuple[Action, ...]:
    """The actions that make what is there into `spec`; none when it is all there. `user` None: make no user.
    `alters`: attributes that a group may change are changed; else they differ as the others do.
    `publishers`: of a group that is new. `publisher`: their user, also where the group has it already.

    What an interrupted create with the same attributes left is made whole, as its record says what it is. `finish`:
    parts without a record that are as wanted, empty and not in use, are completed too; otherwise they
    are conflicts. `paused`: what the record is to state; None: as it is.

    Raises Unsupported, NotOwned (the group of this name is not that of `claim`), GroupDiffers (it has other attributes)
    and Taken (something else has a name or the prefix that the group needs).
    """
    require_supported(spec, observed)
    if user is not None:
        require_users(observed, "made")
    wanted, publishers = publishers, publishers_of(spec, observed, publishers)
    if publishers.username != wanted.username:
        publisher = None
    topology = observed.topology_of(spec, publishers)
    require_owner(spec, observed, claim)
    existing, begun = recorded(spec.name, observed), unfinished(spec.name, observed)
    if observed.record is None:
        require_channels(spec, observed)
    if begun is not None and (diff := differences(begun, spec)):
        raise GroupDiffers(spec.name, diff=diff, kind=Kind.UNFINISHED_DIFFERS)
    if existing is not None:
        refuse_under_way(existing, observed)
        if diff := (conflicts if alters else differences)(existing, spec):
            fields = {one.field for one in diff}
            kind = Kind.QUEUE_COUNT_DIFFERS if "queue_count" in fields else Kind.GROUP_DIFFERS
            if fields == {"max_clients"} and spec.mode not in UNCOUNTED_MODES:
                kind = Kind.MAX_CLIENTS_DIFFER
            elif fields == {"assignment"}:
                kind = Kind.ASSIGNMENT_DIFFERS
            elif fields <= {"assignment", "rebalance_threshold_percent"}:
                kind = Kind.REBALANCE_THRESHOLD_DIFFERS
            raise GroupDiffers(spec.name, diff=diff, kind=kind, queues=spec.queue_count, **spec.alterable)
    differing = [difference_of(one) for one in drift(spec.name, topology, observed)]
    is_whole = lacks_only_its_record(spec.name, topology, observed)
    is_there = existing is not None or begun is not None or is_whole
    if is_whole:
        _require_owner_without_record(spec, topology, observed, claim)
    if is_there and differing:
        raise GroupDiffers(spec.name, diff=differing)
    taken: list[Problem] = []
    if not is_there and not _is_adoptable(spec.name, topology, observed, finish=finish):
        if (
            is_of_kubernetes(claim.owner)
            and not observed.owner
            and any(conflicting_names(spec.name, observed))
        ):
            raise _not_owned(spec.name, claim)
        taken += conflicting_names(spec.name, observed)
    if existing is None and not is_whole:
        taken += conflicting_prefix(spec, observed)
    if user is not None:
        taken += conflicting_user(spec.name, spec.client_username, observed)
    if publisher is not None:
        taken += conflicting_user(spec.name, publishers.username, observed, other=spec.client_username)
    if taken:
        raise Taken(spec.name, causes=taken)
    is_new = existing is None and begun is None and not is_whole
    granted: list[_Granted] = []
    if user is not None:
        granted.append(_Granted(spec.client_username, user, observed.permissions, topology.permissions))
        if (desired := topology.publisher_permissions) is not None:
            is_present = publishers.username == observed.publishers.username
            present = observed.publisher_permissions if is_present else UNKNOWN
            granted.append(_Granted(publishers.username, publisher, present, desired))
    return tuple(
        _creating(
            *(spec, topology, observed, granted, publishers, claim),
            is_new=is_new,
            paused=paused,
            alters=alters,
        )
    )


def publishers_of(spec: GroupSpec, observed: Snapshot, wanted: Publishers = ONE_USER) -> Publishers:
    """Login of the publishers of a group: as its record has it, also that of an interrupted create; without a record as
    the stream of its copies shows; of a new group as `wanted`."""
    if observed.publishers.username or recorded(spec.name, observed) is not None:
        return observed.publishers
    listed = listed_publishers(spec, observed.queues, observed.permissions)
    if listed.username or lacks_only_its_record(spec.name, observed.topology_of(spec), observed):
        return listed
    return wanted


def plan_delete(group: str, observed: Snapshot, *, force: bool, with_user: bool = True) -> tuple[Action, ...]:
    """The actions that leave nothing of the group, whosever it is: see `require_owner`.

    Raises GroupNotFound, StillInUse unless `force`, and Unsupported when the group's user is to go
    (`with_user`) and could not be read.

    The exchange goes first, which stops the inflow; queues go from the highest number down, so that what an
    interrupted delete leaves can be found by counting up from 0; the record goes last.
    """
    if observed.is_empty:
        raise GroupNotFound(group)
    if with_user:
        require_users(observed, "deleted")
    names = Names(group)
    if not force and (causes := list(_uses(names, observed))):
        spec = recorded(group, observed)
        has_sessions = spec is not None and spec.mode == SESSIONS
        kind = Kind.SESSIONS_IN_USE if has_sessions else Kind.STILL_IN_USE
        raise StillInUse(group, kind=kind, causes=causes)
    exchanges = [name for name, status in observed.exchanges.items() if status is not None]
    queues = [name for name, status in observed.queues.items() if status is not None]
    guarded = _guarded_queues(names, observed)
    actions: list[Action] = []
    is_paused = isinstance(observed.record, Record) and observed.record.is_ingress_paused
    if observed.queue_count_to_be is not None or is_paused:
        actions.append(OpenIngress(group))
    if names.exchange in exchanges:
        actions.append(DeleteExchange(names.exchange))
    actions += [DeleteQueue(name, only_idle=not force) for name in reversed(guarded)]
    actions += [DeleteQueue(name) for name in queues if name not in (*guarded, names.config)]
    actions += [DeleteExchange(name) for name in exchanges if name != names.exchange]
    if with_user:
        actions += [DeleteUser(user) for user in observed.users_of(group)]
    if names.config in queues:
        actions.append(DeleteQueue(names.config))
    return tuple(actions)


def require_owner(spec: GroupSpec, observed: Snapshot, claim: Claim) -> None:
    """Raise NotOwned for a group that is not that of `claim`, before anything is read from its attributes.

    Parts without a record are no group: what they are says whose they may be.
    """
    is_group = isinstance(observed.record, Record)
    if is_group and not claim.adopts and not is_same_owner(observed.owner, claim.owner):
        raise _not_owned(spec.name, claim)


def _require_owner_without_record(
    spec: GroupSpec, topology: Topology, observed: Snapshot, claim: Claim
) -> None:
    """The same for what lost its record, and its owner with it: parts that nobody uses are nobody's. Others are the
    object's of Kubernetes whose Secret has the password of the group's user. Raises Unsupported where users could not
    be looked at for that."""
    if observed.record is not None or claim.adopts or is_left_over(topology, observed):
        return
    is_made = True
    if is_of_kubernetes(claim.owner):
        require_users(observed, "compared")
        user = observed.user(spec.client_username)
        is_made = (
            isinstance(user, UserState)
            and user.made_for == spec.name
            and claim.password is not None
            and is_hash_of(claim.password, user.password_hash)
        )
    if not is_made:
        raise _not_owned(spec.name, claim)


def _not_owned(group: str, claim: Claim) -> NotOwned:
    kind = Kind.NOT_OWNED if claim.remedy else Kind.OF_KUBERNETES
    return NotOwned(group, kind=kind, remedy=claim.remedy)


def require_by_hand(group: str, observed: Snapshot) -> None:
    """Raise NotOwned for a group of Kubernetes, which the command line does not change."""
    if is_of_kubernetes(observed.owner):
        raise NotOwned(group, kind=Kind.OF_KUBERNETES)


def require_owned(spec: GroupSpec, observed: Snapshot, claim: Claim, *, is_made: bool) -> None:
    """Raise for what is not the group of `spec`: its name may be another owner's.

    `is_made`: the group is known to have been made as `spec`. Otherwise its own is what a create of `spec` would go on
    from, which is what that does not refuse.

    Raises GroupNotFound, NotOwned, GroupDiffers, and UnderWay.
    """
    if observed.is_empty:
        raise GroupNotFound(spec.name)
    topology = observed.topology_of(spec, publishers_of(spec, observed))
    require_owner(spec, observed, claim)
    _require_owner_without_record(spec, topology, observed, claim)
    existing, begun = recorded(spec.name, observed), unfinished(spec.name, observed)
    claimed = existing or begun
    if claimed is not None and (diff := conflicts(claimed, spec)):
        raise GroupDiffers(spec.name, diff=diff)
    if is_made:
        return
    if existing is not None:
        refuse_under_way(existing, observed)
    is_there = claimed is not None or lacks_only_its_record(spec.name, topology, observed)
    if is_there and (differing := [difference_of(one) for one in drift(spec.name, topology, observed)]):
        raise GroupDiffers(spec.name, diff=differing)
    is_foreign = not is_there and not _is_adoptable(spec.name, topology, observed, finish=True)
    if is_foreign or any(conflicting_user(spec.name, spec.client_username, observed)):
        raise _not_owned(spec.name, claim)


def _is_adoptable(group: str, topology: Topology, observed: Snapshot, *, finish: bool) -> bool:
    """True if what is there without a record may be made whole: a queue for the record, or with `finish` parts that
    are not in use."""
    is_ours = is_only_a_record_queue(Names(group).config, observed) or (
        finish and is_left_over(topology, observed)
    )
    return is_ours and not any(drift(group, topology, observed))


def refuse_under_way(spec: GroupSpec, observed: Snapshot) -> None:
    """Raises UnderWay while the number of queues of `spec`, the recorded group, is being changed."""
    if observed.queue_count_to_be is not None:
        raise UnderWay(spec.name, spec.queue_count, observed.queue_count_to_be)


def require_users(observed: Snapshot, done: str) -> None:
    """Raises Unsupported, with the reason, where users could not be read."""
    if observed.users is UNKNOWN:
        why = next((one for parts, one in observed.why.items() if "users" in parts), "no reason known")
        raise Unsupported(
            f"the group's user cannot be {done}: {why}; give the management API's address with --management, "
            "or leave the user out with --no-user"
        )


def recorded(group: str, observed: Snapshot) -> GroupSpec | None:
    """The group as its record has it; a record that cannot be read counts as missing, to be repaired. Raises
    RecordNewer."""
    if observed.record is UNKNOWN or observed.record is None:
        return None
    try:
        return GroupSpec.from_record(observed.record.text, name=group)
    except NewerRecordError as error:
        raise RecordNewer(group, version=error.value) from error
    except SpecError:
        return None


def record_in(group: str, observed: Snapshot) -> Record:
    """The record of the group. Raises GroupNotFound, and RecordUnreadable where it is missing."""
    if observed.is_empty:
        raise GroupNotFound(group)
    if not isinstance(observed.record, Record):
        raise RecordUnreadable(group, cause="it is missing")
    return observed.record


def existing(group: str, observed: Snapshot) -> tuple[GroupSpec, Record]:
    """The recorded group, and its record. Raises GroupNotFound, also for an unfinished one, and RecordUnreadable."""
    record = record_in(group, observed)
    return spec_in(record.text, group), record


def unfinished(group: str, observed: Snapshot) -> GroupSpec | None:
    """Spec of an unfinished create, as the group's record has it."""
    if not isinstance(observed.record, Record):
        return None
    return GroupSpec.from_unfinished(observed.record.text, name=group)


class _Granted(NamedTuple):
    """A user with its present and desired permissions. `user` None: its password stays, and it is not made."""

    name: str
    user: DesiredUser | None
    present: Permissions | Unknown | None
    desired: Permissions


def _creating(
    spec: GroupSpec,
    topology: Topology,
    observed: Snapshot,
    granted: Sequence[_Granted],
    publishers: Publishers,
    claim: Claim,
    *,
    is_new: bool,
    paused: bool | None,
    alters: bool,
) -> Iterator[Action]:
    """A new group's record comes first, as that of a group that is being made: it identifies what a killed create
    leaves, with its attributes. It comes last once more, as the group's final record."""
    record_queue = Names(spec.name).config
    if is_new:
        for queue in topology.queues:
            if queue.name == record_queue and _is_to_be_declared(observed.queues.get(queue.name)):
                yield DeclareQueue(queue, is_new=observed.queues.get(queue.name) is None)
        record = Record(spec.to_unfinished(), claim.owner, publishers)
        yield WriteRecord(spec.name, record)
    # What is there and not known in full is declared all the same: a broker refuses a declaration that differs.
    for exchange in topology.exchanges:
        status = observed.exchanges.get(exchange.name)
        if status is None or status is UNKNOWN or status.arguments is UNKNOWN:
            yield DeclareExchange(exchange, is_new=status is None)
    for queue in topology.queues:
        there = observed.queues.get(queue.name)
        if _is_to_be_declared(there) and not (is_new and queue.name == record_queue):
            yield DeclareQueue(queue, is_new=there is None)
    if observed.engine.is_rabbitmq and observed.policies is not UNKNOWN and None in observed.queues.values():
        yield CheckPolicies(spec.name, topology)
    yield from _missing_bindings(topology, observed)
    if observed.is_unusable(spec.name):
        yield ActOnQueue(Names(spec.name).parent, "ingress", {"open": True})
    begun = unfinished(spec.name, observed) is not None
    for one in granted:
        is_new = observed.user(one.name) is None
        # The password of an interrupted create was not returned.
        if one.user is not None and (is_new or begun):
            yield PutUser(one.name, one.user.password, spec.name, is_new=is_new)
        if one.present != one.desired and (one.user is not None or not is_new):
            before = None if one.present is UNKNOWN else one.present
            yield PutPermissions(one.name, one.desired, before)
    yield from _recording(spec, observed, claim, paused, publishers, alters=alters)
    for one in granted:
        if one.user is not None and not begun and one.user.is_to_be_set(observed.user(one.name)):
            # Last: the password before this one cannot be put back.
            yield PutUser(one.name, one.user.password, spec.name, is_new=False)


def additions(
    spec: GroupSpec,
    topology: Topology,
    added: Topology,
    observed: Snapshot,
    *,
    judged: Topology | None,
) -> Iterator[Action]:
    """Makes what is missing of the objects that a group gets later, `added`, and of its user's permissions as in
    `topology`. `judged`: queues whose policies are checked when one is made; None: of none."""
    yield from (DeclareExchange(one) for one in added.exchanges if observed.exchanges.get(one.name) is None)
    queues = [one for one in added.queues if observed.queues.get(one.name) is None]
    yield from map(DeclareQueue, queues)
    if queues and observed.engine.is_rabbitmq and judged is not None:
        yield CheckPolicies(spec.name, judged)
    yield from _missing_bindings(added, observed)
    is_ours = spec.client_username in observed.users_of(spec.name)  # else its permissions are not the group's
    present = observed.permissions
    if is_ours and isinstance(present, Permissions) and present != topology.permissions:
        yield PutPermissions(spec.client_username, topology.permissions, present)


def _missing_bindings(topology: Topology, observed: Snapshot) -> Iterator[Action]:
    is_known = observed.bindings is not UNKNOWN
    there = frozenset() if observed.bindings is UNKNOWN else observed.bindings
    missing = [one for one in topology.bindings if one not in there]
    for queue, of_queue in groupby(missing, key=lambda binding: binding.queue):
        yield Bind(queue, tuple(of_queue), is_new=is_known)


def _is_to_be_declared(status: QueueStatus | Unknown | None) -> bool:
    return status is None or status is UNKNOWN or status.arguments is UNKNOWN


def _recording(
    spec: GroupSpec,
    observed: Snapshot,
    claim: Claim,
    paused: bool | None,
    publishers: Publishers,
    *,
    alters: bool,
) -> Iterator[Action]:
    """A record where there is none, what a group may alter, a limit of clients where the group was made without and the
    number agrees, the owner, and whether the group is paused."""
    before = observed.record if isinstance(observed.record, Record) else None
    existing, owner = recorded(spec.name, observed), claim.owner_after(before)
    words = observed.paused if paused is None else paused_words(observed.paused, is_paused=paused)
    if existing is None:
        begun = unfinished(spec.name, observed)  # the note of a new group goes with its queue
        record = Record(spec.to_record(), owner, publishers, words, observed.has_parking)
        record = replace(record, object_name=claim.object_after(before))
        yield WriteRecord(spec.name, record, None if begun is None else before)
        return
    assert before is not None
    told = spec if spec.limits_clients and not existing.limits_clients else existing
    if alters:  # while keys move, their change writes the record as it was at its beginning
        told = existing if before.key_move else existing.altered_as(spec)
    text = before.text
    if told.to_record() != existing.to_record():
        text = closed_record(told) if is_closed_in(text) else told.to_record()
    record = replace(before, text=text, owner=owner, paused=words, object_name=claim.object_after(before))
    if record != before:
        yield WriteRecord(spec.name, record, before)


def _guarded_queues(names: Names, observed: Snapshot) -> list[str]:
    """The queues with unprocessed messages, in the order of their numbers."""
    queues = [name for name, status in observed.queues.items() if status is not None]
    served = sorted(filter(names.is_served, queues), key=lambda name: names.number_of(name) or 0)
    return [*served, *(name for name in queues if name in (names.unrouted, names.dead, names.parking))]


def _uses(names: Names, observed: Snapshot) -> Iterator[Problem]:
    for name in _guarded_queues(names, observed):
        status = observed.queues[name]
        assert status is not None
        subject = Subject(names.group, name)
        if status is not UNKNOWN and status.is_down:
            yield Problem(Kind.QUEUE_DOWN, subject)
        elif status is UNKNOWN or status.ready is UNKNOWN or status.consumers is UNKNOWN:
            yield Problem(Kind.QUEUE_UNCOUNTED, subject)
        else:
            count = status.ready + (0 if status.unacked is UNKNOWN else status.unacked)
            if count or status.consumers:
                yield Problem(Kind.QUEUE_IN_USE, subject, {"count": count, "consumers": status.consumers})
