"""What the validator judges of sessions: see `lbg_broker.group.session_order`. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from lbg.republished import Republished
from lbg_broker.group import SessionJudge
from lbg_broker.group.session_order import Place

KEPT_ERRORS = 1000


@dataclass(frozen=True, slots=True)
class SessionError:
    """A message that is not where a session should have it. `kind`: inversion (after a later one of its session),
    two_places (given out before, in another session or under another number), renumbered (its number was another
    message's). `expected` is the lowest number of this session that would have been in order."""

    kind: str
    session: str
    sequence: int
    expected: int
    publisher: str
    hash: int
    received: int
    member_name: str

    def __str__(self) -> str:
        return (
            f"session error: {self.kind}: session {self.session!r}: number {self.sequence}, expected "
            f"{self.expected} :: message {self.received} of hash {self.hash}, publisher {self.publisher}, member "
            f"{self.member_name}"
        )


@dataclass(slots=True)
class Sessions:
    """All that was judged of them so far."""

    judge: SessionJudge = field(default_factory=SessionJudge)
    counts: Counter[Place] = field(default_factory=Counter)
    unnumbered: int = 0
    errors: list[SessionError] = field(default_factory=list)

    @property
    def are_sound(self) -> bool:
        return not (self.unnumbered or self.counts[Place.TWO_PLACES] or self.counts[Place.RENUMBERED])

    def observe(self, message: Republished, *, repeated: bool) -> SessionError | None:
        if message.session is None or message.sequence is None:
            self.unnumbered += 1
            return None
        verdict = self.judge.observe(message.session, message.sequence, repeated=repeated)
        self.counts[verdict.place] += 1
        if verdict.place in (Place.OK, Place.REWIND):
            return None
        error = SessionError(
            kind=verdict.place.value,
            session=message.session,
            sequence=message.sequence,
            expected=verdict.expected,
            publisher=message.publisher,
            hash=message.hash_,
            received=message.seq,
            member_name=message.member_name,
        )
        if len(self.errors) < KEPT_ERRORS:
            self.errors.append(error)
        return error

    def report(self) -> dict[str, Any]:
        """For a report as JSON: the last number of each session, and what is wrong."""
        return {
            "last_numbers": self.judge.highest,
            "in_two_places": self.counts[Place.TWO_PLACES],
            "renumbered": self.counts[Place.RENUMBERED],
            "unnumbered": self.unnumbered,
            "errors": [asdict(error) for error in self.errors],
        }
