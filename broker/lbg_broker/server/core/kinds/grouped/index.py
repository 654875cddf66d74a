"""Which groups there are, who holds them, and which message is next for whom."""

from collections.abc import Iterable
from heapq import heappop, heappush
from typing import Final

from lbg_broker.server.core.kinds.grouped.group import UNLIMITED, Entry, Group, GroupedMessage, Holder

__all__ = ["Groups"]

SHRINK_FROM: Final = 4096
"""A table that once held more groups than this is made anew when an eighth of them is left: a dictionary gives
nothing back by itself."""


class Groups:
    """The groups that have messages waiting or given out; of others nothing is remembered.

    The law is kept here: what is given out of a group and not settled is with one holder.
    """

    __slots__ = ("_by_key", "_free", "_peak", "busy", "skipped")

    def __init__(self) -> None:
        self._by_key: dict[bytes, Group] = {}
        self._free: list[Entry] = []  # groups nobody holds, by their first message
        self._peak = 0
        self.busy = 0
        """Groups that somebody holds."""
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
        """Remember nothing of a group that nothing waits in and nobody holds."""
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
        """What waits first in a group has changed, or who may have it."""
        position = group.position
        if position < 0:
            return
        holder = group.holder
        if holder is None:
            heappush(self._free, (position, group))
        elif group.allowance > 0 and not group.leaving:
            heappush(holder.heap, (position, group))

    def leave(self, group: Group) -> None:
        """A group is wanted for somebody else: its holder gets nothing more of it, and when all that it has of it is
        settled or has come back, the group is free."""
        assert group.holder is not None
        group.leaving = True
        group.holder.leaving += 1

    def choose(self, holder: Holder, *, own: bool = True, new: bool = True) -> list[Entry] | None:
        """The heap whose first entry is the next for this holder: the oldest message of its own groups and of those
        that are free (`new`). None: there is none for it."""
        held = self._own(holder) if own else []
        free = self._waiting() if new else []
        if not held:
            return free or None
        return held if not free or held[0] < free[0] else free

    def give(self, group: Group, holder: Holder) -> tuple[GroupedMessage, bool]:
        """The first message of a group, now with the holder, and whether it came back before. The group's entry is off
        its heap, and the message is in memory."""
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
        """A message of the group is done with. Whether others of it may be given out for that."""
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

    def put_back(self, messages: Iterable[GroupedMessage]) -> None:
        """Messages that were given out wait at their places again."""
        groups: dict[Group, None] = {}
        for message in messages:
            group = message.group
            group.put_back(message)
            group.outstanding -= 1
            group.allowance += 1
            groups[group] = None
        for group in groups:
            if group.outstanding:
                self.offer(group)
            else:
                self._release(group)

    def forget_waiting(self) -> None:
        """Nothing waits any more; what is given out stays with its holders."""
        self._free.clear()
        self.skipped = 0
        for group in self._by_key.values():
            group.forget_waiting()
        self._by_key = {key: group for key, group in self._by_key.items() if group.outstanding}
        self._peak = len(self._by_key)

    def shrink(self) -> None:
        """Let go of room that many groups took which are no more."""
        count = len(self._by_key)
        if count >= self._peak:
            self._peak = count
        elif self._peak > SHRINK_FROM and count < self._peak // 8:
            self._by_key = dict(self._by_key)
            self._peak = count

    def last_returned(self) -> int:
        """The highest position that waits and was given out before; -1 if there is none."""
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
        """The heap of the groups that nobody holds and that have messages."""
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
