"""Arguments and policies in force on a group's queues, and those that would lose or reorder messages.

RabbitMQ combines them per kind of queue: `rabbit_quorum_queue:ra_machine_config/1` for quorum queues,
`rabbit_amqqueue_process:process_args_policy/1` for classic ones. The smaller number wins, except that on 4.x a
number below 0 (no limit) yields to any other; a policy's `overflow` beats a quorum queue's own, a classic queue's
own beats a policy's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from lbg_core.admin.errors import Unsupported
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject, text_of
from lbg_core.admin.snapshot import UNKNOWN, Policy, QueueStatus, Snapshot, Unknown
from lbg_core.group import Engine, Names, Topology
from lbg_core.group.topology import DISCONNECTED_MS, Queue
from lbg_core.name_pattern import NamePattern, PatternError

DEFAULT_DELIVERY_LIMIT = 20
"""Of a quorum queue since 4.0, where neither an argument nor a policy sets one."""

DEFAULT_DISCONNECTED_MS = 60_000
"""RabbitMQ's own time for a quorum queue to wait for a consumer whose node is gone, from 4.3 on."""

DELAYED_RETRY = "delayed-retry-type"
DISCONNECTED = "consumer-disconnected-timeout"

_OF_QUORUM_QUEUES = ("delivery-limit", DISCONNECTED)
_OF_BOTH = ("message-ttl", "expires", "max-length", "max-length-bytes", "overflow")
_SETTINGS = (*_OF_QUORUM_QUEUES, *_OF_BOTH)
_RETENTION = ("max-age", "max-length-bytes")
"""Of streams: what is beyond is deleted."""
# A policy that sets anything else is not applied to a quorum queue at all: the next one that matches is
# (`rabbit_quorum_queue:is_policy_applicable/2`).
_FOR_QUORUM_QUEUES = frozenset(
    {
        *_SETTINGS,
        *("max-in-memory-length", "max-in-memory-bytes", "dead-letter-exchange", "dead-letter-routing-key"),
        *("dead-letter-strategy", "queue-leader-locator", "queue-master-locator", "initial-cluster-size"),
        *("target-group-size", "consumer-timeout"),
        *("delayed-retry-type", "delayed-retry-min", "delayed-retry-max"),
    }
)
_UNSUPPORTED = (Kind.MESSAGES_LOST, Kind.PARKED_KEYS_LOST, Kind.MESSAGES_REORDERED)
_FOR_QUEUES = frozenset({"queues", "all", "quorum_queues", "classic_queues", "streams"})


class PolicyEffect(NamedTuple):
    """Effect of policies on one queue: `named` maps a setting to the policy's name."""

    definition: Mapping[str, object]
    named: Mapping[str, str]


def effects(group: str, topology: Topology, observed: Snapshot) -> list[Problem]:
    """A problem for each policy and setting in force that harms the group, with the queues."""
    queues: dict[tuple[Kind, str, tuple[tuple[str, object], ...]], list[str]] = {}
    for queue, settings, over in _all_in_force(topology, observed):
        for kind, shown, by in _effects(Names(group), queue, settings, over, observed.engine):
            policy = next((over.named[one] for one in by if one in over.named), "RabbitMQ itself")
            queues.setdefault((kind, policy, tuple(shown.items())), []).append(queue.name)
    return [
        Problem(
            kind,
            Subject(group, names[0]),
            {"policy": policy, "settings": dict(shown), "queues": tuple(names)},
        )
        for (kind, policy, shown), names in queues.items()
    ]


def require_order(group: str, topology: Topology, observed: Snapshot) -> None:
    """Raises Unsupported for policies in force under which the group would lose or reorder messages."""
    if found := [text_of(one) for one in effects(group, topology, observed) if one.kind in _UNSUPPORTED]:
        raise Unsupported(
            f"group {group!r}: {'; '.join(found)}; change that policy, or put one of a higher priority without it on "
            f"^lbg\\.{group}\\."
        )


def in_force(
    arguments: Mapping[str, object], definition: Mapping[str, object], engine: Engine
) -> dict[str, object]:
    """The settings of a queue with these arguments under policies with `definition`."""
    is_quorum = arguments.get("x-queue-type") == "quorum"
    settings: dict[str, object] = {}
    is_stream = arguments.get("x-queue-type") == "stream"
    for setting in _SETTINGS if is_quorum else (*_OF_BOTH, "max-age") if is_stream else _OF_BOTH:
        own, policy = arguments.get(f"x-{setting}"), definition.get(setting)
        if own is None or policy is None:
            value = policy if own is None else own
        elif isinstance(own, int) and isinstance(policy, int):
            value = _combined(own, policy, engine)
        else:
            value = policy if is_quorum else own
        if value is not None:
            settings[setting] = value
    if is_quorum and engine.version >= (4, 0, 0):
        settings.setdefault("delivery-limit", DEFAULT_DELIVERY_LIMIT)
    if is_quorum and engine.waits_for_disconnected:
        settings.setdefault(DISCONNECTED, DEFAULT_DISCONNECTED_MS)
    return settings


def _all_in_force(
    topology: Topology, observed: Snapshot
) -> Iterator[tuple[Queue, Mapping[str, object], PolicyEffect]]:
    if not observed.engine.is_rabbitmq:
        return
    for queue in topology.queues:
        status = observed.queues.get(queue.name)
        over = policies_over(queue, status, observed.policies, observed.engine)
        arguments: Mapping[str, object] = queue.arguments
        if isinstance(status, QueueStatus) and status.arguments is not UNKNOWN:
            arguments = status.arguments
        yield queue, in_force(arguments, over.definition, observed.engine), over


def _effects(
    names: Names, queue: Queue, settings: Mapping[str, object], over: PolicyEffect, engine: Engine
) -> Iterator[tuple[Kind, dict[str, object], tuple[str, ...]]]:
    """Settings with an effect, as they are shown and by names: of the first in a policy, that is the one to change."""
    for shown, by in _losing(names, queue, settings, engine):
        kind = Kind.PARKED_KEYS_LOST if queue.name == names.parked else Kind.MESSAGES_LOST
        yield kind, {one: settings.get(one, "drop-head") for one in shown}, by
    if over.definition.get(DELAYED_RETRY, "disabled") != "disabled":
        # Since 4.3 a queue may keep what came back for a while, and deliver what stands behind it.
        yield Kind.MESSAGES_REORDERED, {DELAYED_RETRY: over.definition[DELAYED_RETRY]}, (DELAYED_RETRY,)
    for setting in ("max-length", "max-length-bytes"):
        is_narrower = settings.get(setting) != queue.arguments.get(f"x-{setting}")
        if setting in over.named and settings.get("overflow") == "reject-publish" and is_narrower:
            yield Kind.QUEUES_NARROWED, {setting: settings[setting]}, (setting,)
    # RabbitMQ sets it itself for a group that was made before an upgrade to 4.3.
    waits_ms = settings.get(DISCONNECTED)
    if f"x-{DISCONNECTED}" in queue.arguments and isinstance(waits_ms, int) and waits_ms > DISCONNECTED_MS:
        yield Kind.QUEUES_PAUSE, {DISCONNECTED: waits_ms}, (DISCONNECTED,)


def _losing(
    names: Names, queue: Queue, settings: Mapping[str, object], engine: Engine
) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Settings that lose messages, as they are shown and by names. Every handoff returns prefetched messages, and every
    return counts towards a delivery limit."""
    if queue.name == names.parked:
        yield from (((setting,), (setting,)) for setting in _RETENTION if setting in settings)
        return
    limit = settings.get("delivery-limit")
    if isinstance(limit, int) and (limit >= 0 or engine.version < (4, 0, 0)):
        yield ("delivery-limit",), ("delivery-limit",)
    for setting in ("message-ttl", "expires"):
        if setting in settings:
            yield (setting,), (setting,)
    if settings.get("overflow") == "reject-publish":
        return
    is_record = queue.name == names.config
    for setting in ("max-length", "max-length-bytes"):
        if setting in settings and not (is_record and setting == "max-length" and settings[setting] == 1):
            yield (setting, "overflow"), ("overflow", setting)


def policies_over(
    queue: Queue, status: QueueStatus | Unknown | None, policies: Sequence[Policy] | Unknown, engine: Engine
) -> PolicyEffect:
    """RabbitMQ's report of the user policy in force precedes our own evaluation of patterns. Its effective definition
    is sampled, so it is added to the current policies and overrules nothing."""
    definition: dict[str, object] = {}
    named: dict[str, str] = {}
    if isinstance(status, QueueStatus) and status.effective is not UNKNOWN:
        definition.update(status.effective)
        named.update(dict.fromkeys(status.effective, "a policy"))
    if policies is UNKNOWN:
        return PolicyEffect(definition, named)
    users = [one for one in policies if not one.of_operator]
    if isinstance(status, QueueStatus) and status.policy is not UNKNOWN:
        policy = next((one for one in users if one.name == status.policy), None)
    else:
        policy = _first(queue, users)
    now: dict[str, object] = {}
    for one in (policy, _first(queue, [one for one in policies if one.of_operator])):
        for setting, value in one.definition.items() if one is not None else ():
            before = now.get(setting)
            both_numbers = isinstance(before, int) and isinstance(value, int)
            now[setting] = _combined(before, value, engine) if both_numbers else value
            if now[setting] == value and one is not None:
                named[setting] = f"{'operator ' if one.of_operator else ''}policy {one.name!r}"
    return PolicyEffect(definition | now, named)


def _first(queue: Queue, policies: Sequence[Policy]) -> Policy | None:
    """Of all that match a queue the one of the highest priority is in force, alone."""
    return max(
        (one for one in policies if _matches(one, queue)), key=lambda policy: policy.priority, default=None
    )


def _matches(policy: Policy, queue: Queue) -> bool:
    kind = str(queue.arguments.get("x-queue-type", "classic"))
    if policy.apply_to not in _FOR_QUEUES:
        return False
    if policy.apply_to.endswith("_queues") and policy.apply_to != f"{kind}_queues":
        return False
    if policy.apply_to == "streams" and (kind != "stream" or queue.name.endswith(".record")):
        return False  # of the copies of a record only the latest is read
    if kind == "quorum" and not _FOR_QUORUM_QUEUES.issuperset(policy.definition):
        return False
    try:
        return NamePattern(policy.pattern).matches(queue.name)
    except PatternError:
        # The pattern is PCRE, which can more than RE2: better to refuse a harmless one than to lose messages.
        return True


def _combined(own: object, policy: object, engine: Engine) -> int:
    assert isinstance(own, int)
    assert isinstance(policy, int)
    if engine.version >= (4, 0, 0) and min(own, policy) < 0:
        return max(own, policy)
    return min(own, policy)
