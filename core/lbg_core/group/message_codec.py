"""JSON of the messages of members (`members_protocol`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from json.encoder import encode_basestring_ascii
from typing import Any

from lbg_core.group.assignment import INDEX_MAX
from lbg_core.group.errors import MessageError, NewerMessage
from lbg_core.group.members_protocol import (
    ANSWER_MAX_CHARS,
    COUNT_MAX,
    REPORTED_RUNS_MAX,
    REPORTED_STREAMS_MAX,
    SUSPECTS_MAX,
    WATCH_MAX_S,
    Activity,
    Beat,
    BeatContent,
    Changes,
    Directory,
    Gone,
    Handover,
    HeldMessage,
    HeldState,
    HeldSuspect,
    Hello,
    Identity,
    IndexOffer,
    IndexRequest,
    KeysMove,
    Knowledge,
    KnowledgeRequest,
    Leave,
    Message,
    Move,
    ParkingState,
    Pause,
    Peek,
    Peeked,
    Ping,
    Positions,
    Progress,
    QueueReport,
    QueueState,
    Reattached,
    Rebalance,
    Repartition,
    RetriedMessage,
    Skip,
    SkipOutcome,
    Skipped,
    Status,
    Suspected,
    SuspectReport,
    Takeover,
    Watch,
)
from lbg_core.group.names import MEMBERS_VERSION

LOOK = f'{{"v":{MEMBERS_VERSION},"type":"look","index":0,"name":"","incarnation":""}}'.encode()
"""To one index, by a member without one: only its return has a meaning."""


_ENCODER = json.JSONEncoder(separators=(",", ":"))


def _encode_ping(ping: Ping) -> bytes:
    """As `encode` of other messages, in a fraction of the time: most messages are pings."""
    sender, text = ping.sender, encode_basestring_ascii
    digest = (
        f',"members":{ping.members},"digest":{ping.digest},"quiet_s":{round(ping.quiet_s, 3)!r}'
        if ping.members
        else ""
    )
    return (
        f'{{"v":{MEMBERS_VERSION},"type":"ping","index":{sender.index},"name":{text(sender.name)},'
        f'"incarnation":{text(sender.incarnation)},"target":{text(ping.target)}{digest}}}'
    ).encode()


def encode(message: Message) -> bytes:
    if isinstance(message, Ping):
        return _encode_ping(message)
    identity = message.dead if isinstance(message, Gone) else message.sender
    fields: dict[str, Any] = {
        "v": MEMBERS_VERSION,
        "type": type(message).__name__.lower(),
        "index": identity.index,
        "name": identity.name,
        "incarnation": identity.incarnation,
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
        case Beat(content=content):
            fields |= encode_content(content)
        case Gone(by=by):
            fields["by"] = by
        case Move():
            fields |= {"queue": message.queue, "to": message.to, "move": message.move, "why": message.why}
        case Reattached():
            fields |= {"queue": message.queue, "move": message.move, "proof": message.proof}
        case Handover():
            fields |= {"queue": message.queue, "move": message.move, "paused_s": round(message.paused_s, 6)}
            fields |= {"waiting": message.waiting, "proof": message.proof}
            fields |= _encode_positions(message.positions)
        case KnowledgeRequest(proof=proof):
            fields["proof"] = proof
        case Knowledge(positions=positions, proof=proof):
            fields |= {**_encode_positions(positions), "proof": proof}
        case SuspectReport(suspects=suspects):
            fields["suspects"] = [
                [*one.identity, one.attempts, one.calls, one.parked, one.member] for one in suspects
            ]
        case Repartition(queues=queues, done=done):
            fields |= {"queues": queues, "done": done}
        case KeysMove(move=move):
            fields["move"] = move
        case Peek():
            fields |= {"answer": message.answer, "queue": message.queue, "key": message.key}
            fields |= {"id": message.id, "limit": message.limit, "body_bytes": message.body_bytes}
        case Skip(answer=answer, id=id_):
            fields |= {"answer": answer, "id": id_}
        case Pause(consumption=consumption):
            fields["consumption"] = consumption
        case Skipped(outcome=outcome):
            fields["outcome"] = outcome.value
        case Watch(seconds=seconds, keys=keys):
            fields |= {"seconds": seconds, "keys": keys}
        case Activity(keys=keys, takeover=takeover):
            fields["keys"] = keys
            if takeover is not None:
                fields["takeover"] = asdict(takeover)
        case Peeked(held=held, messages=messages):
            fields |= {"held": held, "messages": [asdict(one) for one in messages]}
        case _:
            pass
    return _ENCODER.encode(fields).encode()


def decode(body: bytes | memoryview) -> Message | None:
    """The message in `body`; None for a type that members do not read. Raises MessageError, and NewerMessage."""
    try:
        fields = json.loads(bytes(body))
        if not isinstance(fields, dict):
            raise MessageError("a member's message is not a JSON object")
        version = fields["v"]
        if type(version) is int and version > MEMBERS_VERSION:
            is_member = bool(fields.get("incarnation"))  # requests of others have none
            raise NewerMessage(str(fields.get("name")), version, MEMBERS_VERSION, is_member=is_member)
        if version != MEMBERS_VERSION:
            raise MessageError(f"not a member's message: its version is {version!r}")
        return _decode(fields)
    except MessageError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise MessageError(f"not a member's message: {type(error).__name__}: {error}") from error


def _decode(fields: dict[str, Any]) -> Message | None:
    sender = _identity(fields["index"], fields["name"], fields["incarnation"])
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
            return Move(sender, queue, to, str(fields["move"]), str(fields["why"]))
        case "reattached":
            return Reattached(sender, _number(fields["queue"]), str(fields["move"]), str(fields["proof"]))
        case "handover":
            positions = _decode_positions(fields)
            queue, paused_s = _number(fields["queue"]), float(fields["paused_s"])
            waiting = fields["waiting"] is True
            return Handover(
                sender, queue, str(fields["move"]), positions, paused_s, waiting, str(fields["proof"])
            )
        case "knowledgerequest":
            return KnowledgeRequest(sender, str(fields["proof"]))
        case "knowledge":
            return Knowledge(sender, _decode_positions(fields), str(fields["proof"]))
        case "suspectreport":
            suspects = fields["suspects"]
            if len(suspects) > SUSPECTS_MAX:
                raise MessageError(f"not a member's message: {len(suspects)} suspects")
            return SuspectReport(sender, tuple(_decode_suspect(*one) for one in suspects))
        case "keysmove":
            return KeysMove(sender, str(fields["move"]))
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
            seconds = _seconds(fields["seconds"], WATCH_MAX_S)
            return Watch(sender, seconds, keys=fields["keys"] is True)
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


def _decode_suspect(
    publisher: object,
    hash_: object,
    seq: object,
    attempts: object,
    calls: object,
    parked: object,
    member: object,
) -> Suspected:
    identity = str(publisher), _number(hash_), _number(seq)
    return Suspected(identity, _count(attempts), _count(calls), _count(parked), str(member))


def _count(value: object) -> int:
    return min(_number(value), COUNT_MAX)


def _encode_members(members: Iterable[Identity]) -> list[list[str | int]]:
    return [[one.index, one.name, one.incarnation] for one in members]


def _decode_members(members: Any) -> tuple[Identity, ...]:
    return tuple(_identity(*one) for one in members)


def _identity(index: object, name: object, incarnation: object) -> Identity:
    return Identity(_index(index), str(name), str(incarnation))


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
        **({} if content.parking is None else {"parking": _encode_parking(content.parking)}),
    }


def _encode_parking(parking: ParkingState) -> dict[str, Any]:
    return {
        "is_read": parking.is_read,
        "keys": parking.keys,
        "messages": parking.messages,
        "bytes": parking.size_bytes,
        "is_full": parking.is_full,
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
            **(
                {"retried_messages": [asdict(one) for one in state.retried_messages]}
                if state.retried_messages
                else {}
            ),
            "put_off": state.put_off,
            **({"next_drain_s": round(state.next_drain_s, 3)} if state.put_off else {}),
            **({"suspects": [asdict(one) for one in state.suspects]} if state.suspects else {}),
        }
        for state in states
    ]


def _decode_content(fields: dict[str, Any]) -> BeatContent:
    counts = {str(name): _number(count) for name, count in fields["counts"].items()}
    parking = fields.get("parking")
    return BeatContent(
        _decode_states(fields["queues"]),
        Rebalance(fields["rebalance"]),
        counts,
        fields.get("paused") is True,
        _number(fields.get("oldest_us", 0)),
        None if parking is None else _decode_parking(parking),
    )


def _decode_parking(fields: dict[str, Any]) -> ParkingState:
    return ParkingState(
        is_read=fields["is_read"] is True,
        keys=_number(fields["keys"]),
        messages=_number(fields["messages"]),
        size_bytes=_number(fields["bytes"]),
        is_full=fields["is_full"] is True,
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
            poisoned=_number(state["poisoned"]),
            poisoned_keys=tuple(map(str, state["poisoned_keys"])),
            poisoned_ids=tuple(map(str, state.get("poisoned_ids", ()))),
            retried_messages=tuple(map(_decode_retried, state.get("retried_messages", ()))),
            put_off=_number(state["put_off"]),
            next_drain_s=float(state.get("next_drain_s", 0.0)),
            suspects=tuple(map(_decode_held_suspect, state.get("suspects", ()))),
        )
        for state in states
    )


def _decode_retried(fields: dict[str, Any]) -> RetriedMessage:
    key = fields["key"]
    return RetriedMessage(
        str(fields["id"]),
        None if key is None else str(key),
        str(fields["reason"]),
        _number(fields["until_us"]),
    )


def _decode_held_suspect(fields: dict[str, Any]) -> HeldSuspect:
    return HeldSuspect(
        str(fields["id"]), _text_or_none(fields["key"]), _number(fields["attempts"]), str(fields["member"])
    )


def _seconds(value: object, most_s: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= most_s:
        raise ValueError(f"{value!r} is not a number of seconds up to {most_s:g}")
    return float(value)


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a number from 0 up")
    return value
