"""Ending the sessions of a group, of a whole queue or one: what they still have is delivered, then End-of-Session."""

from __future__ import annotations

from lbg_broker.group import SESSIONS, Names, closed_record

from .actions import Action, ActOnQueue, WriteRecord
from .errors import GroupNotFound, RecordUnreadable, SessionNotFound, Unsupported
from .native import CLOSING, SessionsSeen
from .observed import UNKNOWN, Observed, QueueSeen
from .planning import recorded


def plan_close(group: str, observed: Observed, *, session: str | None) -> tuple[Action, ...]:
    """The record first, which tells publishers why they are refused. No actions where it is closed already.

    Raises GroupNotFound, RecordUnreadable, SessionNotFound, and Unsupported for a group without sessions, and where the
    broker's word on them is out of reach.
    """
    if observed.is_empty:
        raise GroupNotFound(group)
    spec = recorded(group, observed)
    if spec is None:
        raise RecordUnreadable(group, "it is missing or not one")
    if spec.mode != SESSIONS:
        raise Unsupported(
            f"group {group!r} is in mode {spec.mode}, and only a group in mode {SESSIONS} can be closed: stop its "
            f"publishers, and `lbg group delete {group}` when it is drained"
        )
    parent = Names(group).parent
    seen = observed.queues.get(parent)
    sessions = seen.native if isinstance(seen, QueueSeen) else seen
    if sessions is UNKNOWN:
        why = next(iter(observed.why.values()), "no reason known")
        raise Unsupported(
            f"group {group!r} cannot be closed: its sessions are unknown ({why}); give the management API's "
            "address with --management"
        )
    if not isinstance(sessions, SessionsSeen):
        raise Unsupported(f"group {group!r} cannot be closed: queue {parent} is missing, or has no sessions")
    if session is None:
        actions: list[Action] = []
        if observed.record != (closed := closed_record(spec)):
            actions.append(WriteRecord(group, closed, before=spec.to_record()))
        return (*actions, *(() if sessions.closed else (ActOnQueue(parent, "close"),)))
    states = {one.session: one.state for one in sessions.sessions}
    if session not in states:
        raise SessionNotFound(group, session, sorted(states))
    return () if states[session] == CLOSING else (ActOnQueue(parent, "close-session", {"session": session}),)
