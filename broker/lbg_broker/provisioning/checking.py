"""Where what is there is not what a group should be: what `create` refuses and `show` tells of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from lbg_broker.group import GroupSpec, Names, Topology, topology_of
from lbg_broker.group.topology import DISCONNECTED_MS

from .observed import UNKNOWN, Observed
from .policies import DISCONNECTED, losses, narrowings, pauses, reorderings

_JUDGED_IN_FORCE = {"x-delivery-limit", f"x-{DISCONNECTED}"}


def deviations(topology: Topology, observed: Observed) -> Iterator[str]:
    """Where what is there is known to be other than the topology; what is missing is no deviation.

    A delivery limit is none either, nor the time that a queue waits for a consumer whose node is gone: what counts is
    the one in force, see `policies`. A group that was made on RabbitMQ 3.x has no argument for the first, one from
    before 4.3 none for the second, and after an upgrade they need a policy.
    """
    for exchange in topology.exchanges:
        seen = observed.exchanges.get(exchange.name)
        if seen is None or seen is UNKNOWN:
            continue
        if seen.type is not UNKNOWN and seen.type != exchange.type:
            yield f"exchange {exchange.name} type: {seen.type} -> {exchange.type}"
        if seen.arguments is not UNKNOWN and dict(seen.arguments) != dict(exchange.arguments):
            yield f"exchange {exchange.name} arguments: {dict(seen.arguments)} -> {dict(exchange.arguments)}"
    for queue in topology.queues:
        there = observed.queues.get(queue.name)
        if there is None or there is UNKNOWN or there.arguments is UNKNOWN:
            continue
        for key in sorted({*there.arguments, *queue.arguments} - _JUDGED_IN_FORCE):
            was, wanted = there.arguments.get(key), queue.arguments.get(key)
            if was != wanted:
                yield f"queue {queue.name} {key}: {_shown(was)} -> {_shown(wanted)}"
    if observed.bindings is not UNKNOWN:
        exchanges = {exchange.name for exchange in topology.exchanges}
        for extra in sorted(observed.bindings - set(topology.bindings), key=str):
            if extra.exchange in exchanges and not _is_of_clients(extra.queue, topology):
                yield f"binding of {extra.queue} to {extra.exchange}: {extra.routing_key!r} -> none"


def problems(spec: GroupSpec, observed: Observed) -> Iterator[str]:
    """What is known to be wrong with a group that is there, apart from what is missing altogether."""
    topology = topology_of(spec, observed.engine)
    for line in losses(topology, observed):
        yield f"messages can be lost: {line}"
    for line in reorderings(topology, observed):
        yield f"messages can come out of order: {line}"
    for line in narrowings(topology, observed):
        yield f"queues refuse earlier than the group says: {line}"
    for line in pauses(topology, observed):
        yield f"queues stand still when the node of their member goes: {line} (a policy of {DISCONNECTED_MS} helps)"
    for line in deviations(topology, observed):
        yield f"not as it was made (found -> made): {line}"
    if observed.takes_nothing(spec.name):
        yield f"{Names(spec.name).parent} refuses publishers, its ingress is closed: `lbg group create` opens it"
    if observed.bindings is not UNKNOWN:
        there = {
            name for name, one in (*observed.exchanges.items(), *observed.queues.items()) if one is not None
        }
        missing = Counter(
            one.queue
            for one in topology.bindings
            if one not in observed.bindings and {one.exchange, one.queue} <= there
        )
        for queue, count in missing.items():
            yield f"{queue} lacks {count} binding{'' if count == 1 else 's'}: `lbg group create` puts them back"
    users = observed.users_of(spec.name)
    if spec.client_username in users and observed.permissions not in (UNKNOWN, topology.permissions):
        yield f"user {spec.client_username} has other permissions than the group's: `lbg group create` puts them right"
    for user in users:
        if user != spec.client_username:
            yield f"user {user} was the group's before: `lbg group rotate {spec.name} --finish` deletes it"


def _is_of_clients(queue: str, topology: Topology) -> bool:
    """Whether a bound queue is one that clients make for themselves (mailboxes, validation, watchers)."""
    return queue not in {one.name for one in topology.queues}


def _shown(value: object) -> str:
    return "none" if value is None else str(value)
