"""Keys that two members, or two runs of one, had at the same time: as `lbg pipeline validate` judges them, one by one.

Pure. An overlap is of the delivery that started later, once. What one member republishes may arrive after what another
did: what was finished long before the latest start of a key is forgotten, so that memory does not grow with messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lbg.republished import Republished

LATE_US = 120_000_000
"""So much later than another of its key may a delivery arrive and still be compared with it: more than a call takes by
default and a member needs to publish."""

SPANS_OF_A_KEY = 256
"""Kept at most: what two members have of one key at the same time lies next to one another."""


@dataclass(frozen=True, slots=True)
class KeyOverlap:
    """A delivery that the application of `member` had while that of another had one of its key. `uncertain`: the skew
    of their clocks may explain it."""

    publisher: str
    key: str
    hash: int
    seq: int
    member: int
    member_name: str
    other_member: int
    other_member_name: str
    at_us: int
    uncertain: bool

    def __str__(self) -> str:
        doubt = " (uncertain: within the skew of their clocks)" if self.uncertain else ""
        return (
            f"overlap: key {self.key!r} of hash {self.hash}: {self.seq} of publisher {self.publisher} began at member "
            f"{self.member} {self.member_name} while the key was with member {self.other_member} "
            f"{self.other_member_name}{doubt}"
        )


@dataclass(slots=True, eq=False)
class _Span:
    """`told`: an overlap of it was; `certain`: one that no clock explains."""

    message: Republished
    started_us: int
    finished_us: int
    told: bool = False
    certain: bool = False

    @property
    def place(self) -> tuple[int, str]:
        return self.started_us, self.message.incarnation

    @property
    def holder(self) -> tuple[int, str]:
        return self.message.member, self.message.incarnation


@dataclass(slots=True)
class Overlaps:
    """`count` are those that no clock explains, `uncertain` the others. `untimed`: messages with a key that do not say
    when the application had them."""

    skew_us: int = 0
    count: int = 0
    uncertain: int = 0
    untimed: int = 0
    _spans: dict[str, list[_Span]] = field(default_factory=dict)

    def observe(self, message: Republished) -> list[KeyOverlap]:
        """What is to be told because of one message. Without a key it has no order, and overlaps nothing."""
        if message.key is None:
            return []
        if message.started_at_us is None or message.finished_at_us is None:
            self.untimed += 1
            return []
        if message.finished_at_us <= message.started_at_us:
            return []
        span = _Span(message, message.started_at_us, message.finished_at_us)
        of_key = self._spans.setdefault(message.key, [])
        found = [
            overlap
            for other in of_key
            if other.holder != span.holder
            and other.started_us < span.finished_us
            and span.started_us < other.finished_us
            and (overlap := self._overlap(*_in_order(other, span))) is not None
        ]
        of_key.append(span)
        latest_us = max(one.started_us for one in of_key)
        of_key[:] = [one for one in of_key if one.finished_us > latest_us - LATE_US][-SPANS_OF_A_KEY:]
        return found

    def _overlap(self, first: _Span, later: _Span) -> KeyOverlap | None:
        """None where as much was told of the later one before."""
        shift_us = min(first.finished_us - later.started_us, later.finished_us - first.started_us)
        is_explained = first.message.incarnation != later.message.incarnation and shift_us <= self.skew_us
        if later.certain or (later.told and is_explained):
            return None
        if later.told:
            self.uncertain -= 1
        later.told, later.certain = True, not is_explained
        self.uncertain += is_explained
        self.count += not is_explained
        message, other = later.message, first.message
        assert message.key is not None
        return KeyOverlap(
            publisher=message.publisher,
            key=message.key,
            hash=message.hash_,
            seq=message.seq,
            member=message.member,
            member_name=message.member_name,
            other_member=other.member,
            other_member_name=other.member_name,
            at_us=later.started_us,
            uncertain=is_explained,
        )


def _in_order(one: _Span, other: _Span) -> tuple[_Span, _Span]:
    """Of two that began at once the later is chosen as the pipeline does, so that both tell of the same one."""
    return (one, other) if one.place <= other.place else (other, one)
