"""What changed in a line since its last batch, for the store."""

from collections.abc import Sequence

from lbg_broker.server.core.message import Message
from lbg_broker.server.core.ranges import runs_of

__all__ = ["Unsealed"]


class Unsealed:
    """`inserts` in the order of their positions; `deletes` are positions, in any order."""

    __slots__ = ("_ranges", "deletes", "inserts")

    def __init__(self) -> None:
        self.inserts: list[Message] = []
        self.deletes: list[int] = []
        self._ranges: list[tuple[int, int]] = []

    def delete_all_but(self, outstanding: Sequence[int], next_position: int) -> None:
        """Of the positions below `next_position` only `outstanding`, sorted, stay."""
        stays = frozenset(outstanding)
        self.inserts = [message for message in self.inserts if message.position in stays]
        first = 0
        for position in (*outstanding, next_position):
            if first < position:
                self._ranges.append((first, position - 1))
            first = position + 1

    def seal(self) -> tuple[list[Message], list[tuple[int, int]]]:
        """Hand over inserts, and deletes as ranges. What was inserted and deleted since the last batch never reaches
        the store."""
        deletes = self._sealed_deletes()
        inserts, self.inserts = self.inserts, []
        return inserts, deletes

    def _sealed_deletes(self) -> list[tuple[int, int]]:
        deletes, self.deletes = self.deletes, []
        ranges, self._ranges = self._ranges, []
        if not deletes:
            return ranges
        deletes.sort()
        if self.inserts and deletes[-1] >= self.inserts[0].position:
            gone, first = frozenset(deletes), self.inserts[0].position
            self.inserts = [message for message in self.inserts if message.position not in gone]
            deletes = [position for position in deletes if position < first]
        return ranges + runs_of(deletes)
