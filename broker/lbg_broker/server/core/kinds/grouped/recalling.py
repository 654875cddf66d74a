"""What is known of a line and not in memory: having it read when it is its turn."""

from collections.abc import Sequence
from heapq import nsmallest
from typing import Final

from lbg_broker.server.core.changes import Row
from lbg_broker.server.core.kinds.grouped.group import Group, GroupedMessage
from lbg_broker.server.core.kinds.grouped.index import Groups
from lbg_broker.server.core.message import Origin

__all__ = ["Recalls"]

EACH_MIN_PARTS: Final = 4
"""Of what is read together no group gets more than this part."""


class Recalls:
    """The groups whose first message must be read. They are on no heap until it is."""

    __slots__ = ("_hollow", "_reading", "_skipped", "_wanted")

    def __init__(self) -> None:
        self._wanted: list[Group] = []
        self._reading: list[Group] = []
        self._skipped: dict[int, Group] = {}  # the positions that are being read
        self._hollow: dict[int, GroupedMessage] = {}  # … and those of messages that came back hollow

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def want(self, group: Group, *, most: int) -> bool:
        """Have what waits first in a group read; False when `most` groups are read already."""
        if not group.reading:
            if len(self._wanted) >= most:
                return False
            group.reading = True
            self._wanted.append(group)
        return True

    def positions(self, *, most: int) -> list[int]:
        """What to read now, sorted: about `most` positions, the first of each group that is wanted."""
        self._reading, self._wanted = self._wanted, []
        each = max(most // max(len(self._reading), EACH_MIN_PARTS), 1)
        for group in self._reading:
            if group.returned:
                self._hollow.update(nsmallest(each, (entry for entry in group.returned if entry[1].hollow)))
            elif group.skipped:
                self._skipped.update((position, group) for position in group.skipped.lowest(each))
        return sorted((*self._skipped, *self._hollow))

    def take_in(self, rows: Sequence[Row], groups: Groups) -> list[GroupedMessage]:
        """Put what was read where it belongs, and give the groups back; the messages that are new in memory."""
        brought: list[GroupedMessage] = []
        for position, wire, header, body in rows:
            if position in self._hollow:
                self._hollow[position].fill(header, body)
            else:
                message = GroupedMessage(position, Origin.from_wire(wire), header, body, True)
                groups.bring_back(self._skipped[position], message)
                brought.append(message)
        for group in self._reading:
            group.reading = False
            groups.offer(group)
        self._reading, self._skipped, self._hollow = [], {}, {}
        return brought

    def forget(self) -> None:
        """Nothing waits any more."""
        for group in (*self._wanted, *self._reading):
            group.reading = False
        self._wanted, self._reading, self._skipped, self._hollow = [], [], {}, {}
