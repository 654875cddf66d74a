"""A group's description as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbg_broker.provisioning.describing import Count, Description, QueueLine
from lbg_broker.provisioning.members import MemberLine
from lbg_broker.provisioning.observed import UNKNOWN


def description_lines(shown: Description) -> Iterator[str]:
    """All that `lbg group show` says."""
    yield f"group {shown.group}"
    if shown.spec is not None:
        spec = shown.spec
        yield f"  prefix {spec.hash_prefix!r}, {spec.hash_count} hashes by {spec.hash_function}, mode {spec.mode}"
        yield (
            f"  {spec.queue_count} queues of {spec.queue_size_mb} MB, at most {spec.max_clients} members, "
            f"user {spec.client_username}"
        )
    yield f"  dead letters {_count(shown.dead_letters)}, unrouted {_count(shown.unrouted)}"
    yield ""
    yield from _table(
        ("QUEUE", "READY", "UNACKED", "CONSUMERS", "ACTIVE", "PROGRESS"),
        [_queue_row(shown, line) for line in shown.queues],
    )
    yield ""
    if shown.members is UNKNOWN:
        yield "members unknown"
    elif shown.members:
        yield from _table(
            ("MEMBER", "INDEX", "STATE", "PRIMARY", "SECONDARY", "IN FLIGHT", "DELIVERED"),
            [_member_row(member) for member in shown.members],
        )
    else:
        yield "no member answered"
    if shown.problems:
        yield ""
        yield from (f"! {problem}" for problem in shown.problems)


def list_lines(found: Sequence[Description]) -> Iterator[str]:
    """What `lbg group list` says."""
    yield from _table(
        ("GROUP", "PREFIX", "HASHES", "QUEUES", "READY", "DEAD"), [_list_row(one) for one in found]
    )


def _list_row(one: Description) -> tuple[str, ...]:
    spec = one.spec
    attributes = (
        (spec.hash_prefix, str(spec.hash_count), str(spec.queue_count))
        if spec
        else ("no readable record", "", "")
    )
    return (one.group, *attributes, _count(one.ready), _count(one.dead_letters))


def _queue_row(shown: Description, line: QueueLine) -> tuple[str, ...]:
    if line.seen is None:
        return (line.name, "missing", "", "", "", "")
    member = shown.active_member(line.number) if line.number is not None else None
    active = member.name if member else _active_tag(line)
    progress = shown.progress(line.number) if line.number is not None else None
    counts = (_count(line.count(name)) for name in ("ready", "unacked", "consumers"))
    return (line.name, *counts, active, progress or "-")


def _active_tag(line: QueueLine) -> str:
    if line.seen is None or line.seen is UNKNOWN or line.seen.active_consumer is UNKNOWN:
        return "unknown"
    return line.seen.active_consumer or "-"


def _member_row(member: MemberLine) -> tuple[str, ...]:
    primary = [one for one in member.queues if one.role == "primary"]
    secondary = [one for one in member.queues if one.role != "primary"]
    return (
        member.name,
        str(member.index),
        member.rebalance,
        _queues(one.queue if not one.active else f"{one.queue}*" for one in primary),
        _queues(one.queue if not one.active else f"{one.queue}*" for one in secondary),
        str(sum(one.in_flight for one in member.queues)),
        str(member.counts.get("delivered", "unknown")),
    )


def _queues(numbers: Iterator[object]) -> str:
    return " ".join(map(str, numbers)) or "-"


def _count(count: Count | None) -> str:
    if count is UNKNOWN:
        return "unknown"
    return "missing" if count is None else str(count)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    for row in (header, *rows):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
