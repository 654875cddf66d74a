"""The lines of a sessions queue: the pool, and one for each session.

Both are plain lines to the store. What differs is when a message may go out: from the pool never, from a session's
line once the store has it there, because a number that somebody has seen must be the same after a crash.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from heapq import heappop
from typing import Self

from lbg_broker.server.core.changes import Page, PageRequest, SpoolChange, SpoolRecord
from lbg_broker.server.core.message import Message
from lbg_broker.server.core.spool import Spool
from lbg_broker.server.core.unsealed import LetterBox
from lbg_broker.server.core.window import WINDOW_MESSAGES, cost_of, share

__all__ = ["PoolLine", "SessionLine"]


class PoolLine(Spool):
    """Messages that are nobody's yet. They leave it for a session's line in the batch that has them there, so none of
    them was ever delivered: the mark stays at 0. `emptied` is called when they are purged."""

    __slots__ = ("emptied",)

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self._mark = 0
        self.granted = sys.maxsize
        self.emptied: Callable[[], None] = _nothing

    @classmethod
    def restored(cls, record: SpoolRecord, *, touched: list[Spool]) -> Self:
        line = super().restored(record, touched=touched)
        line._mark = 0
        line.granted = sys.maxsize
        return line

    def withdraw(self, limit: int, *, bytes_max: int | None = None) -> list[Message]:
        """Take up to `limit` messages from the front, for good. Fewer than there are may come when the rest must be
        read first: the queue is due again after the next batch. `bytes_max`: only what the store has, and no
        more than so much, or one."""
        self.attended = True  # whatever the number of sessions: it has the backlog of all of them
        fresh = self._fresh
        count = min(limit, len(fresh))
        if bytes_max is not None:
            count = self._affordable(count, bytes_max)
        taken = [fresh.popleft() for _ in range(count)]
        self.ready -= count
        self.ready_bytes -= sum([message.size for message in taken])
        self._head_bytes -= sum([cost_of(message) for message in taken])
        stored = [message.position for message in taken if message.stored]
        if stored:
            self._unsealed.deletes += stored
            if not self._dirty:
                self._touch()
        if not self._paging and len(fresh) < share(WINDOW_MESSAGES, attended=self.attended) // 2:
            self._request_page()
        return taken

    def _affordable(self, count: int, bytes_max: int) -> int:
        size = 0
        for index, message in enumerate(self._fresh):
            size += message.size
            if index == count or message.position >= self.written or (index and size > bytes_max):
                return index
        return count

    def purge(self, outstanding: Sequence[int]) -> int:
        purged = super().purge(())
        self.emptied()
        return purged

    def _request_page(self) -> None:
        """A whole window: what is read moves on at once, and every page costs a commit."""
        super()._request_page()
        page = self._page
        if page is not None:
            self._page = replace(page, messages_max=2 * page.messages_max, bytes_max=2 * page.bytes_max)


class SessionLine(Spool):
    """The messages of one session. A message's position is its sequence number less one, so positions go on without a
    gap across restarts too.

    `settled_to`: positions below are done with, because its consumer said so, even if they are still to be read.
    `on_settled` is called when a message is settled, while somebody wants to know. `held`: the session has a consumer.
    `shuffled`: that gave some back, so what it was given may not be in order.
    """

    __slots__ = ("held", "on_settled", "settled_to", "shuffled")

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self.held = False
        self.settled_to = 0
        self.shuffled = False
        self.on_settled: Callable[[], None] | None = None
        self._lead = 0
        if durable:
            self._mark = self.granted = 0

    @classmethod
    def restored(cls, record: SpoolRecord, *, touched: list[Spool]) -> Self:
        line = super().restored(record, touched=touched)
        line.next_position = line._mark = line.granted = record.next_position
        line._head_end = line.next_position if record.first is None else record.first
        return line

    @property
    def acknowledged(self) -> int:
        """The sequence number up to which every message is settled, as long as none is given out."""
        return max(self._first, self.settled_to)

    @property
    def is_due(self) -> bool:
        """Whether `take` has something to give out, or to have read. For most of many sessions it has not."""
        if not self.ready:
            return False
        if self._returned:
            return True
        return self._fresh[0].position < self.granted if self._fresh else not self._paging

    @property
    def _first(self) -> int:
        """The lowest position that waits."""
        if self._returned:
            return self._returned[0][0]
        if self._fresh:
            return self._fresh[0].position
        return self._head_end if self.ready else self.next_position

    def settle(self, message: Message) -> None:
        super().settle(message)
        if self.on_settled is not None:
            self.on_settled()

    def settle_through(self, sequence: int) -> None:
        """Every message up to this sequence number is done with. None may be given out."""
        self.settled_to = sequence
        while self._returned and self._returned[0][0] < sequence:
            self._forget(heappop(self._returned)[1])
        self._forget_settled()

    def give_back(self, messages: Iterable[Message]) -> None:
        super().give_back(messages)
        self.shuffled = True
        if not self.held:
            self.rest()

    def rest(self) -> None:
        """Leave everything to the store until the session comes back, if it has everything: what is given out would
        be read a second time."""
        if self.outstanding or not self.durable or self.dropped:
            return
        self._head_end = self._first
        self._fresh.clear()
        self._returned.clear()
        self._arrivals = None
        self._head_bytes = 0
        self._epoch += 1
        self._paging = False
        self._page = None

    def purge(self, outstanding: Sequence[int]) -> int:
        """What a session was given stays its own."""
        return 0

    def page_loaded(self, page: Page) -> None:
        super().page_loaded(page)
        self._forget_settled()

    def seal(
        self, *, final: bool = False, letters: LetterBox | None = None
    ) -> tuple[SpoolChange | None, PageRequest | None]:
        if self.durable:
            self._mark = self.next_position  # what this batch has may be delivered when it is on disk
        # Nothing is withheld: numbers go on without a gap, and what moves here from the pool is deleted there.
        return super().seal(final=final)

    def _forget_settled(self) -> None:
        fresh = self._fresh
        while fresh and fresh[0].position < self.settled_to:
            message = fresh.popleft()
            self._head_bytes -= cost_of(message)
            self._forget(message)

    def _forget(self, message: Message) -> None:
        """A message in memory that is not given out is done with."""
        self.ready -= 1
        self.ready_bytes -= message.size
        self.outstanding += 1
        self.outstanding_bytes += message.size
        self.settle(message)


def _nothing() -> None:
    """Nobody wants to know."""
