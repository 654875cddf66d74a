"""Messages whose attempts are used up, and what becomes of them."""

from __future__ import annotations

import enum
import itertools
from dataclasses import dataclass

from .held import Attachment


class WhenExhausted(enum.StrEnum):
    """`block`: it is tried on, at the longest interval, and its key waits behind it. `dead-letter`: it goes to the
    group's dead letters, and its key goes on."""

    BLOCK = "block"
    DEAD_LETTER = "dead-letter"


@dataclass(frozen=True, slots=True)
class PoisonedMessage:
    """For a view. `key` and `id` are None where no publisher of ours stamped it; `since_s`: so long ago its attempts
    were used up here, or found to be: a member that takes a queue over finds it with its own first attempt."""

    key: str | None
    id: str | None
    attempts: int
    since_s: float
    reason: str


LISTED_MAX = 20
REASON_MAX_CHARS = 200


def poisoned_messages(attachment: Attachment, now: float) -> list[PoisonedMessage]:
    """Those that this attachment holds, the oldest first, at most `LISTED_MAX` of them."""
    return [
        PoisonedMessage(
            key=held.key,
            id="-".join(map(str, held.identity)) if held.identity is not None else None,
            attempts=held.attempts,
            since_s=now - since,
            reason=held.reason[:REASON_MAX_CHARS],
        )
        for held, since in itertools.islice(attachment.poisoned.items(), LISTED_MAX)
    ]
