"""One group, a message of it, and whoever may hold it."""

from heapq import heappop, heappush
from typing import Final

from lbg_broker.server.core.kinds.grouped.positions import Positions
from lbg_broker.server.core.message import Message, Origin

__all__ = ["UNLIMITED", "Entry", "Group", "GroupedMessage", "Holder"]

UNLIMITED: Final = 1 << 30


class GroupedMessage(Message):
    """`after` is the next undelivered one of its group in memory."""

    __slots__ = ("after", "group")

    group: "Group"

    def __init__(self, position: int, origin: Origin, header: bytes, body: bytes, stored: bool) -> None:
        self.position = position
        self.origin = origin
        self.header = header
        self.body = body
        self.size = len(body)
        self.stored = stored
        self.hollow = False
        self.after: GroupedMessage | None = None


class Holder:
    """Whoever can be given messages. It gets up to `limit` of a group before it has to settle them all, or, if it
    `slides`, while no other group waits for somebody, one more for each that it settles."""

    __slots__ = ("groups", "heap", "leaving", "limit", "slides")

    def __init__(self, limit: int = UNLIMITED, *, slides: bool = False) -> None:
        self.limit = limit
        self.slides = slides
        self.groups: dict[Group, None] = {}
        """Those that it holds, in the order in which it got them."""
        self.leaving = 0
        """How many of them it gets nothing more of."""
        self.heap: list[Entry] = []
        """Groups it holds that it may have more of, by their first message. What has changed since an entry was made
        has made another one: one that no longer fits is passed over."""


class Group:
    """The messages of one group that wait, in three parts one behind the other, and who holds it.

    `returned` were given out before; `first` to `last` are in memory; of `skipped` only the positions are, and what
    belongs there is read when it is its turn. The group is held by `holder` as long as anything is `outstanding`, and
    `allowance` is how many more it may have until then. One that is `leaving` was asked back: its holder gets nothing
    more of it.
    """

    __slots__ = (
        "allowance",
        "first",
        "holder",
        "key",
        "last",
        "leaving",
        "outstanding",
        "reading",
        "resident",
        "returned",
        "skipped",
    )

    def __init__(self, key: bytes) -> None:
        self.key = key
        self.holder: Holder | None = None
        self.outstanding = 0
        self.allowance = UNLIMITED
        self.leaving = False
        self.reading = False
        """Whether its first message is being read."""
        self.forget_waiting()

    def forget_waiting(self) -> None:
        """Nothing of it waits any more."""
        self.returned: list[tuple[int, GroupedMessage]] | None = None
        self.first: GroupedMessage | None = None
        self.last: GroupedMessage | None = None
        self.resident = 0  # how many from first to last
        self.skipped: Positions | None = None
        self.reading = False

    @property
    def position(self) -> int:
        """Of the first message that waits; -1 if none does."""
        if self.returned:
            return self.returned[0][0]
        if self.first is not None:
            return self.first.position
        return self.skipped.first if self.skipped else -1

    @property
    def is_hollow(self) -> bool:
        """Whether the first message that waits must be read first."""
        return self.returned[0][1].hollow if self.returned else self.first is None

    def add(self, message: GroupedMessage) -> None:
        """A message behind all that are in memory; none may be skipped but those behind it."""
        message.group = self
        if self.last is None:
            self.first = message
        else:
            self.last.after = message
        self.last = message
        self.resident += 1

    def skip(self, position: int) -> None:
        """A message behind all others, to be read later."""
        if self.skipped is None:
            self.skipped = Positions()
        self.skipped.add(position)

    def put_back(self, message: GroupedMessage) -> None:
        """What was taken waits again, at its place."""
        if self.returned is None:
            self.returned = []
        heappush(self.returned, (message.position, message))

    def pop(self) -> tuple[GroupedMessage, bool]:
        """Take the first message, which must be in memory; and whether it is one that came back."""
        if self.returned:
            return heappop(self.returned)[1], True
        message = self.first
        assert message is not None
        self.first = message.after
        message.after = None
        if self.first is None:
            self.last = None
        self.resident -= 1
        return message, False


Entry = tuple[int, Group]
"""A group, by the position of its first message at the time."""
