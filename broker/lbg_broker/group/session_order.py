"""Judging deliveries in mode Sessions: each message in one session for ever, in the order of its numbers there.

"Achieving Exactly-Once Message Delivery Guarantees with Sequence Numbers": a message is never given to two consumers,
and the order of one consumer is kept; between consumers there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .sequences import SequenceSet


class Place(Enum):
    """What a message's session and number say, beside whether the message itself was seen before."""

    OK = "ok"
    REWIND = "rewind"
    """Seen before under the same number of the same session: delivered again, as after a crash."""
    INVERSION = "inversion"
    """Seen for the first time after a later one of its session."""
    TWO_PLACES = "two_places"
    """Seen before in another session, or under another number: it was given out twice."""
    RENUMBERED = "renumbered"
    """Its number was that of another message."""


@dataclass(frozen=True, slots=True)
class SessionVerdict:
    """`expected` is the lowest number that would have been in order."""

    place: Place
    expected: int


class _Session:
    __slots__ = ("highest", "seen")

    def __init__(self) -> None:
        self.seen = SequenceSet()
        self.highest = 0


class SessionJudge:
    """Memory grows with the sessions and their holes, not with the messages."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Session] = {}

    @property
    def highest(self) -> dict[str, int]:
        """The highest number that was seen of each session."""
        return {name: one.highest for name, one in sorted(self._sessions.items())}

    def observe(self, session: str, sequence: int, *, repeated: bool) -> SessionVerdict:
        """`repeated`: the message itself, by publisher, hash and sequence there, was seen before."""
        one = self._sessions.setdefault(session, _Session())
        expected = one.highest + 1
        is_new = one.seen.add(sequence)
        one.highest = max(one.highest, sequence)
        if repeated:
            place = Place.TWO_PLACES if is_new else Place.REWIND
        elif not is_new:
            place = Place.RENUMBERED
        else:
            place = Place.INVERSION if sequence < expected else Place.OK
        return SessionVerdict(place, expected)
