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
    QUEUES_SCALED = "QueuesScaled"
    KEYS_PARKED = "KeysParked"
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
    REPARTITIONING = (
        Type.PROVISIONED,
        State.TRUE,
        "Keys move to another number of queues or partitions, in order. Publishers and consumers go on; the message "
        "has what is left.",
    )
    RETAINED = (
        Type.PROVISIONED,
        State.TRUE,
        "The group stays on the broker and its consumers are scaled as before; nothing is created or changed there "
        "while Accepted is False. Deleting this object deletes the group there too (deletionPolicy).",
    )
    NOT_ACCEPTED = (Type.PROVISIONED, State.FALSE, "The manifest is not accepted: see Accepted.")
    BROKER_NOT_READY = (Type.PROVISIONED, State.UNKNOWN, "The Broker is not ready: see its own conditions.")
    BROKER_UNREACHABLE = (
        Type.PROVISIONED,
        State.UNKNOWN,
        "The broker does not answer. Consumers continue without the operator, which tries again by itself.",
    )
    BROKER_DENIES = (
        Type.PROVISIONED,
        State.FALSE,
        "The broker refuses the operator's login or one of its requests: check the Broker's admin Secret.",
    )
    GROUP_DIFFERS = (
        Type.PROVISIONED,
        State.FALSE,
        "The broker has a group of this name with other attributes; nothing was changed there. Set groupName to "
        "another name, or change the manifest.",
    )
    NOT_OWNED = (
        Type.PROVISIONED,
        State.FALSE,
        "The group of this name on the broker has another owner, and nothing was changed there. Recreate the object "
        "with another groupName, or take the group over with adopt, which the Broker allows in allowAdoptionFrom.",
    )
    NOT_BEGUN = (
        Type.PROVISIONED,
        State.UNKNOWN,
        "The API server did not write the group's finalizer or the Secret of its user, which must exist before a "
        "change on the broker; the message has its error.",
    )
    UNSUPPORTED = (Type.PROVISIONED, State.FALSE, "The engine does not support this manifest.")
    MEMBERS_RUNNING = (
        Type.PROVISIONED,
        State.FALSE,
        "A group gets its parking queue (whenExhausted Park) while none of its members runs, and members run: set "
        "replicas to 0, wait until Provisioned is True, and set replicas again. Until then keys block.",
    )
    MEMBERS_ENDING = (
        Type.PROVISIONED,
        State.FALSE,
        "Replicas are 0, and the group gets its parking queue when its last member has ended.",
    )
    MEMBERS_NOT_JOINED = (
        Type.PROVISIONED,
        State.FALSE,
        "Members do not take part in the change of the number of queues, and nothing is "
        "changed: restart the members that the message names.",
    )
    PROVISIONING_FAILED = (
        Type.PROVISIONED,
        State.FALSE,
        "The broker refused a change; the message has the change.",
    )

    SERVED = (Type.READY, State.TRUE, "Every queue is served by a member.")
    PUBLISHING_ONLY = (
        Type.READY,
        State.TRUE,
        "The group accepts messages, and the operator runs no consumers for it.",
    )
    NOT_PROVISIONED = (Type.READY, State.FALSE, "The broker has no group of this object: see Provisioned.")
    NO_MEMBERS = (
        Type.READY,
        State.FALSE,
        "No member has joined: check the pods. A sidecar joins when its application is ready.",
    )
    UNSERVED = (Type.READY, State.FALSE, "Some queues have no active member.")
    SCALED_TO_ZERO = (Type.READY, State.FALSE, "The manifest asks for no consumers (replicas 0).")
    NOT_OBSERVED = (Type.READY, State.UNKNOWN, "The broker could not be read.")
    NOT_APPLIED = (
        Type.READY,
        State.UNKNOWN,
        "This generation of the manifest is not completely applied: the message has the API server's error, or see "
        "Accepted and Provisioned. The previous state continues.",
    )

    SCALING = (Type.SCALING_ACTIVE, State.TRUE, "The autoscaler gets its metrics and may change replicas.")
    SCHEDULED = (
        Type.SCALING_ACTIVE,
        State.TRUE,
        "The consumers follow the schedule alone, because the manifest has no target.",
    )
    NOT_ASKED = (Type.SCALING_ACTIVE, State.FALSE, "The manifest has no scaling.")
    METRICS_MISSING = (
        Type.SCALING_ACTIVE,
        State.FALSE,
        "The autoscaler gets no metrics; the message has what the cluster lacks.",
    )
    SCALING_PAUSED = (
        Type.SCALING_ACTIVE,
        State.FALSE,
        "The group is paused (paused): replicas are not increased until it is not.",
    )
    AT_ZERO = (
        Type.SCALING_ACTIVE,
        State.FALSE,
        "Replicas are 0, which an autoscaler does not change: set replicas to start again.",
    )
    SCALING_NOT_OBSERVED = (
        Type.SCALING_ACTIVE,
        State.UNKNOWN,
        "The autoscaler has not reported a status yet.",
    )

    AS_ASKED = (Type.SCALED, State.TRUE, "The number of consumers is the requested one.")
    SESSIONS_ENDING = (
        Type.SCALED,
        State.FALSE,
        "Scale-in waits until the sessions of the pods to be removed have ended; the message names them.",
    )
    SESSIONS_UNKNOWN = (
        Type.SCALED,
        State.UNKNOWN,
        "Scale-in waits: the broker could not be read, so the messages of the sessions are unknown.",
    )

    QUEUES_SUFFICIENT = (
        Type.QUEUES_SCALED,
        State.TRUE,
        "There are queues for all wanted consumers; the message has what queues.max permits.",
    )
    QUEUES_RAISED = (
        Type.QUEUES_SCALED,
        State.TRUE,
        "More consumers were wanted than there were queues, and the number of queues was raised within queues.max. The "
        "operator does not lower it by itself.",
    )
    QUEUES_RAISING = (
        Type.QUEUES_SCALED,
        State.UNKNOWN,
        "More consumers are wanted than there are queues, and the number of queues is being raised, or will be; the "
        "message has what that waits for.",
    )

    REACHABLE = (Type.READY, State.TRUE, "Groups can be created on this broker.")
    STARTING = (Type.READY, State.FALSE, "The broker's pod is not ready yet: check it if this lasts.")
    SECRET_MISSING = (
        Type.READY,
        State.FALSE,
        "A Secret of the manifest is missing or lacks a key; the message names it.",
    )
    LOGIN_REFUSED = (
        Type.READY,
        State.FALSE,
        "The broker refuses the administrator's login: correct the Secret; the operator tries again by itself.",
    )
    NOT_SUPPORTED = (
        Type.READY,
        State.FALSE,
        "The server at this address does not support groups; the message has the reason.",
    )
    NOT_REACHED = (
        Type.READY,
        State.UNKNOWN,
        "The broker does not answer. Members and publishers do not need the operator; it tries again by itself.",
    )
    NOT_CHECKED = (Type.READY, State.UNKNOWN, "The manifest is not applied: see Accepted.")

    AS_EXPECTED = (Type.DEGRADED, State.FALSE, "No problem is known.")
    POISONED = (
        Type.DEGRADED,
        State.TRUE,
        "A message fails repeatedly, or the application delays it, and its key waits: repair the application, skip the "
        "message with lbg group skip, or set whenExhausted to Park or DeadLetter.",
    )
    STALLED = (Type.DEGRADED, State.TRUE, "A queue has messages and delivers none to its member.")
    MESSAGES_WAIT = (
        Type.DEGRADED,
        State.TRUE,
        "A queue is full, or has messages and no consumer: they wait until somebody acts; the message has a remedy.",
    )
    HANDOFFS_PUT_OFF = (
        Type.DEGRADED,
        State.TRUE,
        "The handoff of a queue is postponed, because calls of the application do not end in time; each further "
        "attempt waits longer.",
    )
    REPAIR_NEEDED = (Type.DEGRADED, State.TRUE, "An object of the group is missing or changed on the broker.")
    MESSAGES_MISSING = (
        Type.DEGRADED,
        State.TRUE,
        "Messages are missing, or were processed after later ones of their key: lbg group show has their number.",
    )
    UNROUTED = (
        Type.DEGRADED,
        State.TRUE,
        "Messages that no queue took wait beside the group: lbg unrouted replay publishes them again.",
    )
    PREFETCH_DIFFERS = (
        Type.DEGRADED,
        State.TRUE,
        "Members have different prefetch windows, also during a rollout that changes it: a handoff can place what a "
        "narrower window returns behind later messages of its key.",
    )
    OVERLOADED = (
        Type.DEGRADED,
        State.TRUE,
        "A key, a queue or a member falls behind while others have time; the message has figures and a remedy.",
    )
    PODS_FAILING = (
        Type.DEGRADED,
        State.TRUE,
        "Pods of the consumers or of the broker are not created, do not start, or end repeatedly; the message has the "
        "reason of each.",
    )
    PODS_COMPLETED = (
        Type.DEGRADED,
        State.TRUE,
        "The application ends with exit code 0, again and again, and consumes nothing: it has to run until it gets "
        "SIGTERM. The message has its pods.",
    )
    SECRET_LOST = (
        Type.DEGRADED,
        State.TRUE,
        "The Secret of the group's user was deleted before the operator started, and the broker is not available to "
        "set another password. Running consumers continue unchanged; a new pod waits. When the broker is available, "
        "the operator recreates the Secret with another password.",
    )
    CLUSTER_REFUSES = (
        Type.DEGRADED,
        State.TRUE,
        "The cluster forbids one of the objects: a quota, a policy, or the operator's own rules.",
    )
    APPLY_FAILS = (
        Type.DEGRADED,
        State.TRUE,
        "The API server failed on a request for one of the objects, for a cause that may pass; the message has its "
        "error. The operator tries again.",
    )
    SESSIONS_STRANDED = (
        Type.DEGRADED,
        State.TRUE,
        "Sessions have messages and no consumer; no other session gets these. Check the pods of the same names.",
    )
    BROKER_ALARM = (
        Type.DEGRADED,
        State.TRUE,
        "A node of the broker is down, or is short of memory or disk, so that publishers wait; the message names the "
        "node.",
    )
    VOLUME_REFUSED = (
        Type.DEGRADED,
        State.TRUE,
        "The cluster refuses the volume of the manifest; the message has the reason. The broker continues with its "
        "present volume.",
    )
    SCHEDULE_INVALID = (
        Type.DEGRADED,
        State.TRUE,
        "An entry of scaling.schedule is invalid and ignored; the message has the reason. The other entries apply.",
    )
    REFUSED = (
        Type.DEGRADED,
        State.TRUE,
        "The manifest or its permission is refused, and waiting does not help: the message is that of Stalled.",
    )
    NOT_KNOWN = (Type.DEGRADED, State.UNKNOWN, "The broker could not be read.")

    NO_KEYS_PARKED = (Type.KEYS_PARKED, State.FALSE, "No key is parked.")
    NO_PARKING_QUEUE = (
        Type.KEYS_PARKED,
        State.FALSE,
        "The group has no parking queue yet, so its members block keys: see Provisioned.",
    )
    AWAITING_RELEASE = (
        Type.KEYS_PARKED,
        State.TRUE,
        "A message of each of these keys has failed too often, and nothing of the key is delivered: repair the "
        "application, and give the keys back with lbg park release.",
    )
    PARKING_FULL = (
        Type.KEYS_PARKED,
        State.TRUE,
        "A bound of consumer.app.parking is reached, so further keys block: release or discard parked keys, or raise "
        "the bound.",
    )
    PARKED_KEYS_UNKNOWN = (Type.KEYS_PARKED, State.UNKNOWN, "The broker could not be read for parked keys.")

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
        Reason.NOT_OWNED,
        Reason.UNSUPPORTED,
        Reason.MEMBERS_RUNNING,
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
    """With Stalled, by which tools wait for an object (kstatus: "Conditions"), where waiting does not help. Degraded is
    True then, with the same message unless it has a problem of its own."""
    final = next((one for one in conditions if one.reason in FINAL), None)
    if final is None:
        return [*conditions]
    message = f"{final.reason.word}: {final.message or final.reason.meaning}"
    is_degraded = (Type.DEGRADED, State.TRUE) in ((one.reason.type, one.reason.state) for one in conditions)
    refused = Condition(Reason.REFUSED, message)
    others = [one for one in conditions if is_degraded or one.reason.type is not Type.DEGRADED]
    return [*others, *([] if is_degraded else [refused]), Condition(Reason.NEEDS_A_CHANGE, message)]


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
