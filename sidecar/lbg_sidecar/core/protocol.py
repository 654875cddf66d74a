"""Protocol of members on `lbg.G.members`: messages, and their JSON.

Everything in here is a hint (docs/assignment.md, "Safety and balance"): a message that is lost, late or repeated
costs balance for a moment, or a repeat, never order and never a message.

An unknown type is ignored, and so is a field too many: members of two versions are in one group during an update.
"""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field
from typing import Any

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


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity of a member. The incarnation is new with every connection, so that messages by or about an earlier one
    of the same index do not count for this one."""

    index: int
    name: str
    incarnation: str


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
    """To all, once after the index was claimed."""

    sender: Identity


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a hello, to its sender."""

    sender: Identity
    content: BeatContent


@dataclass(frozen=True, slots=True)
class Beat:
    """To all, every second and on change."""

    sender: Identity
    content: BeatContent


@dataclass(frozen=True, slots=True)
class Leave:
    """To all: the sender hands its queues over and leaves."""

    sender: Identity


@dataclass(frozen=True, slots=True)
class Gone:
    """To all: `dead` has no mailbox any more; `by` is the index that found it out."""

    dead: Identity
    by: int


@dataclass(frozen=True, slots=True)
class Ping:
    """To one, mandatory. It needs no answer: only its return has a meaning."""

    sender: Identity
    target: str  # the incarnation that is meant


@dataclass(frozen=True, slots=True)
class Move:
    """To all: the sender is about to hand `queue` over to member `to`; every other member attaches behind it."""

    sender: Identity
    queue: int
    to: int
    move: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reattached:
    """To the mover: the sender is out of the successor's way."""

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
    }
    match message:
        case Welcome(content=content) | Beat(content=content):
            fields |= encode_content(content)
        case Gone(by=by):
            fields["by"] = by
        case Ping(target=target):
            fields["target"] = target
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
    sender = Identity(_number(fields["index"]), str(fields["name"]), str(fields["incarnation"]))
    match fields["type"]:
        case "hello":
            return Hello(sender)
        case "leave":
            return Leave(sender)
        case "welcome":
            return Welcome(sender, _decode_content(fields))
        case "beat":
            return Beat(sender, _decode_content(fields))
        case "gone":
            return Gone(sender, _number(fields["by"]))
        case "ping":
            return Ping(sender, str(fields["target"]))
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


def encode_content(content: BeatContent) -> dict[str, Any]:
    return {
        "queues": [
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
            for state in content.queues
        ],
        "rebalance": content.rebalance.value,
        "counts": content.counts,
        **({"paused": True} if content.paused else {}),
        **({"oldest_us": content.oldest_us} if content.oldest_us else {}),
    }


def _decode_content(fields: dict[str, Any]) -> BeatContent:
    queues = tuple(
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
        for state in fields["queues"]
    )
    counts = {str(name): _number(count) for name, count in fields["counts"].items()}
    return BeatContent(
        queues,
        Rebalance(fields["rebalance"]),
        counts,
        fields.get("paused") is True,
        _number(fields.get("oldest_us", 0)),
    )


def _seconds(value: object, most_s: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most_s:
        raise ValueError(f"{value!r} is not a number of seconds up to {most_s:g}")
    return float(value)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number from 0 up")
    return value
