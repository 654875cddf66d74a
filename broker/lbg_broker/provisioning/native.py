"""What the embedded broker says of a queue of a kind of its own, beyond what RabbitMQ's API has: see
docs/embedded-broker.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

COLUMNS = "rebalance_status,ingress,handoffs,partitions,message_groups,closed,pool,sessions"

LIVE, AWAY, STRANDED, CLOSING = "live", "away", "stranded", "closing"


@dataclass(frozen=True, slots=True)
class PartitionSeen:
    """`status` is Ready, Paused, Unassigned or Unbound, `consumer_tag` that of the consumer that has it or, where it is
    Unbound, had it; None where nobody did."""

    partition: int
    status: str
    consumer_tag: str | None
    ready: int
    unacked: int

    @property
    def is_served(self) -> bool:
        return self.status in ("Ready", "Paused")


@dataclass(frozen=True, slots=True)
class PartitionsSeen:
    """`rebalance` is Ready, HoldDown or Rebalancing; `ingress` whether publishers are let in. Of the `handoffs`, so
    many were `forced`, and `messages_forced` were delivered again for it."""

    rebalance: str
    ingress: bool
    handoffs: int
    forced: int
    messages_forced: int
    partitions: tuple[PartitionSeen, ...]


@dataclass(frozen=True, slots=True)
class MessageGroupsSeen:
    """How many groups have messages or a consumer; how many are at one now."""

    known: int
    busy: int


@dataclass(frozen=True, slots=True)
class SessionSeen:
    """`state` is live, away, stranded (away, with messages) or closing. `assigned` is the last sequence that was given
    out, `acknowledged` the highest with all before it. `away_since_s` counts from the epoch."""

    session: str
    state: str
    consumer_tag: str | None
    assigned: int
    acknowledged: int
    messages: int
    away_since_s: float | None


@dataclass(frozen=True, slots=True)
class SessionsSeen:
    """`pool`: messages that no session has yet."""

    closed: bool
    pool: int
    sessions: tuple[SessionSeen, ...]

    @property
    def stranded(self) -> tuple[SessionSeen, ...]:
        """Those with messages and no consumer, closing ones too: nobody else gets these messages."""
        return tuple(one for one in self.sessions if one.messages and one.consumer_tag is None)


Native: TypeAlias = PartitionsSeen | MessageGroupsSeen | SessionsSeen


def native_of(found: Mapping[str, Any]) -> Native | None:
    """From a queue's JSON; None for a queue of no such kind."""
    if "partitions" in found:
        handoffs = found["handoffs"]
        return PartitionsSeen(
            rebalance=str(found["rebalance_status"]),
            ingress=bool(found["ingress"]),
            handoffs=int(handoffs["total"]),
            forced=int(handoffs["forced"]),
            messages_forced=int(handoffs["messages_forced"]),
            partitions=tuple(map(_partition, found["partitions"])),
        )
    if "message_groups" in found:
        return MessageGroupsSeen(int(found["message_groups"]["known"]), int(found["message_groups"]["busy"]))
    if "sessions" in found:
        return SessionsSeen(
            bool(found["closed"]), int(found["pool"]), tuple(map(_session, found["sessions"]))
        )
    return None


def native_json(native: Native) -> dict[str, Any]:
    """As the broker says it, for `--json`."""
    match native:
        case PartitionsSeen():
            return {
                "rebalance_status": native.rebalance,
                "ingress": native.ingress,
                "handoffs": {
                    "total": native.handoffs,
                    "forced": native.forced,
                    "messages_forced": native.messages_forced,
                },
            }
        case MessageGroupsSeen():
            return {"message_groups": {"known": native.known, "busy": native.busy}}
        case SessionsSeen():
            return {
                "closed": native.closed,
                "pool": native.pool,
                "sessions": [
                    {
                        "session": one.session,
                        "state": one.state,
                        "consumer_tag": one.consumer_tag,
                        "last_sequence": one.assigned,
                        "acknowledged": one.acknowledged,
                        "messages": one.messages,
                        "away_since": one.away_since_s,
                    }
                    for one in native.sessions
                ],
            }


def _partition(found: Mapping[str, Any]) -> PartitionSeen:
    return PartitionSeen(
        partition=int(found["partition"]),
        status=str(found["status"]),
        consumer_tag=found["consumer_tag"],
        ready=int(found["messages_ready"]),
        unacked=int(found["messages_unacknowledged"]),
    )


def _session(found: Mapping[str, Any]) -> SessionSeen:
    away_since = found["away_since"]
    return SessionSeen(
        session=str(found["session"]),
        state=str(found["state"]),
        consumer_tag=found["consumer_tag"],
        assigned=int(found["last_sequence"]),
        acknowledged=int(found["acknowledged"]),
        messages=int(found["messages"]),
        away_since_s=None if away_since is None else float(away_since),
    )
