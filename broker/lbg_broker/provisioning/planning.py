"""What to do to have a group, or to be rid of it: pure functions of what is wanted and what is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from lbg_broker.group import (
    SESSIONS,
    Difference,
    GroupSpec,
    Names,
    SpecError,
    Topology,
    closed_record,
    differences,
    is_closed_in,
    topology_of,
)
from lbg_broker.group.topology import Binding
from lbg_broker.passwords import is_hash_of

from .actions import (
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
from .checking import deviations
from .errors import GroupDiffers, GroupNotFound, StillInUse, Taken, UnderWay, Unsupported
from .observed import UNKNOWN, Observed, QueueSeen, Unknown, UserSeen
from .supporting import refuse_unsupported
from .taking import (
    contents_of,
    is_left_over,
    is_only_a_record_queue,
    lacks_only_its_record,
    taken_names,
    taken_prefix,
    taken_user,
)


@dataclass(frozen=True, slots=True)
class UserWish:
    """The password for the group's user. `given`: somebody chose it, so a user that is there gets it as well."""

    password: str = field(repr=False)
    given: bool = True

    def is_to_be_set(self, there: UserSeen | Unknown | None) -> bool:
        """Whether a user that is there needs it: setting the same again costs a broker a write and a hash."""
        return (
            self.given and isinstance(there, UserSeen) and not is_hash_of(self.password, there.password_hash)
        )


def plan_create(
    spec: GroupSpec, observed: Observed, *, user: UserWish | None, finish: bool = False
) -> tuple[Action, ...]:
    """The actions that make what is there into `spec`; none when it is all there. `user` None: make no user.

    What an interrupted create with the same attributes left is made whole, as its record says what it is. `finish`:
    parts without a record that are as wanted, hold nothing and are used by nobody are made whole too; otherwise they
    are taken.

    Raises Unsupported, GroupDiffers (a group of this name has other attributes) and Taken (something else has
    a name or the prefix that the group needs).
    """
    refuse_unsupported(spec, observed)
    if user is not None:
        require_users(observed, "made")
    topology = topology_of(spec, observed.engine)
    existing, begun = recorded(spec.name, observed), unfinished(spec.name, observed)
    if begun is not None and (diff := differences(begun, spec)):
        raise GroupDiffers(
            spec.name,
            [str(one) for one in diff],
            remedy=f"; a create of it was interrupted: `lbg group delete {spec.name}` takes back what that made",
        )
    if existing is not None:
        refuse_under_way(existing, observed)
        if diff := differences(existing, spec):
            raise GroupDiffers(spec.name, [str(one) for one in diff], remedy=_remedy(spec, diff))
    differing = list(deviations(topology, observed))
    record_queue = Names(spec.name).config
    is_whole = not observed.is_empty and lacks_only_its_record(record_queue, topology, observed)
    is_there = existing is not None or begun is not None or is_whole
    if is_there and differing:
        raise GroupDiffers(spec.name, differing)
    taken: list[str] = []
    if not is_there:
        is_ours = is_only_a_record_queue(record_queue, observed) or (
            finish and is_left_over(topology, observed)
        )
        taken += () if is_ours and not differing else taken_names(observed)
    if existing is None and not is_whole:
        taken += taken_prefix(spec, observed)
    if user is not None:
        taken += taken_user(spec, observed)
    if taken:
        raise Taken(spec.name, taken)
    is_new = existing is None and begun is None and not is_whole
    return tuple(_creating(spec, topology, observed, user, is_new=is_new))


def plan_delete(group: str, observed: Observed, *, force: bool, with_user: bool = True) -> tuple[Action, ...]:
    """The actions that leave nothing of the group.

    Raises GroupNotFound, StillInUse unless `force`, and Unsupported when the group's user is to go
    (`with_user`) and could not be looked for.

    The exchange goes first, which stops the inflow; queues go from the highest number down, so that what an
    interrupted delete leaves can be found by counting up from 0; the record goes last.
    """
    if observed.is_empty:
        raise GroupNotFound(group)
    if with_user:
        require_users(observed, "deleted")
    names = Names(group)
    if not force and (where := list(_uses(names, observed))):
        raise StillInUse(group, where, remedy=_remedy_in_use(group, observed))
    exchanges = [name for name, seen in observed.exchanges.items() if seen is not None]
    queues = [name for name, seen in observed.queues.items() if seen is not None]
    guarded = _guarded_queues(names, queues)
    actions: list[Action] = []
    if observed.queue_count_to_be is not None:
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


def refuse_under_way(spec: GroupSpec, observed: Observed) -> None:
    """Raise UnderWay while somebody changes the number of queues of `spec`, the recorded group."""
    if observed.queue_count_to_be is not None:
        raise UnderWay(spec.name, spec.queue_count, observed.queue_count_to_be)


def require_users(observed: Observed, done: str) -> None:
    """Raise Unsupported, with the reason, where users could not be looked at."""
    if observed.users is UNKNOWN:
        why = next((reason for what, reason in observed.why.items() if "user" in what), "no reason known")
        raise Unsupported(
            f"the group's user cannot be {done}: {why}; give the management API's address with --management, "
            "or leave the user out with --no-user"
        )


def recorded(group: str, observed: Observed) -> GroupSpec | None:
    """The group as its record has it; a record that cannot be read counts as missing, to be repaired."""
    if observed.record is UNKNOWN or observed.record is None:
        return None
    try:
        return GroupSpec.from_record(observed.record, name=group)
    except SpecError:
        return None


def unfinished(group: str, observed: Observed) -> GroupSpec | None:
    """What the group was to be, where its record says that its create was not finished."""
    if not isinstance(observed.record, str):
        return None
    return GroupSpec.from_unfinished(observed.record, name=group)


def _creating(
    spec: GroupSpec, topology: Topology, observed: Observed, user: UserWish | None, *, is_new: bool
) -> Iterator[Action]:
    """A new group's record comes first, and says that the group is being made: what a killed create leaves is known by
    it, with its attributes. It comes last once more, and says that the group is there."""
    record_queue = Names(spec.name).config
    if is_new:
        for queue in topology.queues:
            if queue.name == record_queue and _is_to_be_declared(observed.queues.get(queue.name)):
                yield DeclareQueue(queue, is_new=observed.queues.get(queue.name) is None)
        yield WriteRecord(spec.name, spec.to_unfinished(), is_final=False)
    # What is there and not known in full is declared all the same: a broker refuses a declaration that differs.
    for exchange in topology.exchanges:
        seen = observed.exchanges.get(exchange.name)
        if seen is None or seen is UNKNOWN or seen.arguments is UNKNOWN:
            yield DeclareExchange(exchange, is_new=seen is None)
    for queue in topology.queues:
        there = observed.queues.get(queue.name)
        if _is_to_be_declared(there) and not (is_new and queue.name == record_queue):
            yield DeclareQueue(queue, is_new=there is None)
    if observed.engine.is_rabbitmq and observed.policies is not UNKNOWN and None in observed.queues.values():
        yield CheckPolicies(spec.name, topology)
    there_already = frozenset[Binding]() if observed.bindings is UNKNOWN else observed.bindings
    missing = [binding for binding in topology.bindings if binding not in there_already]
    for queue_name, of_queue in groupby(missing, key=lambda binding: binding.queue):
        yield Bind(queue_name, tuple(of_queue), is_new=observed.bindings is not UNKNOWN)
    if observed.takes_nothing(spec.name):
        yield ActOnQueue(Names(spec.name).parent, "ingress", {"open": True})
    begun = unfinished(spec.name, observed)
    if user is not None:
        yield from _granting(spec, topology, observed, user, begun=begun is not None)
    yield from _recording(spec, observed)
    if user is not None and begun is None and user.is_to_be_set(observed.user(spec.client_username)):
        # Last: the password before this one cannot be put back.
        yield PutUser(spec.client_username, user.password, spec.name, is_new=False)


def _is_to_be_declared(seen: QueueSeen | Unknown | None) -> bool:
    return seen is None or seen is UNKNOWN or seen.arguments is UNKNOWN


def _recording(spec: GroupSpec, observed: Observed) -> Iterator[Action]:
    """A record where there is none, and a limit of clients where the group was made without and the number agrees."""
    existing = recorded(spec.name, observed)
    if existing is None:
        begun = unfinished(spec.name, observed)  # the note of a new group goes with its queue
        yield WriteRecord(
            spec.name, spec.to_record(), before=None if begun is None else begun.to_unfinished()
        )
    elif spec.limits_clients and not existing.limits_clients:
        assert isinstance(observed.record, str)
        text = closed_record(spec) if is_closed_in(observed.record) else spec.to_record()
        yield WriteRecord(spec.name, text, before=observed.record)


def _granting(
    spec: GroupSpec, topology: Topology, observed: Observed, user: UserWish, *, begun: bool
) -> Iterator[Action]:
    is_new = observed.user(spec.client_username) is None
    if is_new or begun:  # nobody was told the password that an interrupted create gave it
        yield PutUser(spec.client_username, user.password, spec.name, is_new=is_new)
    if observed.permissions is UNKNOWN or observed.permissions != topology.permissions:
        before = None if observed.permissions is UNKNOWN else observed.permissions
        yield PutPermissions(spec.client_username, topology.permissions, before)


def _remedy(spec: GroupSpec, diff: Sequence[Difference]) -> str:
    if "queue_count" not in {one.field for one in diff}:
        return ""
    return f"; `lbg group repartition {spec.name} --queues {spec.queue_count}` gives it that many queues"


def _remedy_in_use(group: str, observed: Observed) -> str:
    spec = recorded(group, observed)
    if spec is not None and spec.mode == SESSIONS:
        return f"close it with `lbg group close {group}` and let its sessions end, or use --force"
    return "stop its members and drain it, or use --force"


def _guarded_queues(names: Names, queues: list[str]) -> list[str]:
    """The queues that hold what nobody has taken yet, in the order of their numbers."""
    served = sorted(filter(names.is_served, queues), key=lambda name: names.number_of(name) or 0)
    return [*served, *(name for name in queues if name in (names.unrouted, names.dead))]


def _uses(names: Names, observed: Observed) -> Iterator[str]:
    for name in _guarded_queues(names, [name for name, seen in observed.queues.items() if seen is not None]):
        seen = observed.queues[name]
        if seen is None:
            continue
        if seen is not UNKNOWN and seen.is_down:
            yield f"{name} does not answer, as most of its nodes are down"
        elif seen is UNKNOWN or seen.ready is UNKNOWN or seen.consumers is UNKNOWN:
            yield f"{name} could not be asked"
        elif seen.ready or seen.consumers or (seen.unacked is not UNKNOWN and seen.unacked):
            yield f"{name} has {contents_of(seen)}"
