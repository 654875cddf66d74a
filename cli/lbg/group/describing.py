"""A group's description as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbg.group.counting import count_text
from lbg.group.sharing import sharing_lines
from lbg.tables import table
from lbg_broker.group import PARTITIONED, UNCOUNTED_MODES, GroupSpec
from lbg_broker.provisioning.describing import Description, QueueLine
from lbg_broker.provisioning.members import MemberLine
from lbg_broker.provisioning.observed import UNKNOWN


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
    yield from table(
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
    """How many queues or partitions there are, and what they hold."""
    if spec.mode in UNCOUNTED_MODES:
        return f"one queue of {spec.queue_size_mb} MB"
    if is_one_queue:
        return f"{spec.queue_count} partitions in one queue of {spec.queue_count * spec.queue_size_mb} MB"
    return f"{spec.queue_count} queues of {spec.queue_size_mb} MB"


def list_lines(found: Sequence[Description]) -> Iterator[str]:
    """What `lbg group list` says."""
    yield from table(
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
        yield from table(
            ("MEMBER", "INDEX", "IN FLIGHT", "DELIVERED"),
            [(one.name, str(one.index), *_work_of(one)) for one in shown.members],
        )
    else:
        yield from table(
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
