"""Report of the demo: the validator's findings, and the script's part in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lbg_core.group import PARTITIONED, UNCOUNTED_MODES
from lbg_core.group.order_checker import Kind
from lbgroup.validate.validator import MovePauses

Moves = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL, in seconds of the demo and in wall-clock time."""

    member: str
    at_s: float
    at_us: int


def is_crash(move: Mapping[str, Any], kill: Kill, moves: Moves) -> bool:
    """True if `move` is away from the member that `kill` killed, before that one held a queue again."""
    return move["was_name"] == kill.member and _is_dead(kill, move["at_us"], moves)


def _is_dead(kill: Kill, at_us: int, moves: Moves) -> bool:
    """True if the member that `kill` killed holds no queue since then."""
    returns = [
        move["at_us"] for move in moves if move["now_name"] == kill.member and move["at_us"] > kill.at_us
    ]
    return kill.at_us <= at_us and (not returns or at_us < min(returns))


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
    planned = [move for move in moves if not any(is_crash(move, kill, moves) for kill in kills)]
    crashed = [move for some in by_kill for move in some]
    kill_reports = [
        _kill(kill, some, validated, has_moves=has_moves) for kill, some in zip(kills, by_kill, strict=True)
    ]
    on_planned_moves = sum(move["repeated"] for move in planned)
    after_kills = sum(one["repeated"] for one in kill_reports) if has_moves else validated["duplicated"]
    return {
        "ok": bool(validated["ok"]),
        "mode": validated["mode"],
        **source,
        "seconds": round(seconds, 1),
        "published": published["published"],
        **{name: validated[name] for name in ("delivered", "distinct", "lost", "duplicated", "order_errors")},
        "repeated_on_planned_moves": on_planned_moves,
        "repeated_after_kills": after_kills,
        "repeated_otherwise": validated["duplicated"] - on_planned_moves - after_kills if has_moves else 0,
        "handoffs": {"planned": _handoffs(planned), "crash": _handoffs(crashed)},
        "kills": kill_reports,
        "publisher": {
            name: published.get(name) for name in ("refused", "resends", "maybe_twice", "messages_per_s")
        },
        "sessions": validated.get("sessions"),
        **{
            name: validated[name]
            for name in ("per_queue", "per_member", "moves", "sequence_errors", "lost_ranges")
        },
    }


def _handoffs(moves: Moves) -> dict[str, Any]:
    """`pause`: last delivery there to first delivery here; `held`: how long the first message waited."""
    return {
        "count": len(moves),
        "pause": asdict(MovePauses.of([move["pause_us"] for move in moves])),
        "held": asdict(MovePauses.of([move["waited_us"] for move in moves])),
    }


def _kill(kill: Kill, moves: Moves, validated: Mapping[str, Any], *, has_moves: bool) -> dict[str, Any]:
    """`in_flight`: messages of the dead member by the broker's count, which it redelivered to others. In modes
    without a queue per member, every redelivery is due to the kill."""
    without_key = _repeated_without_key(validated, kill)
    in_flight = sum(move["redelivered"] for move in moves) + without_key
    repeated = sum(move["repeated"] for move in moves) + without_key
    return {
        "member": kill.member,
        "at_s": round(kill.at_s, 1),
        "queues": [move["queue"] for move in moves],
        "in_flight": in_flight if has_moves else validated["redelivered"],
        "repeated": repeated if has_moves else validated["duplicated"],
        "first_delivery_elsewhere_us": max((move["at_us"] - kill.at_us for move in moves), default=None),
    }


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
