"""How the broker shares a group's one queue out, as lines of text: partitions, message groups, sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from lbg.group.counting import count_text, counted
from lbg.tables import table
from lbg_broker.group import PARTITIONED
from lbg_broker.provisioning.describing import Description
from lbg_broker.provisioning.native import (
    MessageGroupsSeen,
    PartitionsSeen,
    SessionSeen,
    SessionsSeen,
)
from lbg_broker.provisioning.observed import UNKNOWN
from lbg_broker.provisioning.statuses import PartitionLine, partitions_of, rebalance_of

SESSIONS_SHOWN_MAX = 50


def sharing_lines(shown: Description) -> Iterator[str]:
    """None for mode Exclusive, where the queues say it all."""
    if shown.spec is not None and shown.spec.mode == PARTITIONED:
        yield from _partition_lines(shown)
    match shown.native:
        case MessageGroupsSeen(known, busy):
            yield f"{counted(known, 'message group')}, {busy} of them at a consumer now"
        case SessionsSeen() as seen:
            yield f"{'closed: publishers are refused' if seen.closed else 'open'}, {waiting_line(seen)}"
            yield from session_table(shown, seen.sessions)
            yield from stranded_lines(seen)


def waiting_line(seen: SessionsSeen) -> str:
    return f"{counted(seen.pool, 'message')} without a session yet"


def session_table(shown: Description, sessions: Sequence[SessionSeen]) -> Iterator[str]:
    """Those first that need somebody to look after them."""
    if not sessions:
        return
    in_order = sorted(sessions, key=lambda one: one.consumer_tag is not None or not one.messages)
    yield from table(
        ("SESSION", "STATE", "MEMBER", "ASSIGNED", "ACKNOWLEDGED", "MESSAGES", "AWAY SINCE"),
        [_session_row(shown, one) for one in in_order[:SESSIONS_SHOWN_MAX]],
    )
    if (more := len(in_order) - SESSIONS_SHOWN_MAX) > 0:
        yield f"and {more} more: --json has them all"


def stranded_lines(seen: SessionsSeen) -> Iterator[str]:
    if stranded := seen.stranded:
        messages = sum(one.messages for one in stranded)
        who = counted(len(stranded), "session")
        verb = "has" if len(stranded) == 1 else "have"
        yield f"! {who} {verb} no consumer: only one of the same name gets the {counted(messages, 'message')} there"


def _partition_lines(shown: Description) -> Iterator[str]:
    told = f"partitions {rebalance_of(shown)}"
    if isinstance(native := shown.native, PartitionsSeen):
        told += f", ingress {'open' if native.ingress else 'closed: publishers are refused'}"
        told += f", {counted(native.handoffs, 'handoff')}"
        if native.forced:
            told += f" ({native.forced} forced, {counted(native.messages_forced, 'message')} delivered again)"
    yield told
    partitions = partitions_of(shown)
    if partitions is UNKNOWN:
        yield "unknown: only the management API tells"
        return
    yield from table(
        ("PARTITION", "STATUS", "MEMBER", "READY", "UNACKED"), [_partition_row(one) for one in partitions]
    )


def _partition_row(line: PartitionLine) -> tuple[str, ...]:
    who = line.member.name if line.member is not None else line.consumer
    return (str(line.number), line.status, who or "-", count_text(line.ready), count_text(line.unacked))


def _session_row(shown: Description, one: SessionSeen) -> tuple[str, ...]:
    member = shown.member_of(one.consumer_tag)
    away = one.away_since_s
    return (
        one.session,
        one.state,
        (member.name if member is not None else one.consumer_tag) or "-",
        str(one.assigned),
        str(one.acknowledged),
        str(one.messages),
        "-" if away is None else f"{datetime.fromtimestamp(away, UTC):%Y-%m-%dT%H:%M:%SZ}",
    )
