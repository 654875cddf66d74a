"""What the application says about a message it was given."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """The three answers of an application, and one that stands for none."""

    ACK = "ack"
    RETRY = "retry"
    DROP = "drop"
    INTERRUPTED = "interrupted"  # ours, never the application's: the call was aborted and gave no verdict


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer; made by `ACK`, `retry` and `drop`. `reason` is for people: in the log, in the state, and, of a drop,
    in header `lbg-reason`. `after_s` (of a retry): seconds to wait at least; None leaves it to the backoff."""

    kind: Kind
    reason: str = ""
    after_s: float | None = None


ACK = Verdict(Kind.ACK)
"""Processed: it is acknowledged to the broker and never given again. A handler that returns None says the same."""

INTERRUPTED = Verdict(Kind.INTERRUPTED)


def retry(reason: str = "", *, after_s: float | None = None) -> Verdict:
    """Give the message again later; its lane waits, so nothing of its key overtakes it. An attempt that counts."""
    return Verdict(Kind.RETRY, reason, after_s)


def drop(reason: str) -> Verdict:
    """Refuse the message for good: it goes to the group's dead letters with this reason."""
    return Verdict(Kind.DROP, reason)
