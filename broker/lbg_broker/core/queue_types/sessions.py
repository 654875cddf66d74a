"""Sessions by name, their messages, and the consumer of each.

Both are plain lines to the store. What differs is when a message may go out: from the pool never, from a session's
line once the store has it there, because a number that was delivered must be the same after a crash.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heappop
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from lbg_broker.core.arguments import COMMITTED, SessionRequest
from lbg_broker.core.effects import Page, PageRequest, SpoolChange, SpoolRecord
from lbg_broker.core.errors import ChannelRefusal
from lbg_broker.core.message import Message
from lbg_broker.core.spool import WINDOW_MESSAGES, LetterBox, Spool, cost_of, share
from lbg_core.amqp import ReplyCode
from lbg_core.counted_nouns import counted

if TYPE_CHECKING:
    from lbg_broker.core.entities import Channel, Consumer


class PoolSpool(Spool):
    """Messages without a session yet. They leave it for a session's line in the batch that has them there, so none of
    them was ever delivered: the mark stays at 0."""

    __slots__ = ()

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self._mark = 0
        self.granted = sys.maxsize

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
        withdrawn = [fresh.popleft() for _ in range(count)]
        self.ready -= count
        self.ready_bytes -= sum([message.size for message in withdrawn])
        self._head_bytes -= sum([cost_of(message) for message in withdrawn])
        stored = [message.position for message in withdrawn if message.stored]
        if stored:
            self._unsealed.deletes += stored
            if not self._dirty:
                self._touch()
        if not self._paging and len(fresh) < share(WINDOW_MESSAGES, attended=self.attended) // 2:
            self._request_page()
        return withdrawn

    def _affordable(self, count: int, bytes_max: int) -> int:
        size = 0
        for index, message in enumerate(self._fresh):
            size += message.size
            if index == count or message.position >= self.written or (index and size > bytes_max):
                return index
        return count

    def _request_page(self) -> None:
        """A whole window: what is read moves on at once, and every page costs a commit."""
        super()._request_page()
        page = self._page
        if page is not None:
            self._page = replace(page, messages_max=2 * page.messages_max, bytes_max=2 * page.bytes_max)


class SessionSpool(Spool):
    """The messages of one session. A message's position is its sequence number less one, so positions go on without a
    gap across restarts too.

    `settled_to`: positions below are done with, because its consumer said so, even if they are still to be read.
    `on_settled` is called when a message is settled. `has_consumer`: the session has a consumer. `shuffled`: messages
    were requeued, so that the unsettled ones may not be in order. `refused`: the first and the last number of the
    latest messages that were refused one after the other.
    """

    __slots__ = ("has_consumer", "on_settled", "refused", "settled_to", "shuffled")

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self.has_consumer = False
        self.settled_to = 0
        self.refused = (1, 0)
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
        """The sequence number up to which every message is settled, while none is unsettled."""
        return max(self._first, self.settled_to)

    @property
    def processed(self) -> int:
        """The sequence number that a consumer's position must have reached: it need not count what it refused last."""
        first, last = self.refused
        return first - 1 if last == self.acknowledged else self.acknowledged

    @property
    def is_due(self) -> bool:
        """True if `take` has something to give out, or to have read. For most of many sessions it has not."""
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

    def refuse(self, message: Message) -> bool:
        number, (first, last) = message.position + 1, self.refused
        self.refused = (first if number == last + 1 else number, number)
        self.settle(message)
        return True

    def settle_through(self, sequence: int) -> None:
        """Settles every message up to this sequence number. None may be unsettled."""
        self.settled_to = sequence
        while self._returned and self._returned[0][0] < sequence:
            self._forget(heappop(self._returned)[1])
        self._forget_settled()

    def requeue(self, messages: Iterable[Message]) -> None:
        super().requeue(messages)
        self.shuffled = True
        if not self.has_consumer:
            self.rest()

    def rest(self) -> None:
        """Frees memory until the session has a consumer again, if the store has everything and nothing is unsettled:
        that would be read a second time."""
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
        """Purges nothing: what a session was given stays its own."""
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
        """Settles a message in memory that was not delivered."""
        self.ready -= 1
        self.ready_bytes -= message.size
        self.outstanding += 1
        self.outstanding_bytes += message.size
        self.settle(message)


EPOCHS: Final = 16
"""Epochs that a session records. A consumer whose position is of an older one continues after acknowledged messages,
and processes again what it had processed beyond."""

ROOM: Final = 1000
"""Messages of a session in flight when its consumer set no prefetch limit: assigned messages stay with a session for
ever, so none gets everything."""


class Session:
    """`away_since`: when its consumer went, seconds since the epoch; None while it has one, and when that was in an
    earlier life of the broker. `ending`: its last message, the End-of-Session, is in its line. `room`: how many
    unsettled messages it may have before it gets no more. `channel`: where what it was given may be. `epochs`: which
    lives of the broker gave its numbers, each from which number on, the oldest first."""

    __slots__ = ("away_since", "channel", "consumer", "ending", "epochs", "line", "name", "room")

    def __init__(self, name: str, line: SessionSpool) -> None:
        self.name = name
        self.line = line
        self.consumer: Consumer | None = None
        self.channel: Channel | None = None
        self.away_since: float | None = None
        self.ending = False
        self.room = 0
        self.epochs: list[tuple[str, int]] = []

    def enter(self, epoch: str) -> bool:
        """Its next number is given in this epoch. Returns whether that is news, and to be kept."""
        epochs = self.epochs
        if epochs and epochs[-1][0] == epoch:
            return False
        epochs.append((epoch, self.line.next_position + 1))
        # Also those whose numbers are all acknowledged: a consumer with a position before them is refused.
        del epochs[:-EPOCHS]
        return True

    def position(self, committed: int, epoch: str) -> int | None:
        """The last number that a consumer has processed which was at `committed` in `epoch`, of those that the session
        has; None where that epoch is not known. A broker that was restored has fewer than the consumer saw."""
        upper = self.line.next_position
        for token, first in reversed(self.epochs):
            if token == epoch:
                return committed if committed <= upper else max(upper, self.line.acknowledged)
            upper = first - 1
        return None

    @property
    def is_in_use(self) -> bool:
        """True if it has a consumer, or a cancelled one has unsettled messages."""
        return self.consumer is not None or self.line.outstanding > 0

    @property
    def is_over(self) -> bool:
        """True if everything up to its End-of-Session is acknowledged."""
        return self.ending and not (self.line.ready or self.line.outstanding)

    @property
    def has_room(self) -> bool:
        """True if it takes part in the round."""
        line = self.line
        return self.consumer is not None and not self.ending and line.ready + line.outstanding < self.room

    @property
    def state(self) -> Literal["live", "away", "stranded", "closing"]:
        if self.ending:
            return "closing"
        if self.is_in_use:
            return "live"
        return "stranded" if self.line.ready else "away"

    def attach(self, consumer: Consumer) -> None:
        """Its consumer is here, or one that took over."""
        limits = [limit for limit in (consumer.prefetch, consumer.channel.prefetch_total) if limit]
        self.consumer = consumer
        self.channel = consumer.channel
        self.room = min(limits, default=ROOM)
        self.away_since = None
        self.line.has_consumer = True
        self.line.shuffled = False

    def detach(self, now: float) -> None:
        """Its consumer is gone."""
        self.consumer = None
        self.away_since = now
        self.line.has_consumer = False
        if not self.line.outstanding:
            self.channel = None
        self.line.rest()

    def stored_state(self) -> dict[str, Any]:
        """State that must survive a restart, beside its line."""
        return {
            "session": self.name,
            "line": self.line.id,
            "settled_to": self.line.settled_to,
            "refused": self.line.refused,
            "ending": self.ending,
            "away_since": self.away_since,
            "epochs": self.epochs,
        }


class SessionRegistry:
    """The broker stores a session until its end: a known name is a consumer that returns or took over, an unknown one a
    new session."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._sessions: dict[str, Session] = {}

    @classmethod
    def restored(
        cls, where: str, stored: Sequence[Mapping[str, Any]], lines: Sequence[Spool]
    ) -> SessionRegistry:
        """From what was kept. Raises KeyError, TypeError or ValueError for what makes no book."""
        registry = cls(where)
        by_id = {line.id: line for line in lines}
        if len(stored) != len(by_id):
            raise ValueError(
                f"{counted(len(stored), 'session has', 'sessions have')} {counted(len(by_id), 'line')}"
            )
        for one in stored:
            line = by_id[one["line"]]
            if not isinstance(line, SessionSpool):
                raise TypeError(f"line {line.id} is no session's")
            session = registry.begin(one["session"], line)
            line.settled_to = one["settled_to"]
            first, last = one["refused"]
            line.refused = (first, last)
            session.ending = one["ending"]
            session.away_since = one["away_since"]
            session.epochs = [(epoch, first) for epoch, first in one["epochs"]]
        return registry

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._sessions.values()))

    def get(self, name: str) -> Session | None:
        """The session of this name."""
        return self._sessions.get(name)

    def begin(self, name: str, line: SessionSpool) -> Session:
        """Begins a new session."""
        session = self._sessions[name] = Session(name, line)
        return session

    def end(self, session: Session) -> None:
        """It is over: its name is free."""
        del self._sessions[session.name]

    def check(self, requested: SessionRequest, life: str) -> None:
        """Raises `ChannelRefusal` unless a consumer may have its session, from the position that it requests."""
        session = self._sessions.get(requested.name)
        if session is not None and session.is_in_use:
            reason = (
                "has a consumer" if session.consumer else "has messages unacknowledged on another channel"
            )
            raise ChannelRefusal(
                ReplyCode.RESOURCE_LOCKED, f"session '{requested.name}' of {self._where} {reason}"
            )
        committed = self.position(requested, life)
        if committed is None:
            return
        assigned = session.line.next_position if session is not None else 0
        done = session.line.processed if session is not None else 0
        if committed > assigned:
            limit = (
                "the session's last number is"
                if session is not None
                else "the session is new and its last number is"
            )
            raise self._no_position(requested, f"{limit} {assigned}")
        if committed < done:
            raise self._no_position(requested, f"the session has acknowledged up to {done}")

    def position(self, requested: SessionRequest, life: str) -> int | None:
        """The number after which a consumer goes on that may have its session; None: after what was acknowledged.

        `life` is the epoch of now: what was given in it is known for certain, so a number beyond it is refused.
        """
        session = self._sessions.get(requested.name)
        if requested.committed is None or requested.epoch is None or requested.epoch == life:
            return requested.committed
        if session is None:  # the numbers may be of a queue of this name that was deleted
            return None
        return session.position(requested.committed, requested.epoch)

    def _no_position(self, requested: SessionRequest, reason: str) -> ChannelRefusal:
        return ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED,
            f"invalid arg '{COMMITTED}' for session '{requested.name}' of {self._where}: received "
            f"'{requested.committed}' but {reason}",
        )
