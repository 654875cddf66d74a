"""Objects that show a group as JSON: of `lbg group show`, `list`, `peek` and `key`, and of `lbg top`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

from lbg_core.admin.problems import Remedy, Subject
from lbg_core.admin.snapshot import Handoffs, SessionStatus
from lbg_core.group import GroupSpec
from lbg_core.group.member_state import QueueState
from lbg_core.group.pace import Pace

Unknown = Literal["unknown"]


Count = int | Unknown | None
"""None: there is nothing to count."""


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
    pace: Annotated[Pace | None, "of its calls in the last minute; null: not measured yet"]


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
    missing: Annotated[int, "messages that are skipped now, for at most a day"]
    gap_streams: Annotated[int, "streams with missing messages"]
    gap_since_us: Annotated[int, "time of the first gap, in microseconds since 1970; 0 without one"]
    first_missing: Annotated[str, "id of the first missing message"]
    overdue: Annotated[int, "messages that have been missing for more than a day"]
    overdue_since_us: Annotated[
        int, "time of the first of these gaps, in microseconds since 1970; 0 without one"
    ]
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


class HotKey(TypedDict):
    """A key with most time in calls, or with most messages. null: unknown."""

    key: str
    rate: Annotated[float | None, "messages per second; of a group that is watched alone"]
    busy: Annotated[float | None, "share of the time in which a call of it ran: at 1 it cannot go faster"]
    p50_s: Annotated[float | None, "half of its calls took at most so long"]
    p99_s: Annotated[float | None, "99 of 100 of its calls took at most so long"]


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
    finish_rate: Annotated[float | None, "messages a second that members processed in the last minute"]
    hot_keys: Annotated[
        list[HotKey], "the keys with most time in calls in the last minute, the busiest first"
    ]
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
    """A group that is looked at again and again: in `lbg top`, and with --watch or --target-delay."""

    rate: Annotated[float, "messages per second that members finished"]
    oldest_s: Annotated[float | None, "age of the oldest message that is known"]
    clears_s: Annotated[
        float | Literal["never"] | None,
        "time after which the backlog is gone at the present rate; never: it does not shrink; null: there is none",
    ]
    publish_rate: Annotated[
        float | None, "messages that came per second, over 20 s: those that left, and the growth of the lag"
    ]
    lag_per_min: Annotated[float | None, "messages by which the lag grows a minute, over 20 s"]


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
            "finished, finished-unacknowledged, dead, repeat-dropped, parked, forwarded or given-back; the state that "
            "it has now; or in journals undelivered",
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
