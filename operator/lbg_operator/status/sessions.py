"""The trouble of a group's sessions in mode Sessions, in one line; empty for nothing. No I/O here."""

from __future__ import annotations

from lbg_broker.provisioning.describing import Description
from lbg_broker.provisioning.native import SessionsSeen

STRANDED_AFTER_S = 60.0
"""A session is away while its pod is replaced, in a rollout or after a crash: that is what it is kept for."""
NAMED_MAX = 10


def stranded_of(description: Description, now_s: float) -> str:
    """The sessions that have had messages and no consumer for longer than a pod takes to be replaced."""
    native = description.native
    if not isinstance(native, SessionsSeen):
        return ""
    late = [
        one
        for one in native.stranded
        if one.away_since_s is not None and now_s - one.away_since_s > STRANDED_AFTER_S
    ]
    return "; ".join(
        f"session {one.session} has {one.messages} messages and no consumer" for one in late[:NAMED_MAX]
    )
