"""Names without a record: whether they are somebody else's, or parts of the group that is to be made."""

from __future__ import annotations

from collections.abc import Iterator

from lbg_broker.group import GroupSpec, Topology

from .checking import deviations
from .observed import UNKNOWN, Observed, QueueSeen, Unknown, UserSeen


def lacks_only_its_record(record: str, topology: Topology, observed: Observed) -> bool:
    """Whether all but the record's queue is there, and known to be as wanted."""
    return (
        all(observed.exchanges.get(one.name) is not None for one in topology.exchanges)
        and all(observed.queues.get(one.name) is not None for one in topology.queues if one.name != record)
        and observed.bindings is not UNKNOWN
        and observed.bindings >= set(topology.bindings)
        and not list(deviations(topology, observed))
    )


def is_left_over(topology: Topology, observed: Observed) -> bool:
    """Whether all that is there is known to be part of `topology`, and of no use to anybody yet or any more."""
    wanted = {exchange.name for exchange in topology.exchanges} | {queue.name for queue in topology.queues}
    there = {
        name: one for name, one in (*observed.exchanges.items(), *observed.queues.items()) if one is not None
    }
    return (
        wanted >= there.keys()
        and all(one is not UNKNOWN and one.arguments is not UNKNOWN for one in there.values())
        and all(_is_idle(one) for one in there.values() if isinstance(one, QueueSeen))
        and observed.bindings is not UNKNOWN
        and observed.bindings <= set(topology.bindings)
    )


def is_only_a_record_queue(record: str, observed: Observed) -> bool:
    """Whether nothing is there but a queue for the record, without one: a create was killed after its first step."""
    there = [one for one in (*observed.exchanges.values(), *observed.queues.values()) if one is not None]
    queue = observed.queues.get(record)
    return observed.record is None and isinstance(queue, QueueSeen) and there == [queue] and _is_idle(queue)


def _is_idle(seen: QueueSeen) -> bool:
    return seen.ready == 0 and seen.consumers == 0 and seen.unacked in (0, UNKNOWN)


def taken_names(observed: Observed) -> Iterator[str]:
    for kind, seen in (("exchange", observed.exchanges), ("queue", observed.queues)):
        for name, one in seen.items():
            if one is not None and one is not UNKNOWN:
                held = f" ({contents_of(one)})" if isinstance(one, QueueSeen) else ""
                yield f"{kind} {name} exists{held}"


def taken_prefix(spec: GroupSpec, observed: Observed) -> Iterator[str]:
    if observed.prefixes is not UNKNOWN:
        for group, prefix in sorted(observed.prefixes.items()):
            if prefix == spec.hash_prefix and group != spec.name:
                yield f"prefix {prefix!r} is that of group {group!r}"


def taken_user(spec: GroupSpec, observed: Observed) -> Iterator[str]:
    user = observed.user(spec.client_username)
    if isinstance(user, UserSeen) and user.made_for != spec.name:
        by = f"is that of group {user.made_for!r}" if user.made_for else "exists"
        yield f"user {spec.client_username!r} {by}"


def contents_of(seen: QueueSeen) -> str:
    def count(value: int | Unknown, unit: str) -> str:
        if value is UNKNOWN:
            return f"{unit}s unknown"
        return f"{value} {unit}{'' if value == 1 else 's'}"

    parts = [count(seen.ready, "message")]
    if seen.unacked is not UNKNOWN and seen.unacked:
        parts.append(f"{seen.unacked} unacked")
    return ", ".join([*parts, count(seen.consumers, "consumer")])
