"""Index of message groups: their holders, and the next message for each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
from typing import Final

from lbg_broker.core.message import Message, Origin

CHUNK: Final = 4096
OFFSET_MAX: Final = (1 << 32) - 1


class Positions:
    """Ascending positions: added behind, removed in front, 4 bytes each.

    They are kept as distances from the first of their chunk; chunks are small, so that removing is cheap.
    """

    __slots__ = ("_bases", "_chunks", "_removed")

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._chunks: list[array[int]] = []
        self._removed = 0  # of the first chunk

    def __len__(self) -> int:
        if not self._chunks:
            return 0
        return sum([len(chunk) for chunk in self._chunks]) - self._removed

    def __bool__(self) -> bool:
        return bool(self._chunks)

    @property
    def first(self) -> int:
        """The lowest one."""
        return self._bases[0] + self._chunks[0][self._removed]

    def add(self, position: int) -> None:
        """Remember a position above all that are remembered."""
        if self._chunks:
            chunk, offset = self._chunks[-1], position - self._bases[-1]
            if len(chunk) < CHUNK and offset <= OFFSET_MAX:
                chunk.append(offset)
                return
        self._bases.append(position)
        self._chunks.append(array("I", (0,)))

    def remove_first(self) -> None:
        """Forget the lowest one."""
        self._removed += 1
        if self._removed == len(self._chunks[0]):
            del self._chunks[0], self._bases[0]
            self._removed = 0

    def lowest(self, count: int) -> list[int]:
        """The `count` lowest ones, or all there are."""
        lowest: list[int] = []
        start = self._removed
        for base, chunk in zip(self._bases, self._chunks, strict=True):
            lowest += [base + offset for offset in islice(chunk, start, start + count - len(lowest))]
            if len(lowest) == count:
                break
            start = 0
        return lowest


UNLIMITED: Final = 1 << 30


class GroupedMessage(Message):
    """`after` is the next undelivered one of its group in memory."""

    __slots__ = ("after", "group")

    group: Group

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
    """A consumer of message groups. It gets up to `limit` of a group before it has to settle them all, or, if it
    `slides`, while no other group waits for a consumer, one more for each that it settles."""

    __slots__ = ("groups", "heap", "leaving", "limit", "slides")

    def __init__(self, limit: int = UNLIMITED, *, slides: bool = False) -> None:
        self.limit = limit
        self.slides = slides
        self.groups: dict[Group, None] = {}
        """Those that it holds, in the order in which it got them."""
        self.leaving = 0
        """Number of them that it gets nothing more of."""
        self.heap: list[Entry] = []
        """Groups it holds that it may have more of, by their first message. What has changed since an entry was made
        has made another one: one that no longer fits is passed over."""


class Group:
    """The messages of one group that wait, in three parts one behind the other, and its holder.

    `returned` were delivered before; `first` to `last` are in memory; of `skipped` only the positions are, and what
    belongs there is read when it is its turn. The group has its `holder` as long as anything is `outstanding`, and
    `allowance` is how many more it may have until then. One that is `leaving` is recalled: its holder gets nothing more
    of it.
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
        """True if its first message is being read."""
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
        """True if the first message that waits must be read first."""
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

    def requeue(self, message: GroupedMessage) -> None:
        """Puts what was taken back to its place."""
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


SHRINK_FROM: Final = 4096
"""A table that once held more groups than this is made anew when an eighth of them is left: a dictionary gives
nothing back by itself."""


class GroupIndex:
    """The groups with ready or unsettled messages; others have no entry.

    Invariant: the unsettled messages of a group are with one holder.
    """

    __slots__ = ("_by_key", "_free", "_peak", "busy", "skipped")

    def __init__(self) -> None:
        self._by_key: dict[bytes, Group] = {}
        self._free: list[Entry] = []  # groups without a holder, by their first message
        self._peak = 0
        self.busy = 0
        """Number of groups with a holder."""
        self.skipped = 0
        """Messages of which only the position is known."""

    def __len__(self) -> int:
        return len(self._by_key)

    def get(self, key: bytes) -> Group | None:
        """The group of this name, if anything is known of it."""
        return self._by_key.get(key)

    def add(self, key: bytes) -> Group:
        """A group that is new here."""
        group = self._by_key[key] = Group(key)
        return group

    def forget_if_idle(self, group: Group) -> None:
        """Removes a group without messages and without a holder."""
        if not group.outstanding and group.position < 0:
            del self._by_key[group.key]

    def join(self, group: Group, message: GroupedMessage) -> None:
        """A message in memory, behind all others of its group."""
        is_first = group.first is None and not group.returned
        group.add(message)
        if is_first:
            self.offer(group)

    def skip(self, group: Group, position: int) -> None:
        """A message behind all others of its group, of which only the position is remembered."""
        is_first = group.position < 0
        group.skip(position)
        self.skipped += 1
        if is_first:
            self.offer(group)

    def bring_back(self, group: Group, message: GroupedMessage) -> None:
        """The first of the skipped messages is in memory again."""
        assert group.skipped is not None
        assert group.skipped.first == message.position
        group.skipped.remove_first()
        self.skipped -= 1
        group.add(message)

    def offer(self, group: Group) -> None:
        """Offers a group whose first message, or possible holder, has changed."""
        position = group.position
        if position < 0:
            return
        holder = group.holder
        if holder is None:
            heappush(self._free, (position, group))
        elif group.allowance > 0 and not group.leaving:
            heappush(holder.heap, (position, group))

    def leave(self, group: Group) -> None:
        """Recalls a group for another holder: its holder gets nothing more of it, and when all that it has of it is
        settled or requeued, the group is free."""
        assert group.holder is not None
        group.leaving = True
        group.holder.leaving += 1

    def choose(self, holder: Holder, *, own: bool = True, new: bool = True) -> list[Entry] | None:
        """The heap whose first entry is the next for this holder: the oldest message of its own groups and of those
        that are free (`new`). None: there is none for it."""
        own_heap = self._own(holder) if own else []
        free_heap = self._waiting() if new else []
        if not own_heap:
            return free_heap or None
        return own_heap if not free_heap or own_heap[0] < free_heap[0] else free_heap

    def deliver(self, group: Group, holder: Holder) -> tuple[GroupedMessage, bool]:
        """The first message of a group, now with the holder, and whether it was requeued before. The group's entry is
        off its heap, and the message is in memory."""
        if group.holder is None:
            group.holder = holder
            group.allowance = holder.limit
            holder.groups[group] = None
            self.busy += 1
        message, again = group.pop()
        group.outstanding += 1
        group.allowance -= 1
        if group.allowance > 0:
            position = group.position
            if position >= 0:
                heappush(holder.heap, (position, group))
        return message, again

    def settle(self, group: Group) -> bool:
        """Settles a message of the group. True if others of it may be delivered for that."""
        group.outstanding -= 1
        if not group.outstanding:
            return self._release(group)
        holder = group.holder
        if (
            holder is None
            or not holder.slides
            or group.leaving
            or group.outstanding + group.allowance >= holder.limit
            or self._waiting()
        ):
            return False
        self.allow(group, 1)
        return group.position >= 0

    def allow(self, group: Group, more: int) -> None:
        """Let the holder of a group have so many more of it."""
        group.allowance += more
        if group.allowance == more:  # else its entry is there
            self.offer(group)

    def requeue(self, messages: Iterable[GroupedMessage]) -> None:
        """Requeues delivered messages in their places."""
        groups: dict[Group, None] = {}
        for message in messages:
            group = message.group
            group.requeue(message)
            group.outstanding -= 1
            group.allowance += 1
            groups[group] = None
        for group in groups:
            if group.outstanding:
                self.offer(group)
            else:
                self._release(group)

    def forget_waiting(self) -> None:
        """Forgets ready messages; unsettled ones stay with their holders."""
        self._free.clear()
        self.skipped = 0
        for group in self._by_key.values():
            group.forget_waiting()
        self._by_key = {key: group for key, group in self._by_key.items() if group.outstanding}
        self._peak = len(self._by_key)

    def in_memory(self) -> Iterator[tuple[GroupedMessage, bool]]:
        """The messages that wait and are in memory, and whether each was requeued; in any order."""
        for group in self._by_key.values():
            yield from ((message, True) for _, message in group.returned or () if not message.hollow)
            message = group.first
            while message is not None:
                yield message, False
                message = message.after

    def shrink(self) -> None:
        """Frees memory of groups that are gone."""
        count = len(self._by_key)
        if count >= self._peak:
            self._peak = count
        elif self._peak > SHRINK_FROM and count < self._peak // 8:
            self._by_key = dict(self._by_key)
            self._peak = count

    def last_returned(self) -> int:
        """The highest position that waits and was delivered before; -1 if there is none."""
        return max(
            (position for group in self._by_key.values() for position, _ in group.returned or ()), default=-1
        )

    def _own(self, holder: Holder) -> list[Entry]:
        """A holder's heap, its first entry one that it may have."""
        own = holder.heap
        while own:
            position, group = own[0]
            if (
                group.holder is holder
                and group.position == position
                and group.allowance > 0
                and not group.leaving
            ):
                break
            heappop(own)
        return own

    def _waiting(self) -> list[Entry]:
        """The heap of the groups with messages and without a holder."""
        free = self._free
        while free:
            position, group = free[0]
            if group.holder is None and group.position == position:
                break
            heappop(free)
        return free

    def _release(self, group: Group) -> bool:
        holder = group.holder
        if holder is not None:
            del holder.groups[group]
            holder.leaving -= group.leaving
        group.holder = None
        group.leaving = False
        group.allowance = UNLIMITED
        self.busy -= 1
        position = group.position
        if position < 0:
            del self._by_key[group.key]
            return False
        heappush(self._free, (position, group))
        return True
