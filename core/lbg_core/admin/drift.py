"""Drift of a group: what of it differs from what was created, is missing, left over, or another's. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lbg_core.admin.ingress_permissions import closed
from lbg_core.admin.policies import DISCONNECTED, effects
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject
from lbg_core.admin.record import Record
from lbg_core.admin.rows import plain
from lbg_core.admin.snapshot import UNKNOWN, QueueStatus, Snapshot, Unknown, UserState
from lbg_core.group import GroupSpec, Names, Permissions, Topology, forwarded_key
from lbg_core.group.topology import LEADER_LOCATOR

_FORWARDED = forwarded_key(0)[:-1]
_NOT_COMPARED = {"x-delivery-limit", f"x-{DISCONNECTED}", LEADER_LOCATOR}


def drift(group: str, topology: Topology, observed: Snapshot) -> Iterator[Problem]:
    """Drift: objects that differ from the topology; a missing or unknown one is no drift.

    A delivery limit is none either, nor the time that a queue waits for a consumer whose node is gone: what counts is
    the one in force, see `policies`. A group that was made on RabbitMQ 3.x has no argument for the first, one from
    before 4.3 none for the second, and after an upgrade they need a policy. Where a leader starts means nothing later.
    """
    for exchange in topology.exchanges:
        state = observed.exchanges.get(exchange.name)
        if state is None or state is UNKNOWN:
            continue
        for attribute in ("type", "arguments"):
            was, created = getattr(state, attribute), getattr(exchange, attribute)
            if was is not UNKNOWN and was != created:
                figures = {"attribute": attribute, "observed": str(was), "created": str(created)}
                yield Problem(Kind.EXCHANGE_DIFFERS, Subject(group, exchange=exchange.name), figures)
    for queue in topology.queues:
        there = observed.queues.get(queue.name)
        if there is None or there is UNKNOWN or there.arguments is UNKNOWN:
            continue
        for key in sorted({*there.arguments, *queue.arguments} - _NOT_COMPARED):
            argument, desired = there.arguments.get(key), queue.arguments.get(key)
            if argument != desired:
                arguments = {"attribute": key, "observed": argument, "created": desired}
                yield Problem(Kind.QUEUE_DIFFERS, Subject(group, queue.name), arguments)
    if observed.bindings is not UNKNOWN:
        exchanges = {exchange.name for exchange in topology.exchanges}
        # Clients bind others (mailboxes, validation, watchers).
        queues = {queue.name for queue in topology.queues}
        is_moving = isinstance(observed.record, Record) and bool(observed.record.key_move)
        for extra in sorted(observed.bindings - set(topology.bindings), key=str):
            if is_moving or extra.routing_key.startswith(_FORWARDED):
                continue  # of an online change of the number of queues
            if extra.exchange in exchanges and extra.queue in queues:
                subject = Subject(group, extra.queue, extra.exchange)
                yield Problem(Kind.BINDING_ADDED, subject, {"routing_key": extra.routing_key})


def problems(spec: GroupSpec, observed: Snapshot) -> Iterator[Problem]:
    """Known problems of an existing group, apart from what is missing altogether."""
    group, topology = spec.name, observed.topology_of(spec)
    yield from effects(group, topology, observed)
    yield from drift(group, topology, observed)
    if observed.is_unusable(group):
        yield Problem(Kind.INGRESS_CLOSED, Subject(group, Names(group).parent))
    if observed.bindings is not UNKNOWN:
        there = observed.there.keys()
        missing = Counter(
            one.queue
            for one in topology.bindings
            if one not in observed.bindings and {one.exchange, one.queue} <= there
        )
        for queue, count in missing.items():
            yield Problem(Kind.BINDINGS_MISSING, Subject(group, queue), {"count": count})
    users, publisher = observed.users_of(group), observed.publishers.username
    if spec.client_username in users:
        present = observed.without_pause(observed.permissions, group)
        yield from _permissions(group, spec.client_username, present, topology.permissions)
    if publisher and observed.user(publisher) is None:
        yield Problem(Kind.PUBLISHER_MISSING, Subject(group, user=publisher))
    elif publisher:
        present = observed.without_pause(observed.publisher_permissions, group)
        yield from _permissions(group, publisher, present, topology.publisher_permissions)
    for user in users:
        if user not in (spec.client_username, publisher):
            yield Problem(Kind.FORMER_USER, Subject(group, user=user))


def _permissions(
    group: str, username: str, present: Permissions | Unknown | None, desired: Permissions | None
) -> Iterator[Problem]:
    if present in (UNKNOWN, desired):
        return
    exchange = Names(group).exchange
    kind = Kind.PERMISSIONS_DIFFER
    if isinstance(present, Permissions) and desired is not None:
        if closed(present, exchange) == desired:
            kind = Kind.PUBLISHES_IN_PAUSE
        elif present == closed(desired, exchange):
            kind = Kind.PUBLISHES_NOT
    yield Problem(kind, Subject(group, user=username))


def lacks_only_its_record(group: str, topology: Topology, observed: Snapshot) -> bool:
    """True if all but the record's queue is there, and known to be as wanted."""
    record = Names(group).config
    return (
        not observed.is_empty
        and all(observed.exchanges.get(one.name) is not None for one in topology.exchanges)
        and all(observed.queues.get(one.name) is not None for one in topology.queues if one.name != record)
        and observed.bindings is not UNKNOWN
        and observed.bindings >= set(topology.bindings)
        and not any(drift(group, topology, observed))
    )


def is_left_over(topology: Topology, observed: Snapshot) -> bool:
    """True if all existing objects are part of `topology`, and none is in use."""
    desired = {exchange.name for exchange in topology.exchanges} | {queue.name for queue in topology.queues}
    there = observed.there
    return (
        desired >= there.keys()
        and all(one is not UNKNOWN and one.arguments is not UNKNOWN for one in there.values())
        and all(_is_idle(one) for one in there.values() if isinstance(one, QueueStatus))
        and observed.bindings is not UNKNOWN
        and observed.bindings <= set(topology.bindings)
    )


def is_only_a_record_queue(record: str, observed: Snapshot) -> bool:
    """True if nothing is there but a queue for the record, without one: a create was killed after its first step."""
    queue = observed.queues.get(record)
    is_alone = observed.record is None and observed.there.keys() == {record}
    return is_alone and isinstance(queue, QueueStatus) and _is_idle(queue)


def _is_idle(status: QueueStatus) -> bool:
    return status.ready == 0 and status.consumers == 0 and status.unacked in (0, UNKNOWN)


def conflicting_names(group: str, observed: Snapshot) -> Iterator[Problem]:
    for name, one in observed.there.items():
        if isinstance(one, QueueStatus):
            counts = {"ready": plain(one.ready), "consumers": plain(one.consumers)}
            yield Problem(Kind.QUEUE_TAKEN, Subject(group, name), counts)
        elif one is not UNKNOWN:
            yield Problem(Kind.EXCHANGE_TAKEN, Subject(group, exchange=name))


def conflicting_prefix(spec: GroupSpec, observed: Snapshot) -> Iterator[Problem]:
    """Without the name of the group that has it: who creates a group need not be told of others."""
    if observed.prefixes is not UNKNOWN and any(
        prefix == spec.hash_prefix for group, prefix in observed.prefixes.items() if group != spec.name
    ):
        yield Problem(Kind.PREFIX_TAKEN, Subject(spec.name), {"prefix": spec.hash_prefix})


def conflicting_user(group: str, username: str, observed: Snapshot, *, other: str = "") -> Iterator[Problem]:
    """`other`: the group's user for another purpose, members or publishers."""
    user, subject = observed.user(username), Subject(group, user=username)
    if username == other:
        yield Problem(Kind.USER_OF_BOTH, subject)
    elif isinstance(user, UserState) and user.made_for != group:
        yield Problem(Kind.USER_TAKEN if user.made_for else Kind.USER_FOREIGN, subject)
