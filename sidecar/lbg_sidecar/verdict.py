"""What the application says about a message it was given."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    ACK = "ack"
    RETRY = "retry"
    DROP = "drop"
    INTERRUPTED = "interrupted"  # ours, never the application's: the call was aborted and gave no verdict


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer. `after_s` (of a retry) is the least time to wait; None leaves it to the member's backoff."""

    kind: Kind
    reason: str = ""
    after_s: float | None = None


ACK = Verdict(Kind.ACK)
INTERRUPTED = Verdict(Kind.INTERRUPTED)


def retry(reason: str = "", *, after_s: float | None = None) -> Verdict:
    """Give the message again later; its lane waits, so nothing of its key overtakes it."""
    return Verdict(Kind.RETRY, reason, after_s)


def drop(reason: str) -> Verdict:
    """Refuse the message for good: it goes to the group's dead letters with this reason."""
    return Verdict(Kind.DROP, reason)
