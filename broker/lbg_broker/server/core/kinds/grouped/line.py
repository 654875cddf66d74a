"""A line of messages in groups: it gives out the oldest of any group that is free, wherever in the line that is."""

from collections.abc import Iterable
from heapq import heappop
from typing import cast

from lbg_broker.server.core.changes import PageRequest, SpoolChange
from lbg_broker.server.core.kinds.grouped.front import GroupedFront
from lbg_broker.server.core.kinds.grouped.group import GroupedMessage, Holder
from lbg_broker.server.core.message import Message
from lbg_broker.server.core.spool import LEAD_MAX, Spool
from lbg_broker.server.core.unsealed import LetterBox
from lbg_broker.server.core.window import WINDOW_BYTES, WINDOW_MESSAGES, cost_of, share

__all__ = ["GroupedLine"]


class GroupedLine(GroupedFront):
    """What is given out, to whom, and what is read for those who wait."""

    __slots__ = ("_reach", "_wall")

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self._reach = 0  # positions from here on were never given out
        self._wall = -1  # the position that was to be given out and lies behind the mark

    @property
    def awaits_store(self) -> bool:
        """Whether more may be given out after the next batch."""
        return self._paging or self._mark > self.granted

    def take(self, limit: int) -> tuple[list[Message], int]:
        """For somebody who comes once: the oldest of the groups that nobody holds. Their groups are held until they
        are settled."""
        holder = Holder()
        taken: list[Message] = []
        again = 0
        while len(taken) < limit and (found := self.take_one(holder)) is not None:
            message, returned = found
            taken.insert(again if returned else len(taken), message)
            again += returned
        self.look_on(self._appetite if taken else max(self._appetite, 1))
        return taken, again

    def take_one(
        self, holder: Holder, *, own: bool = True, new: bool = True
    ) -> tuple[GroupedMessage, bool] | None:
        """The next message for this holder, of its own groups or of `new` ones, and whether it may have been delivered
        before. None: there is none, or it must be read first, or the mark must move."""
        choose = self.groups.choose
        while (heap := choose(holder, own=own, new=new)) is not None:
            position, group = heap[0]
            if position >= self.granted:
                self._wall = position
                return None
            if group.is_hollow:
                if not self._recalls.want(group, most=WINDOW_MESSAGES // 2):
                    return None
                heappop(heap)
                continue
            heappop(heap)
            message, returned = self.groups.give(group, holder)
            if not returned:
                self._resident -= 1
                self._head_bytes -= cost_of(message)
                if position >= self._reach:
                    self._reach = position + 1
                returned = position < self._high
            self.ready -= 1
            self.ready_bytes -= message.size
            self.outstanding += 1
            self.outstanding_bytes += message.size
            return message, returned
        return None

    @property
    def is_reading(self) -> bool:
        """Whether more may be known of the line after the next batch."""
        return self._paging

    def look_on(self, appetite: int) -> None:
        """After giving out: `appetite` is how many more would have been taken. See to what is to be read next."""
        self._appetite = appetite
        self._move_mark()
        if self._paging:
            return
        if self._recalls:
            self._recall()
        elif self._head_end < self.next_position:
            window = share(WINDOW_MESSAGES, attended=self.attended)
            if self._resident < window // 2 and (appetite or not self.groups.skipped):
                self._request_page()
            if appetite and not self._paging:
                self._look_behind()

    def rest(self) -> None:
        """Nobody consumes any more."""
        self._appetite = 0

    def settle(self, message: Message) -> None:
        """An outstanding message is done with."""
        super().settle(message)
        if self.groups.settle(cast(GroupedMessage, message).group):
            self._on_free()

    def give_back(self, messages: Iterable[Message]) -> None:
        """Outstanding messages return to their places."""
        if self.dropped:
            return
        self.queue.forget_room()
        returned = cast("list[GroupedMessage]", list(messages))
        size = sum([message.size for message in returned])
        self.outstanding -= len(returned)
        self.outstanding_bytes -= size
        self.ready += len(returned)
        self.ready_bytes += size
        self.groups.put_back(returned)

    def seal(
        self, *, final: bool = False, letters: LetterBox | None = None
    ) -> tuple[SpoolChange | None, PageRequest | None]:
        """Hand over the changes since the last time. `final`: nothing more will be given out, so the mark falls back
        to the last message that was and is still here."""
        self.groups.shrink()
        if final and self.durable:
            self._high = max(self._high if self.ready else 0, self.groups.last_returned() + 1)
        return super().seal(final=final, letters=letters)

    def _recall(self) -> None:
        """Have the first of what is known but not in memory read, of each group whose turn it is."""
        page = WINDOW_MESSAGES // 2
        positions = self._recalls.positions(most=page)
        self._ask(
            PageRequest(
                self.id,
                self.durable,
                positions[0],
                positions[-1] + 1,
                page,
                WINDOW_BYTES // 2,
                self._epoch,
                recall=True,
                positions=positions,
            )
        )

    def _move_mark(self) -> None:
        """Keep the mark ahead of what is given out; further ahead where the disk is slow to follow."""
        reach = self._reach
        if self._wall >= 0:
            reach, self._wall = self._wall, -1
            self._lead = min(self._lead * 2, LEAD_MAX)
        if reach + self._lead // 2 > self._mark:
            self._mark = reach + self._lead
            self._touch()
