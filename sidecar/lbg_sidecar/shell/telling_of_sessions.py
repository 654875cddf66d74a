"""One log line for each thing that happens to a member's session; the facts are fields of it, as in `telling`."""

from __future__ import annotations

import logging

from ..effects import Effect, SessionEnded, SessionForgotten, SessionTaken

log = logging.getLogger("lbg.member")


def tell_of_session(name: str, effect: Effect) -> None:
    match effect:
        case SessionTaken(session, why):
            log.warning(
                "%s: session %r belongs to another live consumer: %s; waiting for it, as it may be the end of an "
                "earlier connection that the broker has not noticed yet",
                *(name, session, why),
                extra=_fields("session_taken", name, session),
            )
        case SessionForgotten(session, committed, why):
            log.warning(
                "%s: session %r: the position file says %d, and the broker does not go on there: %s; going on after "
                "what was acknowledged, which may repeat messages or pass over some if one of the two was set back",
                *(name, session, committed, why),
                extra=_fields("session_forgotten", name, session),
            )
        case SessionEnded(session, messages):
            log.info(
                "%s: End-of-Session: session %r is over after %d messages; leaving",
                *(name, session, messages),
                extra=_fields("session_ended", name, session),
            )
        case _:
            pass


def _fields(event: str, name: str, session: str) -> dict[str, object]:
    return {"fields": {"event": event, "member": name, "session": session}}
