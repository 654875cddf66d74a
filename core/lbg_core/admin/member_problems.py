"""Problems of a group that its members' status reports show. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject, listed, moment_text
from lbg_core.group import Names
from lbg_core.group.member_state import QueueState
from lbg_core.group.members_protocol import Beat


def member_problems(
    names: Names,
    members: Sequence[Beat],
    *,
    is_one_queue: bool,
    is_paused: bool | None,
    has_parking: bool,
) -> Iterator[Problem]:
    """`is_one_queue`: all members consume one queue. `is_paused`: the group is, as its record states; None where that
    is unknown. `has_parking`: members have to follow its parked keys."""
    for member in members:
        for queue in member.queues:
            yield from _of_queue(names, member, queue, is_one_queue=is_one_queue)
    if held := [one for one in members if one.held is not None]:
        yield _held(names.group, held)
    if is_paused is not None and (behind := [one.name for one in members if one.paused != is_paused]):
        kind = Kind.PAUSE_NOT_FOLLOWED if is_paused else Kind.RESUME_NOT_FOLLOWED
        yield Problem(kind, Subject(names.group, members=tuple(behind)))
    windows: dict[int, list[str]] = {}
    for one in members:
        if one.prefetch:
            windows.setdefault(one.prefetch, []).append(one.name)
    if len(windows) > 1:
        texts = tuple(f"{prefetch} ({listed(windows[prefetch])})" for prefetch in sorted(windows))
        yield Problem(Kind.PREFETCH_DIFFERS, Subject(names.group), {"windows": texts})
    if has_parking and (behind := [one.name for one in members if one.parking is None]):
        yield Problem(Kind.PARKED_KEYS_NOT_FOLLOWED, Subject(names.group, members=tuple(behind)))


def _held(group: str, members: Sequence[Beat]) -> Problem:
    states = sorted((one.held for one in members if one.held is not None), key=lambda one: one.since_us)
    until_us = min((one.until_us for one in states if one.until_us), default=0)
    figures: dict[str, object] = {
        "count": len(members),
        "since": moment_text(states[0].since_us),
        "reason": next((one.reason for one in states if one.reason), None),
        "is_next": bool(until_us),
    }
    if until_us:
        figures["until"] = moment_text(until_us)
    return Problem(Kind.CALLS_HELD, Subject(group, members=tuple(one.name for one in members)), figures)


def _of_queue(names: Names, member: Beat, queue: QueueState, *, is_one_queue: bool) -> Iterator[Problem]:
    name = names.parent if is_one_queue else names.queue(queue.queue)

    def subject(message: str = "", keys: Iterable[str | None] = ()) -> Subject:
        named = tuple(key for key in keys if key is not None)
        return Subject(names.group, name, members=(member.name,), message=message, keys=named)

    if queue.poisoned:
        is_more = queue.poisoned > len(queue.poisoned_keys)
        about = subject(next(iter(queue.poisoned_ids), ""), queue.poisoned_keys)
        yield Problem(Kind.MESSAGES_POISONED, about, {"count": queue.poisoned, "is_more": is_more})
    for one in queue.retried_messages:
        figures: dict[str, object] = {"reason": one.reason or None}
        if one.until_us:
            figures["until"] = moment_text(one.until_us)
        kind = Kind.MESSAGE_DELAYED if one.until_us else Kind.MESSAGE_RETRIED
        yield Problem(kind, subject(one.id, [one.key]), figures)
    for call in queue.extended_calls:
        figures = {
            "since": moment_text(call.since_us),
            "until": moment_text(call.until_us),
            "progress": call.progress or None,
        }
        yield Problem(Kind.CALL_EXTENDED, subject(call.id, [call.key]), figures)
    for suspect in queue.suspects:
        figures = {"died": suspect.died, "attempts": suspect.attempts}
        yield Problem(Kind.MESSAGE_SUSPECT, subject(suspect.id, [suspect.key]), figures)
    if queue.is_postponed:
        figures = {"count": queue.put_off, "drain_s": queue.next_drain_s}
        yield Problem(Kind.HANDOFF_POSTPONED, subject(), figures)


def held_up(group: str, members: Sequence[Beat], queues: Collection[int]) -> Iterator[Problem]:
    """Causes, as members report them, for which messages of these queues are not processed until somebody acts."""
    if any(one.paused for one in members):
        yield Problem(Kind.GROUP_PAUSED, Subject(group))
    for one in member_problems(Names(group), members, is_one_queue=False, is_paused=None, has_parking=False):
        if one.kind is Kind.MESSAGES_POISONED and Names(group).number_of(one.subject.queue) in queues:
            yield one
    if any(one.parking is not None and one.parking.is_full for one in members):
        yield Problem(Kind.PARKING_FULL, Subject(group))
