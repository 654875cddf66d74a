"""The demo's report: what the validator saw, told apart by what the script did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from lbg.demo.cast import Kill
from lbg.moving import Pauses
from lbg_broker.group import UNCOUNTED_MODES


def is_crash(move: Mapping[str, Any], kill: Kill, moves: Sequence[Mapping[str, Any]]) -> bool:
    """Whether `move` is away from the member that `kill` killed, before that one held a queue again."""
    if move["was_name"] != kill.member or move["at_us"] < kill.at_us:
        return False
    returns = [
        other["at_us"] for other in moves if other["now_name"] == kill.member and other["at_us"] > kill.at_us
    ]
    return not returns or bool(move["at_us"] < min(returns))


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
    repeated_after_moves = sum(move["repeated"] for move in moves)
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
        "repeated_on_planned_moves": sum(move["repeated"] for move in planned),
        "repeated_after_kills": sum(move["repeated"] for move in unplanned)
        if has_moves
        else validated["duplicated"],
        "repeated_otherwise": validated["duplicated"] - repeated_after_moves if has_moves else 0,
        "handoffs": {"planned": _handoffs(planned), "crash": _handoffs(unplanned)},
        "kills": [_kill(kill, some) for kill, some in zip(kills, by_kill, strict=True)]
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
        "pause": asdict(Pauses.of([move["pause_us"] for move in moves])),
        "held": asdict(Pauses.of([move["waited_us"] for move in moves])),
    }


def _kill(kill: Kill, moves: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`in_flight`: what the dead member held by the broker's count, that is, what it gave to others again."""
    return {
        "member": kill.member,
        "at_s": round(kill.at_s, 1),
        "queues": [move["queue"] for move in moves],
        "in_flight": sum(move["redelivered"] for move in moves),
        "repeated": sum(move["repeated"] for move in moves),
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
