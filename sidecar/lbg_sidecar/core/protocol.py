"""Protocol of members on `lbg.G.members`: messages, and their JSON.

Everything in here is a hint (docs/assignment.md, "Safety and balance"): a message that is lost, late or repeated
costs balance for a moment, or a repeat, never order and never a message.

An unknown type is ignored, and so is a field too many: members of two versions are in one group during an update.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from lbg_broker.group import INDEX_MAX
from lbg_sidecar.core.delivery import REPORTED_RUNS_MAX, REPORTED_STREAMS_MAX, Positions
from lbg_sidecar.errors import MessageError


class Status(enum.StrEnum):
    """A queue as one member has it, in the words of Solace's partition status (see "Message Distribution With
    Partitioned Queues"): served by it; served, but paused for a handoff; waiting behind another consumer;
    without a consumer of this member."""

    READY = "Ready"
    PAUSED = "Paused"
    UNASSIGNED = "Unassigned"
    UNBOUND = "Unbound"


class Progress(enum.StrEnum):
    """Cause for which a queue's messages wait at a member: nothing is there; the application; the retry of a key
    behind which everything in flight waits (a blocked key); the broker, which has messages and delivers none."""

    IDLE = "Idle"
    WORKING = "Working"
    BLOCKED = "Blocked"
    STALLED = "Stalled"


class Rebalance(enum.StrEnum):
    READY = "Ready"
    HOLD_DOWN = "HoldDown"
    REBALANCING = "Rebalancing"


PROTOCOL = 2
"""Of a member of this version. One of protocol 1 reports the state of all queues to all members each second, expects
the same of them, and does not know the messages of protocol 2 (docs/adr/0063-membership-at-o-1.md)."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a member. The incarnation is new with every connection, so that messages by or about an earlier one
    of the same index do not count for this one. `protocol`: see `PROTOCOL`."""

    index: int
    name: str
    incarnation: str
    protocol: int = 1


@dataclass(frozen=True, slots=True)
class QueueState:
    queue: int
    primary: bool
    active: bool
    status: Status
    in_flight: int = 0
    delivered: int = 0
    epoch: int = 0  # rises with every attachment: who attached later waits behind who attached earlier
    progress: Progress = Progress.IDLE
    poisoned: int = 0  # messages whose attempts are used up, and which are retried
    poisoned_keys: tuple[str, ...] = ()  # of the oldest of them
    poisoned_ids: tuple[str, ...] = ()  # of the oldest of them
    put_off: int = 0  # handoffs in a row that its calls did not end in time for
    next_drain_s: float = 0.0  # how long the next may wait for them, if one was put off


@dataclass(frozen=True, slots=True)
class BeatContent:
    queues: tuple[QueueState, ...] = ()
    rebalance: Rebalance = Rebalance.READY
    counts: dict[str, int] = field(default_factory=dict)
    paused: bool = False  # starts no new call, as the group's record states
    oldest_us: int = 0  # when the oldest message that it has not settled was published; 0: none, or unknown


@dataclass(frozen=True, slots=True)
class Hello:
    """After the index was claimed: to index 0 (`attempt` 0), and to all as long as no directory arrives."""

    sender: Identity
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Directory:
    """To one: the live members, as the sender has them, and the last incarnations that ended. To a member that joins,
    and to one whose digest differs, which answers with its own if the two still differ (`is_answer`)."""

    sender: Identity
    members: tuple[Identity, ...]
    ended: tuple[str, ...] = ()
    is_answer: bool = False


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of the live set. To all by the coordinator; with a `target`, the coordinator's incarnation, to it alone,
    which sends them to all."""

    sender: Identity
    joined: tuple[Identity, ...] = ()
    lost: tuple[Identity, ...] = ()
    left: tuple[Identity, ...] = ()
    target: str = ""


@dataclass(frozen=True, slots=True)
class IndexRequest:
    """To index 0, by a member without an index: the lowest free one, and none of `refused`. `answer` is the routing key
    of its temporary queue."""

    sender: Identity
    answer: int
    refused: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexOffer:
    """The answer to an index request: an index that is offered to nobody else for a few seconds."""

    sender: Identity
    offered: int


@dataclass(frozen=True, slots=True)
class QueueReport:
    """To the other consumers of these queues, on change: the state of the sender's bindings."""

    sender: Identity
    queues: tuple[QueueState, ...]


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a hello of protocol 1, to its sender."""

    sender: Identity
    content: BeatContent


@dataclass(frozen=True, slots=True)
class Beat:
    """To observers, every second and on change: the status report, with the queues that the sender serves or backs up.
    While a member of protocol 1 is live also to all, with all queues."""

    sender: Identity
    content: BeatContent


@dataclass(frozen=True, slots=True)
class Leave:
    """To the coordinator, and to all where one of protocol 1 is live: the sender hands its queues over and leaves."""

    sender: Identity


@dataclass(frozen=True, slots=True)
class Gone:
    """`dead` has no mailbox any more; `by` is the index that found it out. To all where a member of protocol 1 is live;
    and to a member that counts as gone and is not."""

    dead: Identity
    by: int


@dataclass(frozen=True, slots=True)
class Ping:
    """To one, mandatory: its return proves that the mailbox is gone. With the digest and number of the live set, and
    for how long it has not changed; 0 members: none is sent."""

    sender: Identity
    target: str  # the incarnation that is meant
    members: int = 0
    digest: int = 0
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Move:
    """To the consumers of `queue`: the sender is about to hand it over to member `to`, which answers when it is
    attached; every other one attaches behind it. To all where a member of protocol 1 is live."""

    sender: Identity
    queue: int
    to: int
    move: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reattached:
    """To the mover: the sender is out of the successor's way, or is the successor and attached."""

    sender: Identity
    queue: int
    move: str


@dataclass(frozen=True, slots=True)
class Handover:
    """To the successor, just before the queue is released: what was processed, and since when the queue is paused.

    `paused_s` is how long the sender had not started a call of the queue when it sent this. `waiting`: the queue had
    messages then; else the pause until the next delivery is unknown.
    """

    sender: Identity
    queue: int
    move: str
    positions: Positions
    paused_s: float
    waiting: bool = True


@dataclass(frozen=True, slots=True)
class Repartition:
    """To all, from who changes the group's number of queues and is no member: there are to be `queues`, and nothing
    waits in any; or there are so many now, if `done`."""

    sender: Identity
    queues: int
    done: bool


@dataclass(frozen=True, slots=True)
class Knowledge:
    """To all, before queues change: what the sender processed of one, as its keys may go to any member."""

    sender: Identity
    positions: Positions


@dataclass(frozen=True, slots=True)
class Peek:
    """To all, from an administrator: each member answers with the messages that it holds of this queue, key and id
    (None: of all), at most `limit`, with `body_bytes` of each body. `answer.{answer}` is the answer's routing key."""

    sender: Identity
    answer: str
    queue: int | None
    key: str | None
    id: str | None
    limit: int
    body_bytes: int


class HeldState(enum.StrEnum):
    """State of a message that a member holds: its turn has not come; the application has it; it failed and is to be
    called again; its attempts are used up, and it is called again; it goes to the dead letters; it is processed, and
    the validator has not confirmed it."""

    WAITING = "waiting"
    RUNNING = "running"
    RETRYING = "retrying"
    POISONED = "poisoned"
    REFUSED = "refused"
    PROCESSED = "processed"


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that a member holds. Its body is text or in base64, perhaps not all of it; `body_bytes` is the size of
    all of it. `reason`: of the last failed attempt."""

    id: str
    key: str | None
    queue: int
    state: HeldState
    attempts: int
    reason: str
    redelivered: bool
    published_at_us: int
    routing_key: str
    content_type: str | None
    body: str | None
    body_base64: str | None
    body_bytes: int


@dataclass(frozen=True, slots=True)
class Peeked:
    """To an administrator: the messages of a peek, of each queue in the order of delivery. `held`: how many there are,
    shown or not."""

    sender: Identity
    held: int
    messages: tuple[HeldMessage, ...]


@dataclass(frozen=True, slots=True)
class Skip:
    """To one member, from an administrator: the poisoned message of this id is to become a dead letter."""

    sender: Identity
    answer: str
    id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """To all, from an administrator: members start no new call if `consumption`, and go on otherwise, as the group's
    record states."""

    sender: Identity
    consumption: bool


@dataclass(frozen=True, slots=True)
class Watch:
    """To all, from an administrator: members report their activity for so many seconds."""

    sender: Identity
    seconds: float


@dataclass(frozen=True, slots=True)
class Takeover:
    """A queue that the sender serves from now on. The fields are those of the effect `TakenOver`."""

    queue: int
    former: int | None
    why: str
    planned: bool
    pause_s: float | None


@dataclass(frozen=True, slots=True)
class Activity:
    """To administrators who watch: the keys of which the sender has processed most messages since its last report, with
    their counts, each second as long as it was requested; and a queue that it took over, without a request."""

    sender: Identity
    keys: tuple[tuple[str, int], ...] = ()
    takeover: Takeover | None = None


class SkipOutcome(enum.StrEnum):
    """The broker has the dead letter; the message is called now, and becomes a dead letter unless this call succeeds;
    that call succeeded; the message is not poisoned; this member does not hold it."""

    DEAD_LETTER = "dead-letter"
    RUNNING = "running"
    PROCESSED = "processed"
    NOT_POISONED = "not-poisoned"
    NOT_HELD = "not-held"


@dataclass(frozen=True, slots=True)
class Skipped:
    """To an administrator: the outcome of a skip. `RUNNING` is followed by another one."""

    sender: Identity
    outcome: SkipOutcome


Message = (
    Hello
    | Directory
    | Changes
    | IndexRequest
    | IndexOffer
    | QueueReport
    | Welcome
    | Beat
    | Leave
    | Gone
    | Ping
    | Move
    | Reattached
    | Handover
    | Repartition
    | Knowledge
    | Peek
    | Peeked
    | Skip
    | Skipped
    | Pause
    | Watch
    | Activity
)

Request = Peek | Skip | Pause | Watch
"""Of administrators."""

ANSWER_PREFIX = "answer."
"""Of the routing keys of answers to administrators: no member receives them."""

ANSWER_MAX_CHARS = 64

ACTIVITY = "activity"
"""The routing key of `Activity`: only administrators who watch receive it."""

WATCH_MAX_S = 60.0


VERSION = 1

LOOK = b'{"v":1,"type":"look","index":0,"name":"","incarnation":""}'
"""To one index, by a member without one: only its return has a meaning."""


def encode(message: Message) -> bytes:
    identity = message.dead if isinstance(message, Gone) else message.sender
    fields: dict[str, Any] = {
        "v": VERSION,
        "type": type(message).__name__.lower(),
        "index": identity.index,
        "name": identity.name,
        "incarnation": identity.incarnation,
        **({"protocol": identity.protocol} if identity.protocol != 1 else {}),
    }
    match message:
        case Hello(attempt=attempt) if attempt:
            fields["attempt"] = attempt
        case Directory():
            fields["members"] = _encode_members(message.members)
            fields |= {"ended": message.ended, "is_answer": message.is_answer}
        case Changes():
            members = {"joined": message.joined, "lost": message.lost, "left": message.left}
            fields |= {name: _encode_members(some) for name, some in members.items() if some}
            if message.target:
                fields["target"] = message.target
        case IndexRequest(answer=answer, refused=refused):
            fields |= {"answer": answer, "refused": refused}
        case IndexOffer(offered=offered):
            fields["offered"] = offered
        case QueueReport(queues=queues):
            fields["queues"] = _encode_states(queues)
        case Welcome(content=content) | Beat(content=content):
            fields |= encode_content(content)
        case Gone(by=by):
            fields["by"] = by
        case Ping(target=target, members=count):
            fields["target"] = target
            if count:
                fields |= {"members": count, "digest": message.digest, "quiet_s": round(message.quiet_s, 3)}
        case Move():
            fields |= {"queue": message.queue, "to": message.to, "move": message.move, "why": message.why}
        case Reattached():
            fields |= {"queue": message.queue, "move": message.move}
        case Handover():
            fields |= {"queue": message.queue, "move": message.move, "paused_s": round(message.paused_s, 6)}
            fields["waiting"] = message.waiting
            fields |= _encode_positions(message.positions)
        case Knowledge(positions=positions):
            fields |= _encode_positions(positions)
        case Repartition(queues=queues, done=done):
            fields |= {"queues": queues, "done": done}
        case Peek():
            fields |= {"answer": message.answer, "queue": message.queue, "key": message.key}
            fields |= {"id": message.id, "limit": message.limit, "body_bytes": message.body_bytes}
        case Skip(answer=answer, id=id_):
            fields |= {"answer": answer, "id": id_}
        case Pause(consumption=consumption):
            fields["consumption"] = consumption
        case Skipped(outcome=outcome):
            fields["outcome"] = outcome.value
        case Watch(seconds=seconds):
            fields["seconds"] = seconds
        case Activity(keys=keys, takeover=takeover):
            fields["keys"] = keys
            if takeover is not None:
                fields["takeover"] = asdict(takeover)
        case Peeked(held=held, messages=messages):
            fields |= {"held": held, "messages": [asdict(one) for one in messages]}
        case _:
            pass
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(body: bytes | memoryview) -> Message | None:
    """The message in `body`; None if its version or type is unknown. Raises MessageError."""
    try:
        fields = json.loads(bytes(body))
        if not isinstance(fields, dict):
            raise MessageError("a member's message is not a JSON object")
        if fields.get("v") != VERSION:
            return None
        return _decode(fields)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise MessageError(f"not a member's message: {type(error).__name__}: {error}") from error


def _decode(fields: dict[str, Any]) -> Message | None:
    sender = _identity(fields["index"], fields["name"], fields["incarnation"], fields.get("protocol", 1))
    match fields["type"]:
        case "hello":
            return Hello(sender, _number(fields.get("attempt", 0)))
        case "directory":
            ended = tuple(map(str, fields["ended"]))
            return Directory(sender, _decode_members(fields["members"]), ended, fields["is_answer"] is True)
        case "changes":
            joined, lost, left = (
                _decode_members(fields.get(name, ())) for name in ("joined", "lost", "left")
            )
            return Changes(sender, joined, lost, left, str(fields.get("target", "")))
        case "indexrequest":
            return IndexRequest(sender, _number(fields["answer"]), tuple(map(_number, fields["refused"])))
        case "indexoffer":
            return IndexOffer(sender, _index(fields["offered"]))
        case "queuereport":
            return QueueReport(sender, _decode_states(fields["queues"]))
        case "leave":
            return Leave(sender)
        case "welcome":
            return Welcome(sender, _decode_content(fields))
        case "beat":
            return Beat(sender, _decode_content(fields))
        case "gone":
            return Gone(sender, _number(fields["by"]))
        case "ping":
            quiet_s = float(fields.get("quiet_s", 0.0))
            count, digest = _number(fields.get("members", 0)), _number(fields.get("digest", 0))
            return Ping(sender, str(fields["target"]), count, digest, quiet_s)
        case "move":
            queue, to = _number(fields["queue"]), _number(fields["to"])
            return Move(sender, queue, to, str(fields["move"]), str(fields.get("why", "")))
        case "reattached":
            return Reattached(sender, _number(fields["queue"]), str(fields["move"]))
        case "handover":
            positions = _decode_positions(fields)
            queue, paused_s = _number(fields["queue"]), float(fields["paused_s"])
            waiting = fields.get("waiting") is not False
            return Handover(sender, queue, str(fields["move"]), positions, paused_s, waiting)
        case "knowledge":
            return Knowledge(sender, _decode_positions(fields))
        case "repartition":
            return Repartition(sender, _number(fields["queues"]), fields["done"] is True)
        case "peek":
            return Peek(
                sender,
                _answer(fields),
                queue=None if fields["queue"] is None else _number(fields["queue"]),
                key=_text_or_none(fields["key"]),
                id=_text_or_none(fields["id"]),
                limit=_number(fields["limit"]),
                body_bytes=_number(fields["body_bytes"]),
            )
        case "skip":
            return Skip(sender, _answer(fields), str(fields["id"]))
        case "pause":
            return Pause(sender, fields["consumption"] is True)
        case "watch":
            return Watch(sender, _seconds(fields["seconds"], WATCH_MAX_S))
        case "activity":
            keys = tuple((str(key), _number(count)) for key, count in fields["keys"])
            takeover = fields.get("takeover")
            return Activity(sender, keys, None if takeover is None else Takeover(**takeover))
        case "skipped":
            return Skipped(sender, SkipOutcome(fields["outcome"]))
        case "peeked":
            messages = tuple(map(_decode_held, fields["messages"]))
            return Peeked(sender, _number(fields["held"]), messages)
    return None


def _answer(fields: dict[str, Any]) -> str:
    """It becomes a part of a routing key, which has 255 bytes at most."""
    answer = str(fields["answer"])
    if not (answer.isascii() and answer.isalnum() and len(answer) <= ANSWER_MAX_CHARS):
        raise ValueError("the request names no answer")
    return answer


def _decode_held(fields: dict[str, Any]) -> HeldMessage:
    return HeldMessage(
        id=str(fields["id"]),
        key=_text_or_none(fields["key"]),
        queue=_number(fields["queue"]),
        state=HeldState(fields["state"]),
        attempts=_number(fields["attempts"]),
        reason=str(fields["reason"]),
        redelivered=fields["redelivered"] is True,
        published_at_us=_number(fields["published_at_us"]),
        routing_key=str(fields["routing_key"]),
        content_type=_text_or_none(fields["content_type"]),
        body=_text_or_none(fields["body"]),
        body_base64=_text_or_none(fields["body_base64"]),
        body_bytes=_number(fields["body_bytes"]),
    )


def _text_or_none(value: object) -> str | None:
    return None if value is None else str(value)


def _encode_positions(positions: Positions) -> dict[str, Any]:
    return {"streams": positions.streams, "attempts": positions.attempts}


def _decode_positions(fields: dict[str, Any]) -> Positions:
    streams, attempts = fields["streams"], fields["attempts"]
    run_count = sum(len(runs) for _, _, runs in streams)
    if max(len(streams), len(attempts)) > REPORTED_STREAMS_MAX or run_count > REPORTED_RUNS_MAX:
        raise MessageError(
            f"not a member's message: {len(streams)} streams with {run_count} runs and {len(attempts)} attempts"
        )
    return Positions(
        tuple(
            (str(publisher), _number(hash_), tuple((_number(a), _number(b)) for a, b in runs))
            for publisher, hash_, runs in streams
        ),
        tuple(
            (str(publisher), _number(hash_), _number(seq), _number(count))
            for publisher, hash_, seq, count in attempts
        ),
    )


def _encode_members(members: Iterable[Identity]) -> list[list[str | int]]:
    return [[one.index, one.name, one.incarnation, one.protocol] for one in members]


def _decode_members(members: Any) -> tuple[Identity, ...]:
    return tuple(_identity(*one) for one in members)


def _identity(index: object, name: object, incarnation: object, protocol: object) -> Identity:
    return Identity(_index(index), str(name), str(incarnation), _number(protocol))


def _index(value: object) -> int:
    index = _number(value)
    if index > INDEX_MAX:
        raise ValueError(f"{index} is not an index up to {INDEX_MAX}")
    return index


def encode_content(content: BeatContent) -> dict[str, Any]:
    return {
        "queues": _encode_states(content.queues),
        "rebalance": content.rebalance.value,
        "counts": content.counts,
        **({"paused": True} if content.paused else {}),
        **({"oldest_us": content.oldest_us} if content.oldest_us else {}),
    }


def _encode_states(states: Iterable[QueueState]) -> list[dict[str, Any]]:
    return [
        {
            "queue": state.queue,
            "role": "primary" if state.primary else "secondary",
            "active": state.active,
            "in_flight": state.in_flight,
            "delivered": state.delivered,
            "status": state.status.value,
            "epoch": state.epoch,
            "progress": state.progress.value,
            "poisoned": state.poisoned,
            "poisoned_keys": list(state.poisoned_keys),
            **({"poisoned_ids": list(state.poisoned_ids)} if state.poisoned_ids else {}),
            "put_off": state.put_off,
            **({"next_drain_s": round(state.next_drain_s, 3)} if state.put_off else {}),
        }
        for state in states
    ]


def _decode_content(fields: dict[str, Any]) -> BeatContent:
    counts = {str(name): _number(count) for name, count in fields["counts"].items()}
    return BeatContent(
        _decode_states(fields["queues"]),
        Rebalance(fields["rebalance"]),
        counts,
        fields.get("paused") is True,
        _number(fields.get("oldest_us", 0)),
    )


def _decode_states(states: Any) -> tuple[QueueState, ...]:
    return tuple(
        QueueState(
            queue=_number(state["queue"]),
            primary=state["role"] == "primary",
            active=state["active"] is True,
            status=Status(state["status"]),
            in_flight=_number(state["in_flight"]),
            delivered=_number(state["delivered"]),
            epoch=_number(state["epoch"]),
            progress=Progress(state["progress"]),
            poisoned=_number(state.get("poisoned", 0)),
            poisoned_keys=tuple(map(str, state.get("poisoned_keys", ()))),
            poisoned_ids=tuple(map(str, state.get("poisoned_ids", ()))),
            put_off=_number(state.get("put_off", 0)),
            next_drain_s=float(state.get("next_drain_s", 0.0)),
        )
        for state in states
    )


def _seconds(value: object, most_s: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most_s:
        raise ValueError(f"{value!r} is not a number of seconds up to {most_s:g}")
    return float(value)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number from 0 up")
    return value
