"""Documents that commands print with --output json. Keys are added, and none is removed or changed.

`DOCUMENTS` has them by command; docs/reference/output.schema.json and docs/reference/output.md are made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from lbg_core.admin.snapshot import SessionStatus
from lbg_core.group.order_checker import Lost
from lbg_core.publisher import PublishingReport
from lbgroup.group_documents import Attributes, Group, KeyFate, KeyStep, Look, Peeked, Unknown, WatchedGroup
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
from lbgroup.validate.validator import EVENTS, KeyOverlap, MovePauses, QueueMoved, SequenceError, SessionError

Changes = Annotated[list[str], "what was done, a line each"]


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


Documents = list[dict[str, Any]]


class Unchecked(TypedDict):
    """Reason for which nothing was judged."""

    group: Annotated[str | None, "null: of all"]
    reason: str


class Verdicts(TypedDict):
    """Verdicts on journals."""

    ok: bool
    verdict: Annotated[str, "sound, broken or unchecked; then the exit status is 0, 1 or 4"]
    unchecked: list[Unchecked]
    verdicts: Rows
    broken_lines: int
    copies: Annotated[list[dict[str, Any]], "records that are in two files: group, kind, file, other, count"]
    affected: Annotated[Documents, "by group: keys, findings, kinds, first_us, last_us, members"]
    first_keys: Annotated[Documents, "the same by key, most findings first"]
    first_offences: Annotated[
        Rows, "what breaks a verdict; move: that of its hash near it; ended: a run before it"
    ]
    first_lost: Annotated[Rows, "also with first_message and last_message: seq, key, published_at_us"]
    first_broken_lines: Rows
    late: NotRequired[Annotated[int, "with --stream: records behind the watermark"]]
    found: NotRequired[Annotated[int, "with --stream: messages reported as lost that came after all"]]


class KeyHistory(TypedDict):
    """Messages of a key of a group in journals."""

    group: str
    key: str
    hashes: list[int]
    queues: list[int]
    steps: Annotated[list[KeyStep], "the lane of the key, in time order"]
    published: Annotated[int, "records of publishers"]
    delivered: Annotated[int, "records of members"]
    left: Annotated[int, "older ones that are not in steps"]


class KeyHistories(TypedDict):
    """With --key."""

    histories: Annotated[list[KeyHistory], "one for each group"]


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
    "group show": (Group, WatchedGroup),
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
    "pipeline validate": (Verdicts, KeyHistories),
    "pipeline profile": Profiles,
    "pipeline plan": Plan,
    "pipeline forecast": Forecast,
}
"""By command, as it is typed after `lbg`; of several each is an output, or a line of one in STREAMS."""

STREAMS = ("top", "consume", "validate")
"""Commands whose output is a document a line."""
