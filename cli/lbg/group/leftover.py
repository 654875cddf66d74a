"""What is left of a group, or a session of it, that was closed."""

from __future__ import annotations

from collections.abc import Iterator

from lbg.group.counting import counted
from lbg.group.sharing import session_table, stranded_lines, waiting_line
from lbg_broker.provisioning.describing import Description
from lbg_broker.provisioning.native import SessionsSeen


def leftover_lines(left: Description, *, session: str | None) -> Iterator[str]:
    seen = left.native
    if not isinstance(seen, SessionsSeen):
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
        yield from stranded_lines(SessionsSeen(seen.closed, seen.pool, undrained))
    elif session is not None or not seen.pool:
        yield "nothing is left to deliver"
