"""Which dead letters are meant. No I/O here."""

from __future__ import annotations

from dataclasses import dataclass

from .letter import DeadLetter


@dataclass(frozen=True, slots=True)
class Selection:
    """What is given must all hold; nothing given selects everything. `reason` is a part of the reason's text."""

    ids: frozenset[str] = frozenset()
    key: str | None = None
    reason: str | None = None

    @property
    def is_everything(self) -> bool:
        return self == Selection()

    def __contains__(self, letter: DeadLetter) -> bool:
        return (
            (not self.ids or letter.id in self.ids)
            and (self.key is None or letter.key == self.key)
            and (self.reason is None or self.reason in letter.reason)
        )
