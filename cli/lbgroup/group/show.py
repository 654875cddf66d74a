"""`lbg group show` and `list`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from lbg_broker.admin.describe import (
    Description,
    MemberLine,
    PartitionLine,
    QueueLine,
    partitions_of,
    rebalance_of,
)
from lbg_broker.admin.snapshot import (
    UNKNOWN,
    MessageGroupsStatus,
    PartitionsStatus,
    SessionsStatus,
    SessionStatus,
)
from lbg_broker.group import PARTITIONED, UNCOUNTED_MODES, GroupSpec
from lbg_broker.text_table import text_table
from lbgroup.group.create import with_admin
from lbgroup.options import broker_options, count_text, counted

if TYPE_CHECKING:
    from lbg_broker.client import BrokerAddress


SESSIONS_SHOWN_MAX = 50


def sharing_lines(shown: Description) -> Iterator[str]:
    """None for mode Exclusive, where the queues say it all."""
    if shown.spec is not None and shown.spec.mode == PARTITIONED:
        yield from _partition_lines(shown)
    match shown.native:
        case MessageGroupsStatus(known, busy):
            yield f"{counted(known, 'message group')}, {busy} of them at a consumer now"
        case SessionsStatus() as seen:
            yield f"{'closed: publishers are refused' if seen.closed else 'open'}, {waiting_line(seen)}"
            yield from session_table(shown, seen.sessions)
            yield from stranded_lines(seen)


def waiting_line(seen: SessionsStatus) -> str:
    return f"{counted(seen.pool, 'message')} without a session yet"


def session_table(shown: Description, sessions: Sequence[SessionStatus]) -> Iterator[str]:
    """Those first that need somebody to look after them."""
    if not sessions:
        return
    in_order = sorted(sessions, key=lambda one: one.consumer_tag is not None or not one.messages)
    yield from text_table(
        ("SESSION", "STATE", "MEMBER", "ASSIGNED", "ACKNOWLEDGED", "MESSAGES", "AWAY SINCE"),
        [_session_row(shown, one) for one in in_order[:SESSIONS_SHOWN_MAX]],
    )
    if (more := len(in_order) - SESSIONS_SHOWN_MAX) > 0:
        yield f"and {more} more: --json has them all"


def stranded_lines(seen: SessionsStatus) -> Iterator[str]:
    if stranded := seen.stranded:
        messages = sum(one.messages for one in stranded)
        who = counted(len(stranded), "session")
        verb = "has" if len(stranded) == 1 else "have"
        yield f"! {who} {verb} no consumer: only one of the same name gets the {counted(messages, 'message')} there"


def _partition_lines(shown: Description) -> Iterator[str]:
    told = f"partitions {rebalance_of(shown)}"
    if isinstance(native := shown.native, PartitionsStatus):
        told += f", ingress {'open' if native.ingress else 'closed: publishers are refused'}"
        told += f", {counted(native.handoffs, 'handoff')}"
        if native.forced:
            told += f" ({native.forced} forced, {counted(native.messages_forced, 'message')} delivered again)"
    yield told
    partitions = partitions_of(shown)
    if partitions is UNKNOWN:
        yield "unknown: only the management API tells"
        return
    yield from text_table(
        ("PARTITION", "STATUS", "MEMBER", "READY", "UNACKED"), [_partition_row(one) for one in partitions]
    )


def _partition_row(line: PartitionLine) -> tuple[str, ...]:
    who = line.member.name if line.member is not None else line.consumer
    return (str(line.number), line.status, who or "-", count_text(line.ready), count_text(line.unacked))


def _session_row(shown: Description, one: SessionStatus) -> tuple[str, ...]:
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


def leftover_lines(left: Description, *, session: str | None) -> Iterator[str]:
    seen = left.native
    if not isinstance(seen, SessionsStatus):
        yield f"group {left.group} is closed; what is left of it could not be seen"
        return
    if session is not None:
        yield f"session {session} of group {left.group} gets no new messages"
        sessions = tuple(one for one in seen.sessions if one.session == session)
    else:
        yield f"group {left.group} is closed: publishers are refused"
        sessions = seen.sessions
    undrained = tuple(one for one in sessions if one.messages)
    if session is None and seen.pool:
        yield waiting_line(seen)
    if undrained:
        messages = counted(sum(one.messages for one in undrained), "message")
        yield f"{counted(len(undrained), 'session')} with {messages} to go (an End-of-Session counts)"
        yield from session_table(left, undrained)
        yield from stranded_lines(SessionsStatus(seen.closed, seen.pool, undrained))
    elif session is not None or not seen.pool:
        yield "nothing is left to deliver"


def description_lines(shown: Description) -> Iterator[str]:
    """All that `lbg group show` says."""
    yield f"group {shown.group}"
    if shown.spec is not None:
        spec = shown.spec
        yield f"  prefix {spec.hash_prefix!r}, {spec.hash_count} hashes by {spec.hash_function}, mode {spec.mode}"
        yield (
            f"  {room_text(spec, is_one_queue=shown.is_one_queue)}, at most {spec.max_clients} members, "
            f"user {spec.client_username}"
        )
        if spec.mode == PARTITIONED:
            yield f"  rebalance delay {spec.rebalance_delay_s:g} s, handoffs within {spec.max_handoff_s:g} s"
    yield f"  dead letters {count_text(shown.dead_letters)}, unrouted {count_text(shown.unrouted)}"
    yield ""
    yield from text_table(
        ("QUEUE", "READY", "UNACKED", "CONSUMERS", "ACTIVE", "PROGRESS"),
        [_queue_row(shown, line) for line in shown.queues],
    )
    yield ""
    if sharing := list(sharing_lines(shown)):
        yield from (*sharing, "")
    yield from _member_lines(shown)
    if shown.problems:
        yield ""
        yield from (f"! {problem}" for problem in shown.problems)


def room_text(spec: GroupSpec, *, is_one_queue: bool) -> str:
    """Number of queues or partitions, and their size."""
    if spec.mode in UNCOUNTED_MODES:
        return f"one queue of {spec.queue_size_mb} MB"
    if is_one_queue:
        return f"{spec.queue_count} partitions in one queue of {spec.queue_count * spec.queue_size_mb} MB"
    return f"{spec.queue_count} queues of {spec.queue_size_mb} MB"


def list_lines(found: Sequence[Description]) -> Iterator[str]:
    """Lines of `lbg group list`."""
    yield from text_table(
        ("GROUP", "MODE", "PREFIX", "HASHES", "QUEUES", "READY", "DEAD"), [_list_row(one) for one in found]
    )


def _list_row(one: Description) -> tuple[str, ...]:
    spec = one.spec
    attributes = (
        (spec.mode, spec.hash_prefix, str(spec.hash_count), str(spec.queue_count))
        if spec
        else ("no readable record", "", "", "")
    )
    return (one.group, *attributes, count_text(one.ready), count_text(one.dead_letters))


def _queue_row(shown: Description, line: QueueLine) -> tuple[str, ...]:
    if line.seen is None:
        return (line.name, "missing", "", "", "", "")
    member = shown.active_member(line.number) if line.number is not None else None
    active = "-" if shown.is_one_queue else member.name if member else _active_tag(line)
    # Members that consume one queue say of it what others say of queue 0.
    progress = shown.progress(line.number or 0)
    counts = (count_text(line.count(name)) for name in ("ready", "unacked", "consumers"))
    return (line.name, *counts, active, progress or "-")


def _active_tag(line: QueueLine) -> str:
    if line.seen is None or line.seen is UNKNOWN or line.seen.active_consumer is UNKNOWN:
        return "unknown"
    return line.seen.active_consumer or "-"


def _member_lines(shown: Description) -> Iterator[str]:
    if shown.members is UNKNOWN:
        yield "members unknown"
    elif not shown.members:
        yield "no member answered"
    elif shown.is_one_queue:
        yield from text_table(
            ("MEMBER", "INDEX", "IN FLIGHT", "DELIVERED"),
            [(one.name, str(one.index), *_work_of(one)) for one in shown.members],
        )
    else:
        yield from text_table(
            ("MEMBER", "INDEX", "STATE", "PRIMARY", "SECONDARY", "IN FLIGHT", "DELIVERED"),
            [_member_row(member) for member in shown.members],
        )


def _work_of(member: MemberLine) -> tuple[str, str]:
    in_flight = sum(one.in_flight for one in member.queues)
    return str(in_flight), str(member.counts.get("delivered", "unknown"))


def _member_row(member: MemberLine) -> tuple[str, ...]:
    primary = [one for one in member.queues if one.role == "primary"]
    secondary = [one for one in member.queues if one.role != "primary"]
    return (
        member.name,
        str(member.index),
        member.rebalance,
        _queues(one.queue if not one.active else f"{one.queue}*" for one in primary),
        _queues(one.queue if not one.active else f"{one.queue}*" for one in secondary),
        *_work_of(member),
    )


def _queues(numbers: Iterator[object]) -> str:
    return " ".join(map(str, numbers)) or "-"


@click.command(epilog="Example: lbg group show orders --json | jq .ready")
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help='One JSON object; what could not be read is "unknown".')
@broker_options(login=True, management=True)
def show(name: str, address: BrokerAddress, as_json: bool) -> None:
    """Show group NAME: its attributes, its queues with what waits in them, its members and what they serve."""
    from lbg_broker.admin.groups import show_group

    shown = with_admin(address, lambda admin: show_group(admin, name))
    if as_json:
        click.echo(json.dumps(shown.to_json(), indent=2))
    else:
        click.echo("\n".join(description_lines(shown)))


@click.command(name="list", epilog="Example: lbg group list")
@click.option("--json", "as_json", is_flag=True, help="A JSON array of what `show --json` gives.")
@broker_options(login=True, management=True)
def list_(address: BrokerAddress, as_json: bool) -> None:
    """List every group of the broker, found by the groups' records."""
    from lbg_broker.admin.groups import list_groups

    found = with_admin(address, list_groups)
    if as_json:
        click.echo(json.dumps([one.to_json() for one in found], indent=2))
    elif found:
        click.echo("\n".join(list_lines(found)))
    else:
        click.echo("no groups", err=True)
