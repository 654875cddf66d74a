"""Conditions (Kubernetes API conventions, «Typical status properties») and their reasons."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class Type(enum.StrEnum):
    ACCEPTED = "Accepted"
    PROVISIONED = "Provisioned"
    READY = "Ready"
    SCALING_ACTIVE = "ScalingActive"
    DEGRADED = "Degraded"
    SCALED = "Scaled"
    STALLED = "Stalled"


class State(enum.StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Reason(enum.Enum):
    """Every reason there is: the condition and status it goes with, and what it means and asks for.

    The words are an interface: alerts and scripts match them.
    """

    def __init__(self, type_: Type, state: State, meaning: str) -> None:
        self.type = type_
        self.state = state
        self.meaning = meaning

    ACCEPTED = (Type.ACCEPTED, State.TRUE, "The manifest can be followed.")
    INVALID = (
        Type.ACCEPTED,
        State.FALSE,
        "The manifest contradicts itself, or the API server refuses an object that it asks for: the message says which "
        "field to change.",
    )
    BROKER_NOT_FOUND = (Type.ACCEPTED, State.FALSE, "There is no such Broker: make it, or correct brokerRef.")
    BROKER_NOT_ALLOWED = (
        Type.ACCEPTED,
        State.FALSE,
        "The Broker is in another namespace and does not list this one in allowedNamespaces.",
    )
    NAME_TAKEN = (
        Type.ACCEPTED,
        State.FALSE,
        "Another LoadBalancedGroup has this name on the same broker: set groupName to another one.",
    )

    PROVISIONED = (Type.PROVISIONED, State.TRUE, "Queues, user and permissions are on the broker.")
    NOT_ACCEPTED = (Type.PROVISIONED, State.FALSE, "The manifest is not accepted: see Accepted.")
    BROKER_NOT_READY = (Type.PROVISIONED, State.UNKNOWN, "The Broker is not ready: see its own conditions.")
    BROKER_UNREACHABLE = (
        Type.PROVISIONED,
        State.UNKNOWN,
        "The broker does not answer. Consumers go on without the operator; it tries again by itself.",
    )
    BROKER_DENIES = (
        Type.PROVISIONED,
        State.FALSE,
        "The broker refuses the operator's login or one of its requests: check the Broker's admin Secret.",
    )
    GROUP_DIFFERS = (
        Type.PROVISIONED,
        State.FALSE,
        "A group of this name with other attributes is on the broker: nothing was changed there. Set groupName to "
        "another name, or make the manifest say what is there. For another number of queues, run `lbg group "
        "repartition`.",
    )
    NOT_BEGUN = (
        Type.PROVISIONED,
        State.UNKNOWN,
        "Nothing is done on the broker before the group's finalizer and the Secret of its user are written, which the "
        "API server did not do; the message has its words.",
    )
    UNSUPPORTED = (Type.PROVISIONED, State.FALSE, "This engine cannot do what the manifest asks for.")
    PROVISIONING_FAILED = (
        Type.PROVISIONED,
        State.FALSE,
        "The broker refused a change; the message says which.",
    )

    SERVED = (Type.READY, State.TRUE, "Every queue is served by a member.")
    PUBLISHING_ONLY = (
        Type.READY,
        State.TRUE,
        "The group has no consumers of the operator's, and can be published to.",
    )
    NOT_PROVISIONED = (Type.READY, State.FALSE, "The group is not on the broker yet: see Provisioned.")
    NO_MEMBERS = (
        Type.READY,
        State.FALSE,
        "No member has joined: look at the pods. A sidecar joins once its application is ready.",
    )
    UNSERVED = (Type.READY, State.FALSE, "Some queues have no active member.")
    SCALED_TO_ZERO = (Type.READY, State.FALSE, "There are to be no consumers (replicas 0).")
    NOT_OBSERVED = (Type.READY, State.UNKNOWN, "The broker could not be read, so nobody knows.")
    NOT_APPLIED = (
        Type.READY,
        State.UNKNOWN,
        "What this generation of the manifest asks for is not all there: the message has the API server's words, or "
        "see Provisioned. What was there before goes on.",
    )

    SCALING = (Type.SCALING_ACTIVE, State.TRUE, "The autoscaler gets its metrics and may change replicas.")
    SCHEDULED = (
        Type.SCALING_ACTIVE,
        State.TRUE,
        "The consumers follow the schedule alone, as the manifest has no target.",
    )
    NOT_ASKED = (Type.SCALING_ACTIVE, State.FALSE, "The manifest has no scaling.")
    METRICS_MISSING = (
        Type.SCALING_ACTIVE,
        State.FALSE,
        "The autoscaler gets no metrics; the message says what is missing in the cluster.",
    )
    AT_ZERO = (
        Type.SCALING_ACTIVE,
        State.FALSE,
        "Replicas are 0, which an autoscaler leaves as it is: set replicas to begin again.",
    )
    SCALING_NOT_OBSERVED = (Type.SCALING_ACTIVE, State.UNKNOWN, "The autoscaler has not said anything yet.")

    AS_ASKED = (Type.SCALED, State.TRUE, "There are as many consumers as were asked for.")
    SESSIONS_ENDING = (
        Type.SCALED,
        State.FALSE,
        "Fewer consumers wait until the sessions of those that are to go are worked off; the message names them.",
    )
    SESSIONS_UNKNOWN = (
        Type.SCALED,
        State.UNKNOWN,
        "Fewer consumers wait: the broker could not be read, so nobody knows what their sessions still have.",
    )

    REACHABLE = (Type.READY, State.TRUE, "Groups can be made on this broker.")
    STARTING = (Type.READY, State.FALSE, "The broker's pod is not ready yet: look at it if that lasts.")
    SECRET_MISSING = (
        Type.READY,
        State.FALSE,
        "A Secret that the manifest names is missing or lacks a key: the message says which.",
    )
    LOGIN_REFUSED = (
        Type.READY,
        State.FALSE,
        "The broker refuses the administrator's login: correct the Secret; the operator tries again by itself.",
    )
    NOT_SUPPORTED = (Type.READY, State.FALSE, "What answers cannot carry groups; the message says why.")
    NOT_REACHED = (
        Type.READY,
        State.UNKNOWN,
        "The broker does not answer. Members and publishers do not need the operator; it tries again by itself.",
    )
    NOT_CHECKED = (Type.READY, State.UNKNOWN, "The manifest is not followed: see Accepted.")

    AS_EXPECTED = (Type.DEGRADED, State.FALSE, "Nothing is wrong that is known of.")
    POISONED = (
        Type.DEGRADED,
        State.TRUE,
        "A message fails again and again and its key waits: mend the application, or set whenExhausted to DeadLetter.",
    )
    STALLED = (Type.DEGRADED, State.TRUE, "A queue has messages and gives none to its member.")
    HANDOFFS_PUT_OFF = (
        Type.DEGRADED,
        State.TRUE,
        "A queue should move and stays, because calls of the application do not end in time; it is tried again, each "
        "time with more of it.",
    )
    REPAIR_NEEDED = (Type.DEGRADED, State.TRUE, "Something of the group is missing or changed on the broker.")
    PODS_FAILING = (
        Type.DEGRADED,
        State.TRUE,
        "Pods of the consumers, or that of the broker, are not made, do not start, or end again and again; the message "
        "has the reason of each.",
    )
    SECRET_LOST = (
        Type.DEGRADED,
        State.TRUE,
        "The Secret of the group's user was deleted, the operator that began since never saw the password, and the "
        "broker cannot be used to give the user another one. Consumers that run go on and stay as they are; a pod that "
        "starts waits. Once the broker can be used the Secret is made again, with another password.",
    )
    CLUSTER_REFUSES = (
        Type.DEGRADED,
        State.TRUE,
        "The cluster forbids one of the objects: a quota, a policy, or the operator's own rules.",
    )
    APPLY_FAILS = (
        Type.DEGRADED,
        State.TRUE,
        "The API server did not do what it was asked for one of the objects, for a cause that may pass; the message "
        "has its words. It is tried again.",
    )
    SESSIONS_STRANDED = (
        Type.DEGRADED,
        State.TRUE,
        "Sessions have messages and no consumer, and nobody else gets these: look at the pods of the same names.",
    )
    BROKER_ALARM = (
        Type.DEGRADED,
        State.TRUE,
        "A node of the broker is down, or short of memory or disk, and then publishers wait until there is room; the "
        "message says which.",
    )
    VOLUME_REFUSED = (
        Type.DEGRADED,
        State.TRUE,
        "The cluster refuses the volume as the manifest has it, and the message says why. The broker goes on with the "
        "volume that it has.",
    )
    SCHEDULE_INVALID = (
        Type.DEGRADED,
        State.TRUE,
        "An entry of scaling.schedule cannot be followed and does not count; the message says why. All else goes on.",
    )
    NOT_KNOWN = (Type.DEGRADED, State.UNKNOWN, "The broker could not be read, so nobody knows.")

    NEEDS_A_CHANGE = (
        Type.STALLED,
        State.TRUE,
        "Waiting does not help, as the manifest has to change: see Accepted and Provisioned. The condition is there "
        "only while that is so (kstatus).",
    )

    @property
    def word(self) -> str:
        return "".join(part.capitalize() for part in self.name.split("_"))


UNASKED = frozenset({Reason.NOT_ASKED.word, Reason.AT_ZERO.word})
"""Reasons by which a condition is False because nobody wants it to be True."""


FINAL = frozenset(
    {
        Reason.INVALID,
        Reason.BROKER_NOT_ALLOWED,
        Reason.NAME_TAKEN,
        Reason.GROUP_DIFFERS,
        Reason.UNSUPPORTED,
    }
)
"""Reasons that hold until somebody changes a manifest. A Broker that is not found may be on its way."""


@dataclass(frozen=True, slots=True)
class Condition:
    """`message` says what is so and what to do, for people; by default what the reason means."""

    reason: Reason
    message: str = ""

    def as_json(self, *, generation: int, since: str) -> dict[str, Any]:
        return {
            "type": str(self.reason.type),
            "status": str(self.reason.state),
            "observedGeneration": generation,
            "lastTransitionTime": since,
            "reason": self.reason.word,
            "message": self.message or self.reason.meaning,
        }


def with_stalled(conditions: Sequence[Condition]) -> list[Condition]:
    """With what those who wait for an object go by (kstatus: "Conditions"), where waiting does not help."""
    final = next((one for one in conditions if one.reason in FINAL), None)
    message = "" if final is None else f"{final.reason.word}: {final.message or final.reason.meaning}"
    return [*conditions, *([] if final is None else [Condition(Reason.NEEDS_A_CHANGE, message)])]


def merged(
    former: Iterable[Mapping[str, Any]], conditions: Iterable[Condition], *, generation: int, now: str
) -> list[dict[str, Any]]:
    """The list to write: a condition's time moves when its status does, and for nothing else. `now` is RFC 3339.

    A former condition of a type that is not ours is somebody else's, and stays.
    """
    before = {one["type"]: one for one in former}
    ours = []
    for condition in conditions:
        last = before.pop(str(condition.reason.type), None)
        is_same = last is not None and last["status"] == str(condition.reason.state)
        since = last["lastTransitionTime"] if last is not None and is_same else now
        ours.append(condition.as_json(generation=generation, since=since))
    known = {str(one) for one in Type}
    return ours + [dict(one) for name, one in before.items() if name not in known]
