"""Policies that would make a broker lose a group's messages, whatever the queues themselves ask for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lbg_broker.group import Topology

from .observed import Policy

# RabbitMQ drops or dead-letters a message at its delivery limit, and every handoff counts as a delivery; the
# others let messages or whole queues expire.
LOSING = ("delivery-limit", "message-ttl", "expires")
_FOR_QUEUES = frozenset({"queues", "all", "quorum_queues", "classic_queues"})


def losing_policies(topology: Topology, policies: Sequence[Policy]) -> list[str]:
    """One line for each policy that is in force on a queue of the group and would lose messages of it."""
    lines = {}
    for queue in topology.queues:
        kind = str(queue.arguments.get("x-queue-type", "classic"))
        for of_operator in (False, True):
            policy = _effective(queue.name, kind, (one for one in policies if one.of_operator == of_operator))
            if policy is None:
                continue
            found = [f"{key} {policy.definition[key]}" for key in LOSING if key in policy.definition]
            if found:
                lines[policy.name, of_operator] = (
                    f"{'operator ' if of_operator else ''}policy {policy.name!r} sets {', '.join(found)} "
                    f"on queue {queue.name}"
                )
    return list(lines.values())


def _effective(queue: str, kind: str, policies: Iterable[Policy]) -> Policy | None:
    """Of all that match a name the one of the highest priority is in force, alone."""
    matching = [one for one in policies if _applies(one, queue, kind)]
    return max(matching, key=lambda policy: policy.priority, default=None)


def _applies(policy: Policy, queue: str, kind: str) -> bool:
    if policy.apply_to not in _FOR_QUEUES:
        return False
    if policy.apply_to.endswith("_queues") and policy.apply_to != f"{kind}_queues":
        return False
    try:
        return re.search(policy.pattern, queue) is not None
    except re.error:
        # The pattern is Erlang's dialect and not Python's: better to refuse a harmless one than to lose messages.
        return True
