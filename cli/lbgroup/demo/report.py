"""Report of the demo: the validator's findings, and the script's part in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lbg_broker.group import PARTITIONED, UNCOUNTED_MODES
from lbg_broker.group.order_checker import Kind
from lbgroup.demo.model import Kill
from lbgroup.validate.validator import MovePauses


def is_crash(move: Mapping[str, Any], kill: Kill, moves: Sequence[Mapping[str, Any]]) -> bool:
    """True if `move` is away from the member that `kill` killed, before that one held a queue again."""
    return move["was_name"] == kill.member and _is_dead(kill, move["at_us"], moves)


def _is_dead(kill: Kill, at_us: int, moves: Sequence[Mapping[str, Any]]) -> bool:
    """True if the member that `kill` killed holds no queue since then."""
    returns = [
        move["at_us"] for move in moves if move["now_name"] == kill.member and move["at_us"] > kill.at_us
    ]
    return kill.at_us <= at_us and (not returns or at_us < min(returns))


def _repeated_without_key(validated: Mapping[str, Any], kill: Kill) -> int:
    """Repeats after a kill of messages that no move counts: without a key they are in any partition."""
    if validated["mode"] != PARTITIONED:
        return 0
    return sum(
        error["kind"] == Kind.REWIND.value
        and error["key"] is None
        and error["redelivered"]
        and _is_dead(kill, error["at_us"], validated["moves"])
        for error in validated["sequence_errors"]
    )


def demo_report(
    *,
    validated: Mapping[str, Any],
    published: Mapping[str, Any],
    kills: Sequence[Kill],
    source: Mapping[str, Any],
    seconds: float,
) -> dict[str, Any]:
    """Everything that is claimed at the end, ready for JSON. `ok`: nothing lost, nothing out of order."""
    moves = validated["moves"]
    has_moves = validated["mode"] not in UNCOUNTED_MODES
    by_kill = [[move for move in moves if is_crash(move, kill, moves)] for kill in kills]
    crashed = [id(move) for some in by_kill for move in some]
    planned = [move for move in moves if id(move) not in crashed]
    unplanned = [move for move in moves if id(move) in crashed]
    without_key = [_repeated_without_key(validated, kill) for kill in kills]
    repeated_on_planned_moves = sum(move["repeated"] for move in planned)
    repeated_after_kills = sum(move["repeated"] for move in unplanned) + sum(without_key)
    return {
        "ok": bool(validated["ok"]),
        "mode": validated["mode"],
        **source,
        "seconds": round(seconds, 1),
        "published": published["published"],
        "delivered": validated["delivered"],
        "distinct": validated["distinct"],
        "lost": validated["lost"],
        "duplicated": validated["duplicated"],
        "order_errors": validated["order_errors"],
        "repeated_on_planned_moves": repeated_on_planned_moves,
        "repeated_after_kills": repeated_after_kills if has_moves else validated["duplicated"],
        "repeated_otherwise": validated["duplicated"] - repeated_on_planned_moves - repeated_after_kills
        if has_moves
        else 0,
        "handoffs": {"planned": _handoffs(planned), "crash": _handoffs(unplanned)},
        "kills": [
            _kill(kill, some, more) for kill, some, more in zip(kills, by_kill, without_key, strict=True)
        ]
        if has_moves
        else [_kill_without_moves(kill, validated) for kill in kills],
        "per_queue": validated["per_queue"],
        "per_member": validated["per_member"],
        "sessions": validated.get("sessions"),
        "publisher": {
            name: published.get(name) for name in ("refused", "resends", "maybe_twice", "messages_per_s")
        },
        "moves": moves,
        "sequence_errors": validated["sequence_errors"],
        "lost_ranges": validated["lost_ranges"],
    }


def _handoffs(moves: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`pause`: last delivery there to first delivery here; `held`: how long the first message was kept waiting."""
    return {
        "count": len(moves),
        "pause": asdict(MovePauses.of([move["pause_us"] for move in moves])),
        "held": asdict(MovePauses.of([move["waited_us"] for move in moves])),
    }


def _kill(kill: Kill, moves: Sequence[Mapping[str, Any]], without_key: int) -> dict[str, Any]:
    """`in_flight`: what the dead member held by the broker's count, that is, what it gave to others again."""
    return {
        "member": kill.member,
        "at_s": round(kill.at_s, 1),
        "queues": [move["queue"] for move in moves],
        "in_flight": sum(move["redelivered"] for move in moves) + without_key,
        "repeated": sum(move["repeated"] for move in moves) + without_key,
        "first_delivery_elsewhere_us": max((move["at_us"] - kill.at_us for move in moves), default=None),
    }


def _kill_without_moves(kill: Kill, validated: Mapping[str, Any]) -> dict[str, Any]:
    """Where no queue is anybody's: all that came again, came again because of it."""
    return {
        "member": kill.member,
        "at_s": round(kill.at_s, 1),
        "queues": [],
        "in_flight": validated["redelivered"],
        "repeated": validated["duplicated"],
        "first_delivery_elsewhere_us": None,
    }
