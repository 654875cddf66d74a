"""Members' messages as bytes: one JSON object each.

An unknown type is ignored, and so is a field too many: members of two versions are in one group during an update.
"""

from __future__ import annotations

import json
from typing import Any

from ..consuming.positions import Positions
from ..errors import MessageError
from .messages import (
    Beat,
    BeatContent,
    Gone,
    Handover,
    Hello,
    Identity,
    Knowledge,
    Leave,
    Message,
    Move,
    Ping,
    Progress,
    QueueState,
    Reattached,
    Rebalance,
    Repartition,
    Status,
    Welcome,
)

VERSION = 1

LOOK = b'{"v":1,"type":"look","index":0,"name":"","incarnation":""}'
"""To one index, by somebody who has none yet: only its return says something."""


def encode(message: Message) -> bytes:
    who = message.dead if isinstance(message, Gone) else message.sender
    fields: dict[str, Any] = {
        "v": VERSION,
        "type": type(message).__name__.lower(),
        "index": who.index,
        "name": who.name,
        "incarnation": who.incarnation,
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
        case _:
            pass
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(body: bytes | memoryview) -> Message | None:
    """The message in `body`; None if it is of a version or type this member does not know. Raises MessageError."""
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
    who = Identity(_number(fields["index"]), str(fields["name"]), str(fields["incarnation"]))
    match fields["type"]:
        case "hello":
            return Hello(who)
        case "leave":
            return Leave(who)
        case "welcome":
            return Welcome(who, _decode_content(fields))
        case "beat":
            return Beat(who, _decode_content(fields))
        case "gone":
            return Gone(who, _number(fields["by"]))
        case "ping":
            return Ping(who, str(fields["target"]))
        case "move":
            queue, to = _number(fields["queue"]), _number(fields["to"])
            return Move(who, queue, to, str(fields["move"]), str(fields.get("why", "")))
        case "reattached":
            return Reattached(who, _number(fields["queue"]), str(fields["move"]))
        case "handover":
            positions = _decode_positions(fields)
            queue, paused_s = _number(fields["queue"]), float(fields["paused_s"])
            waiting = fields.get("waiting") is not False
            return Handover(who, queue, str(fields["move"]), positions, paused_s, waiting)
        case "knowledge":
            return Knowledge(who, _decode_positions(fields))
        case "repartition":
            return Repartition(who, _number(fields["queues"]), fields["done"] is True)
    return None


def _encode_positions(positions: Positions) -> dict[str, Any]:
    return {"streams": positions.streams, "attempts": positions.attempts}


def _decode_positions(fields: dict[str, Any]) -> Positions:
    return Positions(
        tuple(
            (str(publisher), _number(hash_), tuple((_number(a), _number(b)) for a, b in runs))
            for publisher, hash_, runs in fields["streams"]
        ),
        tuple(
            (str(publisher), _number(hash_), _number(seq), _number(count))
            for publisher, hash_, seq, count in fields["attempts"]
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
                "put_off": state.put_off,
                **({"next_drain_s": round(state.next_drain_s, 3)} if state.put_off else {}),
            }
            for state in content.queues
        ],
        "rebalance": content.rebalance.value,
        "counts": content.counts,
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
            put_off=_number(state.get("put_off", 0)),
            next_drain_s=float(state.get("next_drain_s", 0.0)),
        )
        for state in fields["queues"]
    )
    counts = {str(name): _number(count) for name, count in fields["counts"].items()}
    return BeatContent(queues, Rebalance(fields["rebalance"]), counts)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number from 0 up")
    return value
