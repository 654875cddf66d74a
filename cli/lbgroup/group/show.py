"""`lbg group show` and `list`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from lbg_core.admin.demand import sample_of, sizer_of, sizing_json, sizing_text
from lbg_core.admin.describe import Description
from lbg_core.admin.observations import GroupRow, Observations
from lbg_core.admin.pace_text import PACE_HEADER, flow_text, key_text, pace_cells, slow_text
from lbg_core.admin.problems import marked_lines
from lbg_core.admin.record import is_of_kubernetes, owner_text
from lbg_core.admin.rows import QueueRow, ServiceRow
from lbg_core.admin.snapshot import (
    UNKNOWN,
    MessageGroupsStatus,
    PartitionsStatus,
    SessionsStatus,
    SessionStatus,
    native_json,
)
from lbg_core.command_output import echo_json, output_option, text_table
from lbg_core.counted_nouns import counted
from lbg_core.group import ATTRIBUTES, UNCOUNTED_MODES, GroupSpec
from lbg_core.group.member_state import QueueState
from lbg_core.group.members_protocol import Beat
from lbg_core.group.pace import HotKey
from lbg_core.group.sizing import Sizing
from lbg_core.peers import printable
from lbgroup.group.create import with_admin
from lbgroup.options import broker_options, count_text

if TYPE_CHECKING:
    from lbg_core.admin.live import LiveAdmin
    from lbg_core.client import BrokerAddress
    from lbgroup import documents


SESSIONS_SHOWN_MAX = 50

WATCH_EVERY_S = 2.0
"""Between two times of `--watch`, as `watch` of Linux has it."""

MEASURED_S = 5.0
"""Between the two looks by which the demand is measured."""

CLEARED_SCREEN = "\x1b[H\x1b[2J\x1b[3J"
"""Cursor to the first place, the screen erased, and what scrolled off it (ECMA-48)."""


def sharing_lines(shown: Description) -> Iterator[str]:
    """None in mode Exclusive, where the queues show it all."""
    if shown.has_partitions:
        yield from _partition_lines(shown)
    if isinstance(shown.native, MessageGroupsStatus):
        yield shown.native.text
    if (sessions := shown.sessions) is not None:
        state = "closed: publishers are refused" if sessions.closed else "open"
        yield f"{state}, {pool_line(sessions)}"
        yield from session_table(shown, sessions)


def pool_line(sessions: SessionsStatus) -> str:
    return f"{counted(sessions.pool, 'message')} without a session yet"


def session_table(shown: Description, sessions: SessionsStatus) -> Iterator[str]:
    """Dead letters and stranded sessions first, which need an operator."""
    if not sessions.sessions:
        return
    yield from text_table(
        ("SESSION", "STATE", "MEMBER", "ASSIGNED", "ACKNOWLEDGED", "MESSAGES", "AWAY SINCE"),
        [
            _session_row(one, shown.server_of(one.consumer_tag))
            for one in sessions.stranded_first[:SESSIONS_SHOWN_MAX]
        ],
    )
    if (more := len(sessions.sessions) - SESSIONS_SHOWN_MAX) > 0:
        yield f"and {more} more: --json has them all"


def stranded_lines(sessions: SessionsStatus) -> Iterator[str]:
    if stranded := sessions.stranded:
        messages = sum(one.messages for one in stranded)
        subject = counted(len(stranded), "session")
        verb = "has" if len(stranded) == 1 else "have"
        yield f"! {subject} {verb} no consumer: only one of the same name gets the {counted(messages, 'message')} there"


def _partition_lines(shown: Description) -> Iterator[str]:
    line = f"partitions {shown.rebalance}"
    if isinstance(native := shown.native, PartitionsStatus):
        line += f", ingress {'open' if native.ingress else 'closed: publishers are refused'}"
        handoffs = native.handoffs
        line += f", {counted(handoffs.total, 'handoff')}"
        if handoffs.forced:
            line += (
                f" ({handoffs.forced} forced, {counted(handoffs.messages_forced, 'message')} delivered again)"
            )
    yield line
    if shown.services is UNKNOWN:
        yield "unknown: only the management API tells"
        return
    yield from text_table(
        ("PARTITION", "STATUS", "MEMBER", "READY", "UNACKED"), [_partition_row(one) for one in shown.services]
    )


def _partition_row(row: ServiceRow) -> tuple[str, ...]:
    return (str(row.number), row.status, row.server or "-", count_text(row.ready), count_text(row.unacked))


def _session_row(session: SessionStatus, server: str | None) -> tuple[str, ...]:
    away = session.away_since
    return (
        session.session,
        session.state,
        server or "-",
        str(session.last_sequence),
        str(session.acknowledged),
        str(session.messages),
        "-" if away is None else f"{datetime.fromtimestamp(away, UTC):%Y-%m-%dT%H:%M:%SZ}",
    )


def leftover_lines(left: Description, *, session: str | None) -> Iterator[str]:
    sessions = left.sessions
    if sessions is None:
        yield f"group {left.group} is closed; what is left of it could not be seen"
        return
    if session is not None:
        yield f"session {session} of group {left.group} gets no new messages"
    else:
        yield f"group {left.group} is closed: publishers are refused"
        if sessions.pool:
            yield pool_line(sessions)
    if (undrained := sessions.undrained(session)).sessions:
        messages = counted(undrained.messages, "message")
        yield f"{counted(len(undrained.sessions), 'session')} with {messages} to go (an End-of-Session counts)"
        yield from session_table(left, undrained)
        yield from stranded_lines(undrained)
    elif session is not None or not sessions.pool:
        yield "nothing is left to deliver"


def leftover_document(left: Description, *, session: str | None) -> documents.Closed:
    document: documents.Closed = {
        "group": left.group,
        "action": "closed" if session is None else "session_closed",
        "session": session,
        "pool": "unknown",
        "sessions": "unknown",
    }
    if (sessions := left.sessions) is not None:
        document["pool"] = sessions.pool
        document["sessions"] = native_json(sessions.undrained(session))["sessions"]
    return document


def description_lines(
    shown: Description, row: GroupRow | None = None, hot_keys: Sequence[HotKey] | None = None
) -> Iterator[str]:
    """Lines of `lbg group show`. `row`: what several looks measured of the group; `hot_keys`: with their rates."""
    yield f"group {shown.group}"
    if shown.spec is not None:
        spec = shown.spec
        yield (
            f"  prefix {spec.hash_prefix!r}, {counted(spec.hash_count, 'hash', 'hashes')} by {spec.hash_function}, "
            f"mode {spec.mode}"
        )
        yield (
            f"  {room_text(spec, is_one_queue=shown.is_one_queue)}, at most {counted(spec.max_clients, 'member')}, "
            f"user {spec.client_username}"
        )
        if further := [
            one.shown.format(value)
            for name, one in ATTRIBUTES.items()
            if one.shown and one.counts_in(spec.mode) and (value := getattr(spec, name)) is not None
        ]:
            yield f"  {', '.join(further)}"
    if username := shown.publishers.username:
        members = ", and members may publish too" if shown.publishers.members_publish else ""
        yield f"  publishers: user {username}{members}"
    yield f"  owner: {owner_text(shown.owner)}"
    if shown.is_paused:
        yield f"  paused: members start no new call until `lbg group resume {shown.group}`"
    if shown.is_ingress_paused:
        yield f"  ingress paused: publishers wait until `lbg group resume {shown.group} --ingress`"
    parked = "" if shown.parked is None else f", parked {count_text(shown.parked)}"
    yield f"  dead letters {count_text(shown.dead_letters)}, unrouted {count_text(shown.unrouted)}{parked}"
    if shown.sequences_text:
        yield f"  {shown.sequences_text}"
    if row is not None:
        yield f"  {flow_text(row.published_hz, row.rate, row.lag_per_min, row.clears_s)}"
    elif shown.finished_hz is not None:
        yield f"  {flow_text(None, shown.finished_hz, None)}: `lbg top {shown.group}` measures it"
    yield ""
    yield from text_table(
        ("QUEUE", "READY", "UNACKED", "CONSUMERS", "ACTIVE", "PROGRESS"),
        [_queue_row(row) for row in shown.queue_rows],
    )
    if shown.leaders:
        yield f"leaders: {', '.join(f'{node} {count}' for node, count in shown.leaders.items())}"
    yield ""
    if sharing := list(sharing_lines(shown)):
        yield from (*sharing, "")
    yield from _member_lines(shown)
    if hot := shown.hot_keys if hot_keys is None else hot_keys:
        yield ""
        yield from text_table(("HOTTEST KEY", ""), [(printable(one.key), key_text(one)) for one in hot])
    if shown.problems:
        yield ""
        yield from (line for _, line in marked_lines(shown.problems))


def room_text(spec: GroupSpec, *, is_one_queue: bool) -> str:
    """Number of queues or partitions, and their size."""
    if spec.mode in UNCOUNTED_MODES:
        return f"one queue of {spec.queue_size_mb} MB"
    if is_one_queue:
        return f"{counted(spec.queue_count, 'partition')} in one queue of {spec.queue_count * spec.queue_size_mb} MB"
    return f"{counted(spec.queue_count, 'queue')} of {spec.queue_size_mb} MB"


def list_lines(groups: Sequence[Description]) -> Iterator[str]:
    """Lines of `lbg group list`."""
    yield from text_table(
        ("GROUP", "MODE", "PREFIX", "HASHES", "QUEUES", "READY", "DEAD", "OWNER"),
        [_list_row(one) for one in groups],
    )


def _list_row(one: Description) -> tuple[str, ...]:
    spec = one.spec
    attributes = (
        (spec.mode, spec.hash_prefix, str(spec.hash_count), str(spec.queue_count))
        if spec
        else ("no readable record", "", "", "")
    )
    owner = "Kubernetes" if is_of_kubernetes(one.owner) else owner_text(one.owner)
    return (one.group, *attributes, count_text(one.ready), count_text(one.dead_letters), owner)


def _queue_row(row: QueueRow) -> tuple[str, ...]:
    if row.is_missing:
        return (row.queue.name, "missing", "", "", "", "")
    counts = (count_text(row.queue.count(name)) for name in ("ready", "unacked", "consumers"))
    server = "unknown" if row.server is UNKNOWN else row.server or "-"
    is_idle = row.server is None or row.queue.count("consumers") == 0
    progress = row.progress or ("-" if is_idle else "unknown")
    return (row.queue.name, *counts, server, progress)


def _member_lines(shown: Description) -> Iterator[str]:
    if shown.members is UNKNOWN:
        yield "members unknown"
    elif not shown.members:
        yield "no member answered"
    elif shown.is_one_queue:
        yield from text_table(
            ("MEMBER", "INDEX", "IN FLIGHT", "DELIVERED", *PACE_HEADER),
            [(one.name, str(one.index), *_work_of(one)) for one in shown.members],
        )
    else:
        yield from text_table(
            ("MEMBER", "INDEX", "STATE", "PRIMARY", "SECONDARY", "IN FLIGHT", "DELIVERED", *PACE_HEADER),
            [_member_row(member, shown.served_by[member.index]) for member in shown.members],
        )
        if any(shown.served_by.values()):
            yield "* the member serves this queue now"
        for name in shown.standing_by:
            queues = counted(len(shown.reported_services), "queue")
            yield f"{name} is standing by: {queues}, {counted(shown.active_count, 'member')} at work"
    for name, slow in shown.slow_members.items():
        yield f"{name} is slow: half of its calls take {slow_text(slow)}"


def _work_of(member: Beat) -> tuple[str, ...]:
    delivered = count_text(member.counts.get("delivered", UNKNOWN))
    return (str(member.in_flight), delivered, *pace_cells(member.pace))


def _member_row(member: Beat, served: Collection[int]) -> tuple[str, ...]:
    return (
        member.name,
        str(member.index),
        member.rebalance,
        _numbers(member.primaries, served),
        _numbers(member.secondaries, served),
        *_work_of(member),
    )


def _numbers(queues: Sequence[QueueState], served: Collection[int]) -> str:
    """Those that the member serves have a star."""
    return " ".join(f"{one.queue}{'*' if one.queue in served else ''}" for one in queues) or "-"


@click.command(epilog="Example: lbg group show orders --watch")
@click.argument("name")
@output_option('one object; what could not be read is "unknown".', has_flag=True)
@click.option(
    "--watch",
    "every_s",
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=WATCH_EVERY_S,
    metavar="[SECONDS]",
    help=f"Show it again, {WATCH_EVERY_S:g} or SECONDS seconds after each time, until Ctrl-C; with --output json a "
    "line for each time.",
)
@click.option(
    "--target-delay",
    "target_delay_s",
    type=click.FloatRange(min=0.1),
    metavar="SECONDS",
    help=f"Measure for {MEASURED_S:g} s, and show how many members the group needs so that a new message waits at "
    "most so long.",
)
@broker_options(login=True, management=True)
def show(
    name: str, address: BrokerAddress, as_json: bool, every_s: float | None, target_delay_s: float | None
) -> None:
    """Show group NAME: its attributes, its queues with their messages, its members and what they serve."""
    from lbg_core.admin.groups import show_group

    if every_s is not None and target_delay_s is not None:
        raise click.UsageError("--target-delay measures once: leave out --watch")

    async def work(admin: LiveAdmin) -> None:
        if every_s is not None:
            await _watch(admin, name, every_s, as_json=as_json)
            return
        shown = await show_group(admin, name)
        document, lines = shown.to_json(), [*description_lines(shown)]
        if target_delay_s is not None:
            row, sizing = await _measured(admin, shown, target_delay_s)
            document = {**row.to_json(), "demand": None if sizing is None else sizing_json(sizing)}
            demand = "demand unknown" if sizing is None else sizing_text(sizing, target_delay_s)
            lines = [*description_lines(row.description, row), "", demand]
        if as_json:
            echo_json(document)
        else:
            click.echo("\n".join(lines))

    with_admin(address, work)


async def _measured(
    admin: LiveAdmin, first: Description, target_delay_s: float
) -> tuple[GroupRow, Sizing | None]:
    """A second look, and the demand by both; None where it is unknown."""
    from lbg_core.admin.groups import show_group

    sizer, seen = sizer_of(first.spec, target_delay_s), Observations()
    first_sample = sample_of(first, time.monotonic())
    seen.look([first], time.monotonic(), now_us=time.time_ns() // 1000)
    await asyncio.sleep(MEASURED_S)
    shown = await show_group(admin, first.group)
    last_sample = sample_of(shown, time.monotonic())
    seen.look([shown], time.monotonic(), now_us=time.time_ns() // 1000)
    if first_sample is None or last_sample is None:
        return seen.rows[0], None
    sizer.add(first_sample)
    sizer.add(last_sample)
    return seen.rows[0], sizer.sizing()


async def _watch(admin: LiveAdmin, name: str, every_s: float, *, as_json: bool) -> None:
    """Shows the group until it is deleted: a broker that cannot be reached is reported, and tried again."""
    from lbg_core.admin.errors import RecordUnavailable, Unreachable
    from lbg_core.admin.groups import show_group

    is_screen = sys.stdout.isatty() and not as_json
    is_shown = False
    seen = Observations()
    while True:
        try:
            shown = await show_group(admin, name)
        except (Unreachable, RecordUnavailable) as error:
            if not is_shown:
                raise
            click.echo(f"lbg: {error}; trying again", err=True)
        else:
            is_shown = True
            seen.look([shown], time.monotonic(), now_us=time.time_ns() // 1000)
            (row,) = seen.rows
            if as_json:
                text = json.dumps(row.to_json())
            else:
                text = "\n".join((f"{datetime.now().astimezone():%H:%M:%S}", *description_lines(shown, row)))
            click.echo(f"{CLEARED_SCREEN}{text}" if is_screen else text if as_json else f"{text}\n")
            sys.stdout.flush()
        await asyncio.sleep(every_s)


@click.command(name="list", epilog="Example: lbg group list")
@output_option("an array of objects as `lbg group show` has them.", has_flag=True)
@broker_options(login=True, management=True)
def list_(address: BrokerAddress, as_json: bool) -> None:
    """List the groups of a broker, by their records."""
    from lbg_core.admin.groups import list_groups

    groups = with_admin(address, list_groups)
    if as_json:
        echo_json([one.to_json() for one in groups])
    elif groups:
        click.echo("\n".join(list_lines(groups)))
    else:
        click.echo("no groups", err=True)
