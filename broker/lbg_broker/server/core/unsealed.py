"""What changed in a line since its last batch, for the store."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from lbg_broker.server.core.message import Message, Place
from lbg_broker.server.core.ranges import runs_of

__all__ = ["LETTERS_BYTES", "LetterBox", "Unsealed"]

LETTERS_BYTES: Final = 128 * 1024
"""What moves, dead letters above all, in one batch: any may turn out to be one on the reserve. Or one message, however
long."""


class LetterBox:
    """What a batch on the reserve takes of messages. `largest_bytes`: no longer letter has room; 0: no letter has."""

    def __init__(self, largest_bytes: int) -> None:
        self._largest_bytes = largest_bytes
        self._bytes = 0
        self.left_some = False
        """Whether a letter is withheld."""

    def takes(self, message: Message) -> bool:
        """Whether the message is written."""
        place = message.origin.place
        if place is Place.LETTER:
            total = self._bytes + message.size
            if message.size > self._largest_bytes or (self._bytes and total > LETTERS_BYTES):
                self.left_some = True
                return False
            self._bytes = max(total, 1)
        return place is not Place.NONE


class Unsealed:
    """`inserts` in the order of their positions; `deletes` are positions, in any order. `withheld` come before the
    inserts: messages for which the store had no room, in memory until it has."""

    __slots__ = ("_ranges", "deletes", "inserts", "withheld")

    def __init__(self) -> None:
        self.inserts: list[Message] = []
        self.deletes: list[int] = []
        self.withheld: list[Message] = []
        self._ranges: list[tuple[int, int]] = []

    def delete_all_but(self, outstanding: Sequence[int], next_position: int) -> None:
        """Of the positions below `next_position` only `outstanding`, sorted, stay."""
        stays = frozenset(outstanding)
        self.inserts = [message for message in self.inserts if message.position in stays]
        self.withheld = [message for message in self.withheld if message.position in stays]
        first = 0
        for position in (*outstanding, next_position):
            if first < position:
                self._ranges.append((first, position - 1))
            first = position + 1

    def clear(self) -> None:
        """Nothing of it is to reach the store any more."""
        self.inserts.clear()
        self.withheld.clear()

    def take_back(self, inserts: Sequence[Message], deletes: Sequence[tuple[int, int]]) -> None:
        """What was sealed last was not written. What was purged since stays purged."""
        firsts = [first for first, _ in self._ranges]
        kept = []
        for message in inserts:
            place = bisect_right(firsts, message.position) - 1
            if place < 0 or self._ranges[place][1] < message.position:
                kept.append(message)
        self.inserts = kept + self.inserts
        self._ranges = [*deletes, *self._ranges]

    def seal(self, letters: LetterBox | None = None) -> tuple[list[Message], list[tuple[int, int]]]:
        """Hand over inserts, and deletes as ranges. What was inserted and deleted since the last batch never reaches
        the store. With `letters` the inserts are those that have a place in the reserve; the rest is withheld."""
        if self.withheld:
            self.inserts = self.withheld + self.inserts
            self.withheld = []
        deletes = self._sealed_deletes()
        inserts, self.inserts = self.inserts, []
        if letters is not None:
            written: list[Message] = []
            self.withheld = []
            for message in inserts:
                (written if letters.takes(message) else self.withheld).append(message)
            inserts = written
        return inserts, deletes

    def _sealed_deletes(self) -> list[tuple[int, int]]:
        deletes, self.deletes = self.deletes, []
        ranges, self._ranges = self._ranges, []
        if not deletes:
            return ranges
        deletes.sort()
        if self.inserts and deletes[-1] >= self.inserts[0].position:
            gone = frozenset(deletes)
            never = {message.position for message in self.inserts if message.position in gone}
            if never:
                self.inserts = [message for message in self.inserts if message.position not in never]
                deletes = [position for position in deletes if position not in never]
        return ranges + runs_of(deletes)
