"""Documents that commands print with --output json. Keys are added, and none is removed or changed.

`DOCUMENTS` has them by command; docs/output.schema.json and docs/output.md are made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from lbg_core.admin.problems import Remedy, Subject
from lbg_core.admin.snapshot import Handoffs, SessionStatus
from lbg_core.group import GroupSpec
from lbg_core.group.members_protocol import QueueState
from lbg_core.group.order_checker import Lost
from lbg_core.publisher import PublishingReport
from lbgroup.letter_documents import (
    DeadLetters,
    Discarded,
    ParkDiscarded,
    ParkedKeys,
    ParkedMessages,
    ParkingEnabled,
    ParkReleased,
    ParkReplayed,
    Replayed,
)
from lbgroup.validate.validator import (
    EVENTS,
    KeyOverlap,
    MovePauses,
    QueueMoved,
    SequenceError,
    SessionError,
)

Unknown = Literal["unknown"]
Count = int | Unknown | None
"""None: there is nothing to count."""

Changes = Annotated[list[str], "what was done, a line each"]


@dataclass(frozen=True, slots=True)
class Declared:
    """The declared fields of a dataclass as an object of this name."""

    name: str
    base: type
    about: str


Attributes = Annotated[dict[str, object], Declared("Attributes", GroupSpec, "Attributes of a group.")]


class Queue(TypedDict):
    """A queue on the broker."""

    name: str
    exists: bool | Unknown
    ready: Count
    unacked: Count
    consumers: Count
    active_consumer: Annotated[str | None, "its consumer tag, or unknown"]
    active_member: str | None
    leader: Annotated[str | None, "the node of RabbitMQ that leads it"]


class Member(TypedDict):
    """A member, as its last status report describes it."""

    index: int
    name: str
    incarnation: str
    rebalance: Annotated[str, "Ready, HoldDown or Rebalancing"]
    queues: Annotated[list[QueueState], "those that it consumes or should serve"]
    counts: Annotated[dict[str, int], "messages since the member started, by what became of them"]
    concurrency: Annotated[int, "calls that it runs at a time at most"]
    paused: bool
    oldest_published_at_us: Annotated[int | None, "of the oldest message that it has not settled"]


class Partition(TypedDict):
    """A partition, in mode Partitioned."""

    partition: int
    status: Annotated[str, "Ready, Paused, Unassigned, Unbound or Unknown"]
    member: str | None
    consumer_tag: str | None
    ready: Count
    unacked: Count


class MovingKeys(TypedDict):
    """A change of the number of partitions, or of separate queues, that is not over."""

    partitions: Annotated[int, "number of partitions there is to be"]
    hashes: Annotated[int, "hashes on their way to another partition"]
    messages_held: Annotated[int, "messages that wait for earlier ones in their key's former partition"]
    messages_surplus: Annotated[int, "messages in partitions that are to go"]
    hashes_moved: NotRequired[Annotated[int, "separate queues: hashes that lead to their new queue"]]
    hashes_staged: NotRequired[Annotated[int, "separate queues: hashes that lead to a staging queue"]]
    queues_moved: NotRequired[Annotated[int, "separate queues: old queues all of whose hashes have arrived"]]
    queues: NotRequired[Annotated[int, "separate queues: old queues that hashes leave"]]


class Problem(TypedDict):
    """A problem of a group. It is the same one while its kind and subject are."""

    kind: Annotated[str, "word of its kind"]
    subject: Subject
    figures: dict[str, Any]
    severity: Annotated[str, "AtRisk, Stands, Late, Differs or Note: the list has the worst first"]
    text: Annotated[str, "the problem, for people"]
    remedy: Remedy | None


class Demand(TypedDict):
    """Number of members that a group needs, by `lbg group show --target-delay`. null: unknown."""

    members_wanted: int | None
    arrivals_per_s: float | None
    member_processes_per_s: Annotated[float | None, "messages that one member can process"]
    service_s: Annotated[float | None, "time of a call"]
    waiting: int
    clears_in_s: Annotated[float | None, "null: unknown, or the backlog does not shrink"]
    why: Annotated[str, "Unknown, Arrivals, Backlog, QueueLimits or NoMoreThroughput"]
    queue: Annotated[int | None, "QueueLimits: the queue that more members do not help"]


class Repeats(TypedDict):
    """Messages called again after a member was lost that may have processed them."""

    member: Annotated[str, "name of the lost member; empty: unknown"]
    since_us: Annotated[int, "time of the first, in microseconds since 1970"]
    messages: int


class Sequences(TypedDict):
    """Sequence numbers of a group, as all its members report them. A stream is what one publisher sent of one hash.
    Nothing is known of messages after the last one of a stream that was delivered."""

    streams: int
    missed: Annotated[int, "messages that were ever skipped, since the members started"]
    late: Annotated[int, "of these, messages that came later"]
    missing: Annotated[int, "messages that are skipped now"]
    gap_streams: Annotated[int, "streams with missing messages"]
    gap_since_us: Annotated[int, "time of the first gap, in microseconds since 1970; 0 without one"]
    first_missing: Annotated[str, "id of the first missing message"]
    unknown_streams: Annotated[int, "streams in which earlier messages may be missing, as after a crash"]
    unknown_before_us: Annotated[int, "what came before this time may be missing there"]
    out_of_order: Annotated[int, "messages first processed after a later one of their key"]
    out_of_order_id: Annotated[str, "id of the last of them"]
    order_unknown: Annotated[int, "messages of which that is not known"]
    repeated: Annotated[int, "messages called again after the loss of a member"]
    repeats: Annotated[list[Repeats], "those of the last losses"]
    during_standstill: Annotated[int, "calls that ran while a member's process stood still"]
    unreported_queues: Annotated[list[int], "queues served by a consumer that sends no report"]
    text: Annotated[str, "all of it, for people"]


class Group(TypedDict):
    """A group as it is now."""

    group: str
    owner: Annotated[str | None, "null: not read"]
    publisher_username: Annotated[str | None, "user of the publishers alone"]
    attributes: Annotated[Attributes | None, "null: no readable record"]
    queues: list[Queue]
    members: list[Member] | Unknown
    ready: Count
    unacked: Count
    dead_letters: Count
    unrouted: Count
    parked: NotRequired[Annotated[Count, "messages in the parking queue, if there is one"]]
    oldest_published_at_us: Annotated[int | None, "of the oldest message that a member has not settled"]
    sequences: Annotated[
        Sequences | None, "null: no member reports them, as in modes in which the broker shares one queue out"
    ]
    repartition: Annotated[int | None, "number of queues that the group is being changed to"]
    paused: bool | Unknown
    ingress_paused: bool | Unknown
    problems: list[Problem]
    demand: NotRequired[Annotated[Demand | None, "with --target-delay"]]
    rebalance_status: NotRequired[Annotated[str, "mode Partitioned"]]
    partitions: NotRequired[list[Partition] | Unknown]
    ingress: NotRequired[Annotated[bool, "mode Partitioned of the embedded broker: publishers are let in"]]
    handoffs: NotRequired[Handoffs]
    moving_keys: NotRequired[
        Annotated[
            MovingKeys | None,
            "mode Partitioned of the embedded broker: null while no key moves; of separate queues only while keys move",
        ]
    ]
    message_groups: NotRequired[Annotated[dict[str, int], "known: with messages or a consumer; busy: at one"]]
    closed: NotRequired[Annotated[bool, "mode Sessions: publishers are refused"]]
    pool: NotRequired[Annotated[int, "mode Sessions: messages without a session yet"]]
    sessions: NotRequired[list[SessionStatus]]


class WatchedGroup(Group):
    """A group in `lbg top`."""

    rate: Annotated[float, "messages per second that members finished"]
    oldest_s: Annotated[float | None, "age of the oldest message that is known"]
    clears_s: Annotated[
        float | Literal["never"] | None,
        "time after which the backlog is gone at the present rate; never: it does not shrink; null: there is none",
    ]


class HotKey(TypedDict):
    """A key with many messages."""

    key: str
    rate: Annotated[float, "messages per second"]


class Look(TypedDict):
    """A look at all groups, or at one: a line of `lbg top`."""

    at: Annotated[str, "RFC 3339"]
    groups: list[WatchedGroup]
    changes: Annotated[list[str], "queues and partitions that moved"]
    hot_keys: NotRequired[Annotated[list[HotKey], "of the group that is watched alone"]]


class PeekedMessage(TypedDict):
    """A message where it is."""

    id: str
    key: str | None
    queue: int
    member: Annotated[str | None, "that holds it, or held it last; null: it waits at the broker"]
    member_index: int | None
    state: Annotated[
        str,
        "ready, parked, dead, unrouted; at a member waiting, running, retrying, poisoned, refused, parking, moving or "
        "processed",
    ]
    attempts: int
    reason: str
    redelivered: bool
    routing_key: str
    content_type: str | None
    body: NotRequired[Annotated[str, "at most --body-bytes of it"]]
    body_base64: NotRequired[Annotated[str, "in place of body, for one that is not UTF-8"]]
    body_bytes: Annotated[int, "size of the whole body"]
    age_s: float | None


class Peeked(TypedDict):
    """Messages of a group."""

    group: str
    messages: list[PeekedMessage]
    held: Annotated[int, "messages of the selection that members hold, shown or not"]
    unread: Annotated[
        dict[str, int | Unknown], "by queue: messages at the broker that could not be looked at"
    ]
    silent: Annotated[list[str], "members that did not answer"]


class KeyPlace(TypedDict):
    """A place where messages of a key may be."""

    kind: Literal["unrouted", "queue", "member", "parked", "dead letters"]
    name: Annotated[str, "of the queue or the member"]
    count: Annotated[int, "messages of the key that were found there"]
    messages: Annotated[list[PeekedMessage], "the first of them"]
    unknown: Annotated[str | None, "cause for which it was not read to its end; null: it was"]


class KeyStep(TypedDict):
    """A step in the lane of a key. Times are microseconds since the epoch, 0 where there is none."""

    step: Annotated[
        Literal["visit", "moved", "gap"],
        "visit: a message at a member, or where it is without one; moved: from here on another member has the key; "
        "gap: numbers that no member that answered has or had",
    ]
    at_us: NotRequired[Annotated[int, "not of a visit"]]
    publisher: NotRequired[str | None]
    seq: NotRequired[Annotated[int | None, "of the publisher and the key's hash; null: without a stamp"]]
    queue: NotRequired[int]
    member: NotRequired[Annotated[str | None, "null: at none"]]
    published_at_us: NotRequired[int]
    received_us: NotRequired[Annotated[int, "by the member"]]
    first_call_us: NotRequired[Annotated[int, "at the member"]]
    last_call_us: NotRequired[int]
    last_end_us: NotRequired[Annotated[int, "of the last call"]]
    attempts: NotRequired[int]
    word: NotRequired[
        Annotated[
            str,
            "finished, finished-unacknowledged, dead, repeat-dropped, parked, forwarded or given-back; or the state "
            "that it has now",
        ]
    ]
    redelivered: NotRequired[bool]
    reason: NotRequired[str]
    is_called_again: NotRequired[Annotated[bool, "it was finished before"]]
    former: NotRequired[Annotated[str, "the member before"]]
    first: NotRequired[Annotated[int, "number of a gap"]]
    last: NotRequired[Annotated[int, "number of a gap"]]


class KeyMemory(TypedDict):
    """Finished messages that a member remembers, of all keys."""

    member: str
    kept: Annotated[int, "messages"]
    since_us: Annotated[int, "all since then"]
    left: Annotated[int, "older messages of the key that it did not send"]


class KeyFate(TypedDict):
    """Places and history of the messages of a key."""

    group: str
    key: str
    hash: int
    queue: int
    count: Annotated[int, "messages of the key in all places"]
    is_complete: Annotated[bool, "every place was read to its end"]
    places: list[KeyPlace]
    steps: Annotated[list[KeyStep], "the lane of the key, in time order"]
    remembered: Annotated[list[KeyMemory], "by members that answered"]


class Password(TypedDict):
    """A password that was generated: of a user, printed or in a file."""

    username: NotRequired[Annotated[str, "user whose password was generated"]]
    password: NotRequired[Annotated[str, "unless --write-password"]]
    password_file: NotRequired[Annotated[str, "with --write-password"]]


class PublisherPassword(TypedDict):
    """A password that was generated for the publishers' user, printed or in a file."""

    publisher_username: NotRequired[Annotated[str, "user of the publishers, if its password was generated"]]
    publisher_password: NotRequired[Annotated[str, "unless --write-publisher-password"]]
    publisher_password_file: NotRequired[Annotated[str, "with --write-publisher-password"]]


class Created(Password, PublisherPassword):
    """A group that is there now."""

    group: str
    action: Annotated[
        Literal["created", "completed", "repaired", "unchanged"],
        "completed: from where an interrupted create stopped",
    ]
    attributes: Attributes
    changes: Changes
    undone: Annotated[list[str], "what an interrupted create with other attributes had made, and is deleted"]
    unchecked: Annotated[list[str], "objects that could not be read"]


class Rotated(Password):
    """Users of a group."""

    group: str
    action: Annotated[
        Literal["rotated", "separated", "finished", "unchanged"],
        "separated: publishers have a user of their own; finished: former users are deleted",
    ]
    changes: Changes


class Repartitioned(TypedDict):
    """Number of queues of a group."""

    group: str
    action: Literal["repartitioned", "unchanged"]
    former_queue_count: int
    queue_count: int


class Adopted(TypedDict):
    """Owner of a group: managed by hand from now on."""

    group: str
    action: Literal["adopted", "unchanged"]
    former_owner: Annotated[str | None, "null: not read"]


class Closed(TypedDict):
    """A group in mode Sessions without new messages, or a session of it."""

    group: str
    action: Literal["closed", "session_closed"]
    session: Annotated[str | None, "null: all"]
    pool: Annotated[int | Unknown, "messages without a session yet"]
    sessions: Annotated[list[SessionStatus] | Unknown, "sessions with messages to deliver"]


class Deleted(TypedDict):
    """A group that is gone."""

    group: str
    action: Literal["deleted"]
    changes: Changes


class Skipped(TypedDict):
    """A poisoned message that is a dead letter now."""

    group: str
    action: Literal["skipped"]
    id: str
    key: str | None
    attempts: int
    member: str | None


class Assigned(TypedDict):
    """The rule by which a group's queues are assigned to its members."""

    group: str
    action: Literal["assigned", "unchanged"]
    assignment: str


class Paused(TypedDict):
    """Parts of a group that were paused or resumed."""

    group: str
    action: Literal["paused", "resumed"]
    consumption: Annotated[bool, "true: consumption was paused or resumed"]
    ingress: Annotated[bool, "true: ingress was"]
    members_behind: Annotated[list[str], "members that do not follow; then the exit status is 1"]
    publishers_connected: Annotated[bool, "true: publishers may still publish; then the exit status is 1"]


class Serving(TypedDict):
    """Addresses of a broker that is ready, on one line."""

    amqp: Annotated[str, "URL"]
    management: Annotated[str | None, "URL"]
    pid: NotRequired[Annotated[int, "with --detach"]]
    log: NotRequired[Annotated[str, "with --detach: path of its log"]]


class Stopped(TypedDict):
    """A broker that has ended."""

    action: Literal["stopped"]
    data_dir: str
    pid: int


class Copied(TypedDict):
    """Counts of a store."""

    queues: int
    messages: int
    size_bytes: int


class BackedUp(Copied):
    """A copy of a broker's store."""

    action: Literal["backed_up"]
    file: str


class Restored(Copied):
    """A broker's store, made of a copy."""

    action: Literal["restored"]
    data_dir: str


class Consumed(TypedDict):
    """A message, on one line."""

    id: str
    group: str
    queue: int
    hash: int | None
    key: str | None
    publisher: str | None
    seq: int | None
    topic: str
    attempt: int
    redelivered: bool
    headers: dict[str, Any]
    data: NotRequired[str]
    data_base64: NotRequired[Annotated[str, "in place of data, for a body that is not UTF-8"]]
    traceparent: NotRequired[str]
    tracestate: NotRequired[str]
    baggage: NotRequired[str]
    session: NotRequired[Annotated[str | None, "mode Sessions"]]
    sequence: NotRequired[Annotated[int, "mode Sessions"]]
    epoch: NotRequired[Annotated[str | None, "mode Sessions: of that sequence"]]


class SessionsJudged(TypedDict):
    """Sessions, in mode Sessions."""

    last_numbers: dict[str, int]
    in_two_places: int
    renumbered: int
    unnumbered: int
    errors: list[SessionError]


class Progress(TypedDict):
    """Counts so far."""

    delivered: int
    overlaps: int
    redelivered: int
    dead_lettered: int
    shard_moves: int
    queue_moves: int
    per_queue: dict[str, int]
    per_member: dict[str, int]
    holders: Annotated[dict[str, str], "the member of each queue"]


class ListeningEvent(TypedDict):
    """The first line: nothing that is published from now on is missed."""

    event: Literal["listening"]


class ProgressEvent(Progress):
    """Counts so far, several times a second."""

    event: Literal["progress"]
    rewinds: int
    inversions: int


class ReportEvent(Progress):
    """The last line: the report."""

    event: Literal["report"]
    group: str
    mode: str
    ok: Annotated[bool, "nothing lost, nothing out of order, no key at two members at once"]
    judged_against: str
    distinct: int
    lost: int
    duplicated: int
    order_errors: int
    uncertain_overlaps: int
    untimed: Annotated[int, "messages of members that do not report times"]
    unexpected_streams: int
    unreadable: int
    pauses: MovePauses
    waits: MovePauses
    moves: list[QueueMoved]
    lost_ranges: list[Lost]
    sequence_errors: list[SequenceError]
    overlapping: list[KeyOverlap]
    sessions: NotRequired[SessionsJudged]


class DemoHandoffs(TypedDict):
    """Moves of queues."""

    count: int
    pause: MovePauses
    held: MovePauses


class DemoKill(TypedDict):
    """A member that was killed."""

    member: str
    at_s: float
    queues: list[int]
    in_flight: int
    repeated: int
    first_delivery_elsewhere_us: int | None


class Demo(TypedDict):
    """Report of the demo, which `lbg demo --report` writes."""

    ok: bool
    mode: str
    engine: str
    input: str
    key: str
    rate: Annotated[float, "messages per second to publish; 0: as fast as possible"]
    seconds: float
    published: int
    delivered: int
    distinct: int
    lost: int
    duplicated: int
    order_errors: int
    repeated_on_planned_moves: int
    repeated_after_kills: int
    repeated_otherwise: int
    handoffs: Annotated[dict[str, DemoHandoffs], "planned, and crash: those after a kill"]
    kills: list[DemoKill]
    publisher: Annotated[dict[str, float], "refused, resends, maybe_twice and messages_per_s"]
    sessions: SessionsJudged | None
    per_queue: dict[str, int]
    per_member: dict[str, int]
    moves: list[QueueMoved]
    sequence_errors: list[SequenceError]
    lost_ranges: list[Lost]


class Drained(TypedDict):
    """A sidecar that has left its group."""

    action: Literal["drained"]
    delivered_again: Annotated[int, "messages; more than 0: the exit status is 1"]


class Released(TypedDict):
    """Groups without the operator's finalizer."""

    action: Literal["released"]
    groups: Annotated[list[str], "namespace/name"]


Rows = Annotated[list[dict[str, Any]], "rows of a table of docs/pipeline-tables.md"]


class Verdicts(TypedDict):
    """Verdicts on journals."""

    ok: bool
    verdicts: Rows
    broken_lines: int
    first_offences: Rows
    first_lost: Rows
    first_broken_lines: Rows
    late: NotRequired[Annotated[int, "with --stream: records behind the watermark"]]
    found: NotRequired[Annotated[int, "with --stream: messages reported as lost that came after all"]]


class Profile(TypedDict):
    """Load of a group in journals."""

    published: Annotated[dict[str, Any] | None, "totals"]
    delivered: Annotated[dict[str, Any] | None, "totals"]
    latencies: NotRequired[Annotated[dict[str, Any], "by metric, with the columns of table latencies"]]
    skew: NotRequired[Annotated[dict[str, Any], "by unit, with the columns of table skew"]]
    handoffs: NotRequired[Annotated[dict[str, Any], "by unit"]]


class Profiles(TypedDict):
    """Load of the groups in journals."""

    groups: Annotated[dict[str, Profile], "by name"]
    broken: Annotated[int, "lines that are not records"]


Candidate = Annotated[dict[str, Any], "columns of table candidates"]


class Plan(TypedDict):
    """Recommended number of hashes, queues and members."""

    group: str
    mode: str
    hash_function: str
    assignment: str
    concurrency: int
    capacity_messages_per_second: Annotated[float, "of one member"]
    target_utilisation: float
    target_delay_seconds: float
    growth: float
    messages: int
    messages_without_key: int
    broken_lines: int
    span_us: int
    service_time_us: float
    load_mean: Annotated[float, "concurrent calls"]
    load_peak: float
    peak_minute: Annotated[str, "RFC 3339"]
    recommended: Candidate
    existing: Annotated[dict[str, Any] | None, "the group as it is"]
    new_group: Annotated[dict[str, Any] | None, "a better choice for a new group"]
    hot_keys: Rows
    patch: Annotated[dict[str, Any] | None, "of the LoadBalancedGroup"]
    advice: list[str]


class ForecastOfGroup(TypedDict):
    """Forecast of a group."""

    group: str
    season: str
    method: str
    variant: str | None
    history: Annotated[dict[str, Any], "messages, from, until"]
    backtest: Annotated[dict[str, Any], "by method: its errors on past weeks"]
    capacity_messages_per_second: float | None
    capacity_from: str
    busiest: Annotated[list[dict[str, Any]], "start, expected, planned and replicas of the busiest intervals"]
    schedule: Annotated[list[dict[str, Any]], "entries of scaling.schedule"]
    notes: list[str]


class Forecast(TypedDict):
    """Forecast of demand."""

    now: Annotated[str, "RFC 3339"]
    interval_seconds: int
    horizon_seconds: int
    time_zone: str
    quantile: float
    broken_lines: int
    groups: list[ForecastOfGroup]


@dataclass(frozen=True, slots=True)
class Extended:
    """A dataclass as an object, and further keys with their types."""

    base: type
    more: dict[str, Any]


DOCUMENTS: dict[str, Any] = {
    "demo": Demo,
    "broker serve": Serving,
    "broker stop": Stopped,
    "broker backup": BackedUp,
    "broker restore": Restored,
    "group create": Created,
    "group show": Group,
    "group list": list[Group],
    "group peek": Peeked,
    "group key": KeyFate,
    "group skip": Skipped,
    "group pause": Paused,
    "group resume": Paused,
    "group rotate": Rotated,
    "group publisher": Rotated,
    "group repartition": Repartitioned,
    "group assign": Assigned,
    "group adopt": Adopted,
    "group close": Closed,
    "group delete": Deleted,
    "top": Look,
    "publish": Extended(PublishingReport, {"group": str}),
    "consume": Consumed,
    "drain": Drained,
    "operator release": Released,
    "dead list": DeadLetters,
    "dead replay": Replayed,
    "dead discard": Discarded,
    "unrouted list": DeadLetters,
    "unrouted replay": Replayed,
    "unrouted discard": Discarded,
    "park enable": ParkingEnabled,
    "park list": ParkedKeys,
    "park show": ParkedMessages,
    "park release": ParkReleased,
    "park replay-one": ParkReplayed,
    "park discard": ParkDiscarded,
    "validate": (
        ListeningEvent,
        ProgressEvent,
        *(Extended(finding, {"event": Literal[event]}) for finding, event in EVENTS.items()),
        ReportEvent,
    ),
    "pipeline validate": Verdicts,
    "pipeline profile": Profiles,
    "pipeline plan": Plan,
    "pipeline forecast": Forecast,
}
"""By command, as it is typed after `lbg`; of several one is on each line."""

STREAMS = ("top", "consume", "validate")
"""Commands whose output is a document a line."""
