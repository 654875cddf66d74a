"""Rules of conditions: one pure function for each, from the facts of a group or a broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import itemgetter
from typing import Any

from lbg_core.admin import (
    AdminError,
    Denied,
    GroupDiffers,
    NotOwned,
    ProvisioningError,
    Refused,
    Taken,
    UnderWay,
    Unsupported,
)
from lbg_core.admin.describe import Description
from lbg_core.admin.errors import MembersRun, NotJoined
from lbg_core.admin.problem_kinds import Kind, Severity
from lbg_core.admin.problems import lines_of, text_of
from lbg_core.admin.snapshot import UNKNOWN
from lbg_core.counted_nouns import counted
from lbg_core.group.sizing import Sizing
from lbg_operator.crds import Floor, GroupManifest
from lbg_operator.status.conditions import Condition, Reason, Type, with_stalled
from lbg_operator.status.pods import NO_MOUNTS, Mounts, are_completed, failing

STRANDED_AFTER_S = 60.0
"""A session is away while its pod is replaced, in a rollout or after a crash: that is what it is kept for."""
NAMED_MAX = 10


def stranded_of(description: Description, now_s: float) -> str:
    """The sessions that have had messages and no consumer for longer than a pod takes to be replaced."""
    late = [
        one
        for one in ([] if description.sessions is None else description.sessions.stranded)
        if one.away_since is not None and now_s - one.away_since >= STRANDED_AFTER_S
    ]
    return "; ".join(
        f"session {one.session} has {counted(one.messages, 'message')} and no consumer"
        for one in late[:NAMED_MAX]
    )


def stranded_in_s(description: Description | None, now_s: float) -> float:
    """In how many seconds another session is called stranded by itself; infinity if none is."""
    if description is None or description.sessions is None:
        return inf
    since = (one.away_since for one in description.sessions.stranded if one.away_since is not None)
    moments = (away_since_s + STRANDED_AFTER_S for away_since_s in since)
    return min((at - now_s for at in moments if at > now_s), default=inf)


QUEUES_NAMED_MAX = 10
SCALING_DISABLED = "ScalingDisabled"
"""Reason that an autoscaler gives for 0 replicas (Kubernetes: "HorizontalPodAutoscaler", implicit maintenance mode)."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason for which a manifest is not followed, or not followed further."""

    reason: Reason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Unapplied:
    """Failures of the API server with an object's children, in its own words.

    - `mistakes`: what is wrong by itself, until the manifest changes.
    - `refusals`: what a quota, a policy or the operator's rules forbid.
    - `faults`: what may pass.
    """

    mistakes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        return joined((*self.mistakes, *self.refusals, *self.faults))


ALL_APPLIED = Unapplied()
OBJECTS_NAMED_MAX = 5


def joined(words: Sequence[str]) -> str:
    return "; ".join(words[:OBJECTS_NAMED_MAX])


@dataclass(frozen=True, slots=True)
class ScaleIn:
    """Fewer consumers were asked for than may go yet. `sessions`: what they wait for; empty where that is unknown."""

    desired: int
    sessions: str


@dataclass(frozen=True, slots=True)
class Observation:
    """Observed state of an object in one reconcile. `description` is None when the broker could not be read, and
    `unread` says why.

    `queue_count`: the group's number of queues when it was last seen whole. `refusal`: the manifest is not accepted.
    `is_retained`: the group was provisioned before that, and goes on. `failure`: provisioning ended with this.
    `autoscaler` is the status of the HorizontalPodAutoscaler, None while there is none; `workload` that of the
    Deployment. `unapplied`: what the cluster did not take, and `is_applied`: whether it had all of this generation
    once. `not_begun`: why nothing is done on the broker yet. `lost_secret`: the Secret of the group's user, where it is
    gone and nobody knows or can change the password. `metrics`: what keeps lag from autoscalers in this cluster;
    `floor`: what the schedule comes to, None without one; `demand`: how many consumers it needs, None while that is
    unknown. `pods` are those of the consumers, which have `mounts`; `missing` says that fewer are made than there
    should be. In mode Sessions `scale_in` is what fewer of them wait for. `now_s` counts from the epoch.
    """

    refusal: Refusal | None = None
    is_retained: bool = False
    broker_ready: bool = True
    failure: ProvisioningError | None = None
    queue_count: int | None = None
    description: Description | None = None
    unread: str = ""
    unapplied: Unapplied = ALL_APPLIED
    is_applied: bool = True
    not_begun: str = ""
    lost_secret: str = ""
    metrics: str = ""
    workload: Mapping[str, Any] | None = field(default=None, hash=False)
    autoscaler: Mapping[str, Any] | None = field(default=None, hash=False)
    pods: Sequence[Mapping[str, Any]] = field(default=(), hash=False)
    mounts: Mounts = NO_MOUNTS
    missing: str = ""
    scale_in: ScaleIn | None = None
    floor: Floor | None = None
    demand: Sizing | None = None
    now_s: float = 0.0


def conditions_of(group: GroupManifest | None, observation: Observation) -> list[Condition]:
    """`group` is None for a manifest that could not be parsed."""
    conditions = [accepted(observation), provisioned(group, observation)]
    if group is None:
        conditions.append(Condition(Reason.NOT_APPLIED))
    else:
        conditions += [
            ready(group, observation),
            scaling_active(group, observation),
            degraded(group, observation),
        ]
        if group.has_sessions and group.consumer is not None:
            conditions.append(scaled(observation))
        if group.may_raise_queues and observation.queue_count is not None:
            conditions.append(queues_scaled(group, observation, observation.queue_count))
        description = observation.description
        if group.parks or (description is not None and description.parked is not None):
            conditions.append(keys_parked(group, description, observation.unread))
    return with_stalled(conditions)


def accepted(observation: Observation) -> Condition:
    refusal = observation.refusal
    if refusal is None:
        return taken(observation.unapplied)
    goes_on = f". {Reason.RETAINED.meaning}" if observation.is_retained else ""
    return Condition(refusal.reason, f"{refusal.message}{goes_on}")


def is_ready(manifest: Mapping[str, Any]) -> bool:
    """True if the status says that this very generation is ready."""
    generation = manifest["metadata"].get("generation")
    return any(
        (one["type"], one["status"], one.get("observedGeneration")) == ("Ready", "True", generation)
        for one in manifest.get("status", {}).get("conditions", ())
    )


def is_provisioned_in(manifest: Mapping[str, Any]) -> bool:
    """False if the status says that the broker's group of this name may be another one, or says nothing yet."""
    told = manifest.get("status", {}).get("conditions", ())
    reasons = [one["reason"] for one in told if one["type"] == Type.PROVISIONED]
    return bool(reasons) and reasons[0] not in (Reason.NOT_OWNED.word, Reason.NOT_ACCEPTED.word)


def taken(unapplied: Unapplied) -> Condition:
    """The condition Accepted, by what the API server refuses as wrong by itself."""
    if unapplied.mistakes:
        return Condition(Reason.INVALID, joined(unapplied.mistakes))
    return Condition(Reason.ACCEPTED)


def provisioned(group: GroupManifest | None, observation: Observation) -> Condition:
    if observation.refusal is not None and not observation.is_retained:
        return Condition(Reason.NOT_ACCEPTED)
    if not observation.broker_ready:
        return Condition(Reason.BROKER_NOT_READY)
    if observation.not_begun:
        return Condition(Reason.NOT_BEGUN, observation.not_begun)
    if observation.refusal is not None:
        return Condition(Reason.RETAINED)
    match observation.failure:
        case None:
            return _provisioned(observation.description)
        case Denied() | Refused():
            reason = Reason.BROKER_DENIES
        case NotOwned():
            reason = Reason.NOT_OWNED
        case GroupDiffers() | Taken() | UnderWay():
            reason = Reason.GROUP_DIFFERS
        case Unsupported():
            reason = Reason.UNSUPPORTED
        case MembersRun():
            is_ending = group is not None and group.pods_wanted == 0
            reason = Reason.MEMBERS_ENDING if is_ending else Reason.MEMBERS_RUNNING
        case NotJoined():
            reason = Reason.MEMBERS_NOT_JOINED
        case failure if failure.retryable or isinstance(failure, AdminError):
            reason = Reason.BROKER_UNREACHABLE
        case _:
            reason = Reason.PROVISIONING_FAILED
    return Condition(reason, str(observation.failure))


def _provisioned(description: Description | None) -> Condition:
    if description is None or description.moving_keys is None:
        return Condition(Reason.PROVISIONED)
    waits = (description.moving_keys.problem(description.group), *description.change_held_up)
    return Condition(Reason.REPARTITIONING, "; ".join(lines_of(waits)))


def ready(group: GroupManifest, observation: Observation) -> Condition:
    if observation.refusal is not None and not observation.is_retained:
        return Condition(Reason.NOT_PROVISIONED)
    if not observation.is_applied and observation.unapplied != ALL_APPLIED:
        return Condition(Reason.NOT_APPLIED, observation.unapplied.words)
    description = observation.description
    if description is None:
        is_known = observation.failure is not None and provisioned(group, observation).reason.state == "False"
        return Condition(Reason.NOT_PROVISIONED if is_known else Reason.NOT_OBSERVED, observation.unread)
    if description.members is UNKNOWN:
        return Condition(Reason.NOT_OBSERVED, observation.unread)
    if not observation.is_applied:
        return Condition(Reason.NOT_APPLIED)
    missing = description.unserved
    if not missing:
        return Condition(Reason.SERVED)
    if group.consumer is None and not description.members:
        return Condition(Reason.PUBLISHING_ONLY)
    if group.consumer is not None and group.replicas == 0:
        return Condition(Reason.SCALED_TO_ZERO)
    if not description.members:
        return Condition(Reason.NO_MEMBERS)
    named = ", ".join(map(str, missing[:QUEUES_NAMED_MAX]))
    more = " and others" if len(missing) > QUEUES_NAMED_MAX else ""
    return Condition(
        Reason.UNSERVED,
        f"{len(missing)} of {counted(group.spec.queue_count, 'queue has', 'queues have')} no active member: "
        f"{named}{more}",
    )


def scaling_active(group: GroupManifest, observation: Observation) -> Condition:
    if group.scaling is None or group.consumer is None:
        return Condition(Reason.NOT_ASKED)
    if group.paused:
        return Condition(Reason.SCALING_PAUSED)
    if not group.scaling.has_target:
        return Condition(Reason.SCHEDULED)
    by_type = {one["type"]: one for one in (observation.autoscaler or {}).get("conditions", ())}
    active = by_type.get("ScalingActive")
    if active is None or active["status"] == "Unknown":
        return Condition(Reason.SCALING_NOT_OBSERVED, observation.metrics)
    if active.get("reason") == SCALING_DISABLED:
        return Condition(Reason.AT_ZERO)
    if group.scaling.has_external_target and observation.metrics:
        return Condition(Reason.METRICS_MISSING, observation.metrics)
    if active["status"] == "True":
        return Condition(Reason.SCALING)
    return Condition(Reason.METRICS_MISSING, f"{active.get('reason', '')}: {active.get('message', '')}")


def scaled(observation: Observation) -> Condition:
    """Of mode Sessions, where a consumer goes when its session is over."""
    waits = observation.scale_in
    if waits is None:
        return Condition(Reason.AS_ASKED)
    if not waits.sessions:
        return Condition(Reason.SESSIONS_UNKNOWN, observation.unread)
    return Condition(
        Reason.SESSIONS_ENDING,
        f"scaling in to {waits.desired} waits for the end of these sessions: {waits.sessions}",
    )


def queues_scaled(group: GroupManifest, observation: Observation, count: int) -> Condition:
    """Of a group whose number of queues the operator may raise. `count`: its present number."""
    wanted = group.consumers_wanted
    if wanted > count:
        moving = None if observation.description is None else observation.description.moving_keys
        many = f"{counted(wanted, 'consumer is', 'consumers are')} wanted, and there are {counted(count, 'queue')}"
        waits = "this is possible, see Provisioned"
        if moving is not None:
            text = text_of(moving.problem(group.spec.name))
            if moving.partitions > count:
                return Condition(Reason.QUEUES_RAISING, f"{many}; they become {moving.partitions}: {text}")
            waits = f"the keys of the previous change have moved: {text}"
        return Condition(Reason.QUEUES_RAISING, f"{many}; they become {group.queues_wanted} when {waits}")
    if count > group.queues_min:
        return Condition(
            Reason.QUEUES_RAISED,
            f"{counted(count, 'queue')} instead of {group.queues_min} (queues.count), as more consumers were wanted "
            f"than there were queues; to lower the number, lower queues.max ({group.queues_max})",
        )
    there = f"{counted(count, 'queue')} for {counted(wanted, 'consumer')}"
    return Condition(
        Reason.QUEUES_SUFFICIENT, f"{there}; the number may rise to {group.queues_max} (queues.max)"
    )


def keys_parked(group: GroupManifest, description: Description | None, unread: str) -> Condition:
    """Of a group that has a parking queue, or is to have one. A member that has read the parked keys counts them.
    Without its report the parking queue shows whether there are any; it may have more messages, see
    `Description.parking`."""
    if description is None:
        return Condition(Reason.PARKED_KEYS_UNKNOWN, unread)
    report, messages = description.parking, description.parked
    if messages is None:
        return Condition(Reason.NO_PARKING_QUEUE)
    if report is not None and report.is_read:
        messages = report.messages
    if messages is UNKNOWN:
        return Condition(Reason.PARKED_KEYS_UNKNOWN, unread)
    if messages == 0:
        kept = "" if group.parks else " The group keeps its parking queue, and parks no further key."
        return Condition(Reason.NO_KEYS_PARKED, f"{Reason.NO_KEYS_PARKED.meaning}{kept}")
    name = group.spec.name
    parked = f"{counted(messages, 'message')} in the parking queue, of keys that no member reports"
    if report is not None and report.keys:
        parked = f"{counted(report.keys, 'parked key')} with {counted(messages, 'message')}"
    if report is not None and report.is_full:
        return Condition(
            Reason.PARKING_FULL,
            f"{parked}: a bound of consumer.app.parking is reached, so further keys block: see "
            f"`lbg park list {name}`, release or discard keys, or raise the bound",
        )
    return Condition(
        Reason.AWAITING_RELEASE,
        f"{parked}: see `lbg park list {name}`, repair the application, and give them back with "
        f"`lbg park release {name} --all`",
    )


_REASONS = {
    Kind.MESSAGES_POISONED: Reason.POISONED,
    Kind.MESSAGE_RETRIED: Reason.POISONED,
    Kind.MESSAGE_SUSPECT: Reason.POISONED,
    Kind.HANDOFF_POSTPONED: Reason.HANDOFFS_PUT_OFF,
    Kind.UNROUTED: Reason.UNROUTED,
    Kind.GAP_OPEN: Reason.MESSAGES_MISSING,
    Kind.GAP_UNROUTED: Reason.MESSAGES_MISSING,
    Kind.OUT_OF_ORDER: Reason.MESSAGES_MISSING,
    Kind.PREFETCH_DIFFERS: Reason.PREFETCH_DIFFERS,
    Kind.KEY_OVERLOADED: Reason.OVERLOADED,
    Kind.QUEUE_OVERLOADED: Reason.OVERLOADED,
    Kind.MEMBER_OVERLOADED: Reason.OVERLOADED,
    Kind.QUEUES_TOO_LARGE: Reason.OVERLOADED,
    Kind.QUEUE_STALLED: Reason.STALLED,
    Kind.QUEUE_FULL: Reason.MESSAGES_WAIT,
    Kind.QUEUE_UNSERVED: Reason.MESSAGES_WAIT,
    Kind.PARTITION_UNSERVED: Reason.MESSAGES_WAIT,
    Kind.PARKING_FULL: Reason.MESSAGES_WAIT,
    Kind.GROUP_OVERLOADED: None,
    Kind.MESSAGE_DELAYED: None,
    Kind.QUEUE_BLOCKED: None,
    Kind.NO_MEMBERS: None,
    Kind.KEYS_PARKED: None,
    Kind.SESSIONS_STRANDED: None,
    Kind.QUEUES_CHANGE: None,
    Kind.PARTITIONS_CHANGE: None,
    Kind.CHANGE_LEFT: None,
    Kind.CHANGE_LEFT_TO_OPERATOR: None,
    Kind.DEAD_LETTERS: None,
    Kind.PART_UNKNOWN: None,
}
"""Of problems that need no repair; None: they pass, or another condition has them."""


def degraded(group: GroupManifest, observation: Observation) -> Condition:
    """Problems of a group that may be served nevertheless; the reason is that of the worst."""
    description = observation.description
    if (unapplied := not_taken(observation.unapplied)) is not None:
        return unapplied
    if observation.lost_secret:
        return Condition(
            Reason.SECRET_LOST,
            f"Secret {observation.lost_secret} is gone, and the operator never saw its password: consumers that run "
            "go on and stay as they are, pods that start wait until the broker can be used and the Secret is made "
            "again",
        )
    if pods := _pods_failing(observation):
        is_completed = are_completed(observation.pods, observation.now_s)
        return Condition(Reason.PODS_COMPLETED if is_completed else Reason.PODS_FAILING, pods)
    if description is None or description.members is UNKNOWN:
        return Condition(Reason.NOT_KNOWN, observation.unread)
    found = [
        (problem.kind.rank, reason, text_of(problem))
        for problem in description.problems
        if (reason := _REASONS.get(problem.kind, Reason.REPAIR_NEEDED)) is not None
        and problem.kind.severity is not Severity.NOTE
    ]
    if stranded := stranded_of(description, observation.now_s):
        found.append((Kind.SESSIONS_STRANDED.rank, Reason.SESSIONS_STRANDED, stranded))
    if found:
        found.sort(key=itemgetter(0))
        return Condition(found[0][1], "; ".join(text for _, _, text in found[:QUEUES_NAMED_MAX]))
    schedule = None if group.scaling is None else group.scaling.schedule
    if schedule is not None and schedule.problems:
        return Condition(Reason.SCHEDULE_INVALID, "; ".join(schedule.problems[:QUEUES_NAMED_MAX]))
    return Condition(Reason.AS_EXPECTED)


def not_taken(unapplied: Unapplied) -> Condition | None:
    """The condition Degraded for what is refused or failed; None where neither is so."""
    if unapplied.refusals:
        return Condition(Reason.CLUSTER_REFUSES, joined(unapplied.refusals))
    return Condition(Reason.APPLY_FAILS, joined(unapplied.faults)) if unapplied.faults else None


def _pods_failing(observation: Observation) -> str:
    """Reasons for pods that are not created or do not run, and the Deployment's conclusion from that
    (Kubernetes: "Deployment status")."""
    by_type = {one["type"]: one for one in (observation.workload or {}).get("conditions", ())}
    refused, progress = by_type.get("ReplicaFailure", {}), by_type.get("Progressing", {})
    if refused.get("status") == "True":
        return f"{refused.get('reason', '')}: {refused.get('message', '')}"
    if pods := failing(observation.pods, observation.now_s, observation.mounts) or observation.missing:
        return pods
    if progress.get("status") == "False":
        return f"{progress.get('reason', '')}: {progress.get('message', '')}"
    return ""


def ready_broker(checked: Condition, unapplied: str) -> Condition:
    """Of a generation that the cluster never had all of, and `unapplied` says why. `checked`: what became of the last
    try to reach the broker."""
    return Condition(Reason.NOT_APPLIED, unapplied) if unapplied else checked


def degraded_broker(
    volume_refusal: str | None,
    alarms: Sequence[str] | None,
    *,
    unapplied: Unapplied = ALL_APPLIED,
    pods: str = "",
) -> Condition:
    """`volume_refusal`: why the cluster refuses the volume; empty or None if it does not. `alarms` is None when nobody
    could ask. `pods`: what keeps the broker's pod from running."""
    if alarms:
        return Condition(Reason.BROKER_ALARM, "; ".join(alarms))
    if (refused := not_taken(unapplied)) is not None:
        return refused
    if pods:
        return Condition(Reason.PODS_FAILING, pods)
    if volume_refusal:
        return Condition(Reason.VOLUME_REFUSED, volume_refusal)
    return Condition(Reason.NOT_KNOWN if alarms is None else Reason.AS_EXPECTED)
