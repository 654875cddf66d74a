"""A spool: messages in order, the head in memory, the rest in the store.

Every message has a position. Memory holds the messages from the front of the line up to `head_end`; what is
behind lives in the store only and is read back a page at a time. A message that is requeued returns to its
position, in front of everything that was not yet delivered.
"""

from __future__ import annotations

import heapq
import itertools
import sys
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import ClassVar, Final, Protocol, Self

from lbg_broker.core.arguments import QueueArguments
from lbg_broker.core.effects import Page, PageRequest, Row, SpoolChange, SpoolRecord
from lbg_broker.core.message import Message, Origin, Place


class SpoolOwner(Protocol):
    """The queue of a spool, as the spool uses it; `lbg_broker.core.entities.queue_of` has the whole."""

    rules: QueueArguments
    where: str

    def forget_room(self) -> None: ...


def runs_of(positions: Sequence[int]) -> list[tuple[int, int]]:
    """Sorted positions as inclusive ranges."""
    if not positions:
        return []
    if positions[-1] - positions[0] == len(positions) - 1:
        return [(positions[0], positions[-1])]
    runs: list[tuple[int, int]] = []
    first = last = positions[0]
    for position in positions[1:]:
        if position != last + 1:
            runs.append((first, last))
            first = position
        last = position
    runs.append((first, last))
    return runs


WINDOW_MESSAGES: Final = 2048
"""Undelivered messages of one line kept in memory; a page is half of it."""

WINDOW_BYTES: Final = 2 * 1024 * 1024
"""The same in bytes; one message more may go over it."""

UNATTENDED_SHARE: Final = 16
"""Divisor of the window of a spool without a consumer: there may be thousands of them."""

ATTENDED_LINES_MAX: Final = 64
"""A queue of more lines keeps the lesser share of each: 4096 whole windows would be 8 GiB."""

UNSETTLED_BYTES: Final = 16 * 1024 * 1024
"""Beyond this unsettled messages leave memory too, and are read again if they are requeued."""

UNLIMITED_BYTES: Final = 1 << 62

MESSAGE_COST_BYTES: Final = 256
"""Memory of a message beside its body and header (three objects and their places)."""


def share(window: int, *, attended: bool) -> int:
    """Share of the window that a line has; `attended`: it has a consumer."""
    return window if attended else max(window // UNATTENDED_SHARE, 2)


def _count_below(size_bytes: int, messages: Iterable[Message]) -> int:
    """Number of messages until they have so many bytes."""
    count = 0
    for message in messages:
        if size_bytes <= 0:
            break
        size_bytes -= message.size
        count += 1
    return count


def cost_of(message: Message) -> int:
    """Bytes of memory."""
    return message.size + len(message.header) + MESSAGE_COST_BYTES


LETTERS_BYTES: Final = 128 * 1024
"""Limit of bytes that move in one batch, dead letters above all: any may turn out to be one on the reserve. Or one
message, however long."""


class LetterBox:
    """Budget for messages of a batch on the reserve. `largest_bytes`: no longer letter has room; 0: no letter has."""

    def __init__(self, largest_bytes: int) -> None:
        self._largest_bytes = largest_bytes
        self._bytes = 0
        self.left_some = False
        """True if a letter is withheld."""

    def admits(self, message: Message) -> bool:
        """True if the message is written."""
        place = message.origin.place
        if place is Place.LETTER:
            total = self._bytes + message.size
            if message.size > self._largest_bytes or (self._bytes and total > LETTERS_BYTES):
                self.left_some = True
                return False
            self._bytes = max(total, 1)
        return place is not Place.NONE


class PendingChanges:
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

    def delete_range(self, first: int, last: int) -> None:
        """Deletes positions that are all on disk."""
        self._ranges.append((first, last))

    def clear(self) -> None:
        """Nothing of it is to reach the store any more."""
        self.inserts.clear()
        self.withheld.clear()

    def restore(self, inserts: Sequence[Message], deletes: Sequence[tuple[int, int]]) -> None:
        """Restores the changes of the last batch, which was not written. What was purged since stays purged."""
        firsts = [first for first, _ in self._ranges]
        inserts_left = []
        for message in inserts:
            place = bisect_right(firsts, message.position) - 1
            if place < 0 or self._ranges[place][1] < message.position:
                inserts_left.append(message)
        self.inserts = inserts_left + self.inserts
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
                (written if letters.admits(message) else self.withheld).append(message)
            inserts = written
        return inserts, deletes

    def _sealed_deletes(self) -> list[tuple[int, int]]:
        deletes, self.deletes = self.deletes, []
        ranges, self._ranges = self._ranges, []
        if not deletes:
            return ranges
        deletes.sort()
        if self.inserts and deletes[-1] >= self.inserts[0].position:
            deleted = frozenset(deletes)
            never = {message.position for message in self.inserts if message.position in deleted}
            if never:
                self.inserts = [message for message in self.inserts if message.position not in never]
                deletes = [position for position in deletes if position not in never]
        return ranges + runs_of(deletes)


_position_of: Final = attrgetter("position")

LEAD_MIN: Final = 256
LEAD_MAX: Final = 16384


class Spool:
    """One line. `durable`: its messages survive the process; otherwise the store holds only what memory has no
    room for.

    `mark` is the write-ahead of deliveries: the store records that positions below it may have been delivered,
    so that after a crash these return as redelivered. Nothing at or above `granted`, the mark on disk, is
    delivered.
    """

    __slots__ = (
        "_arrivals",
        "_dirty",
        "_epoch",
        "_fresh",
        "_head_bytes",
        "_head_end",
        "_high",
        "_lead",
        "_mark",
        "_page",
        "_paging",
        "_returned",
        "_touched",
        "_unsealed",
        "attended",
        "dropped",
        "durable",
        "granted",
        "id",
        "next_position",
        "outstanding",
        "outstanding_bytes",
        "queue",
        "ready",
        "ready_bytes",
        "written",
    )

    queue: SpoolOwner
    """Queue that the spool belongs to."""

    keeps_messages: ClassVar[bool] = False
    """True if a message that is acknowledged stays, and can be neither refused nor requeued."""

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        self.id = spool
        self.durable = durable
        self.attended = False
        """True if it has a consumer, so that a larger window pays."""
        self.dropped = False
        self.next_position = 0
        self.written = 0
        """Positions below are on disk, as far as they are stored at all."""
        self.ready = 0
        self.ready_bytes = 0
        self.outstanding = 0
        self.outstanding_bytes = 0
        self._high = 0  # positions below have been delivered at least once
        self._lead = LEAD_MIN
        self._mark = LEAD_MIN if durable else sys.maxsize
        self.granted = self._mark
        self._fresh: deque[Message] = deque()
        self._returned: list[tuple[int, Message]] = []
        self._arrivals: deque[Message] | None = None  # appended while the last page was being read
        self._head_bytes = 0
        self._head_end = 0
        self._epoch = 0
        self._paging = False
        self._page: PageRequest | None = None
        self._unsealed = PendingChanges()
        self._dirty = False
        self._touched = touched
        if durable:
            self._touch()

    @classmethod
    def restored(cls, record: SpoolRecord, *, touched: list[Spool]) -> Self:
        """The durable line of a record. New messages get positions no earlier message ever had."""
        spool = cls(record.spool, durable=True, touched=touched)
        spool.next_position = max(record.next_position, record.mark)
        spool.ready = record.messages
        spool.ready_bytes = record.bytes
        spool._head_end = 0 if record.messages else spool.next_position
        spool._high = record.mark
        spool._mark = record.mark + LEAD_MIN
        spool.granted = record.mark  # until the batch with the new mark is on disk
        return spool

    @property
    def resident(self) -> int:
        """Undelivered messages in memory, but for those that came back."""
        return len(self._fresh) + len(self._arrivals or ())

    @property
    def lowest_ready(self) -> int:
        """A position that no undelivered message is in front of: the first one's, as far as memory has it."""
        if self._returned:
            return self._returned[0][0]
        return self._fresh[0].position if self._fresh else self._head_end

    @property
    def awaits_store(self) -> bool:
        """True if what `take` did not give may be there after the next batch."""
        return self.ready > 0

    def append(self, origin: Origin, header: bytes, body: bytes) -> None:
        """Put a message at the end of the line."""
        position = self.next_position
        self.next_position = position + 1
        size = len(body)
        self.ready += 1
        self.ready_bytes += size
        message = Message(position, origin, header, body, self.durable)
        cost = size + len(header) + MESSAGE_COST_BYTES
        if self._head_end == position and self._has_room(self._fresh):
            self._fresh.append(message)
            self._head_end = position + 1
            self._head_bytes += cost
            if not self.durable:
                return
        else:
            message.stored = True
            if self._arrivals is not None:
                if self._has_room(self._arrivals):
                    self._arrivals.append(message)
                    self._head_bytes += cost
                else:
                    self._forget_arrivals()
        self._unsealed.inserts.append(message)
        if not self._dirty:
            self._touch()

    def head(self, limit: int) -> list[tuple[Message, bool]]:
        """Up to `limit` undelivered messages from the front that memory has, and whether each may have been delivered
        before. They stay as they are."""
        returned = itertools.takewhile(
            lambda message: not message.hollow,
            (message for _, message in heapq.nsmallest(limit, self._returned)),
        )
        first = [(message, True) for message in returned]
        if len(first) < len(self._returned):
            return first
        fresh = itertools.islice(self._fresh, limit - len(first))
        return first + [(message, message.position < self._high) for message in fresh]

    def take(self, limit: int, below_bytes: int = UNLIMITED_BYTES) -> tuple[list[Message], int]:
        """Up to `limit` messages from the front, and how many of them (the first ones) may have been delivered
        before. They are outstanding until settled or requeued. None is added when those before it have
        `below_bytes` or more.

        Fewer than there are may come when the rest must be read first or the mark must move: the line is due
        again after the next batch.
        """
        returned, fresh = self._returned, self._fresh
        messages: list[Message] = []
        while returned and len(messages) < limit and below_bytes > 0 and not returned[0][1].hollow:
            messages.append(heapq.heappop(returned)[1])
            below_bytes -= messages[-1].size
        redelivered = len(messages)
        count = 0 if returned else min(limit - redelivered, len(fresh))
        if count > 0 and below_bytes < self._head_bytes:
            count = _count_below(below_bytes, itertools.islice(fresh, count))
        if count > 0 and fresh[count - 1].position >= self.granted:
            count = bisect_left(fresh, self.granted, key=_position_of)
            self._lead = min(self._lead * 2, LEAD_MAX)
        if count == 1:
            message = fresh.popleft()
            redelivered += message.position < self._high
            self._high = max(self._high, message.position + 1)
            self._head_bytes -= message.size + len(message.header) + MESSAGE_COST_BYTES
            messages.append(message)
        elif count > 0:
            high = self._high
            head = [fresh.popleft() for _ in range(count)]
            if head[0].position < high:
                redelivered += sum(message.position < high for message in head)
            self._high = max(high, head[-1].position + 1)
            self._head_bytes -= sum([cost_of(message) for message in head])
            messages = messages + head if messages else head
        edge = fresh[0].position if fresh else self._high
        if edge + self._lead // 2 > self._mark:
            self._mark = edge + self._lead
            self._touch()
        size = messages[0].size if len(messages) == 1 else sum([message.size for message in messages])
        self.ready -= len(messages)
        self.ready_bytes -= size
        self.outstanding += len(messages)
        self.outstanding_bytes += size
        if returned and returned[0][1].hollow:
            self._recall()
        elif (
            not self._paging
            and self._head_end < self.next_position
            and len(fresh) < share(WINDOW_MESSAGES, attended=self.attended) // 2
        ):
            self._request_page()
        return messages, redelivered

    def settle(self, message: Message) -> None:
        """An outstanding message is done with."""
        self.outstanding -= 1
        self.outstanding_bytes -= message.size
        if message.stored:
            self._unsealed.deletes.append(message.position)
            if not self._dirty:
                self._touch()

    def refuse(self, message: Message) -> bool:
        """Settles one that its consumer refused. True if the queue's definition is different now."""
        self.settle(message)
        return False

    def requeue(self, messages: Iterable[Message]) -> None:
        """Requeues unsettled messages in their places."""
        if self.dropped:
            return
        self.queue.forget_room()
        for message in messages:
            size = message.size
            self.outstanding -= 1
            self.outstanding_bytes -= size
            self.ready += 1
            self.ready_bytes += size
            heapq.heappush(self._returned, (message.position, message))

    @property
    def first_deadline(self) -> float | None:
        """Time at which the first undelivered message expires; None when it never does, or is not in memory."""
        if self._returned:
            return self._returned[0][1].origin.deadline
        return self._fresh[0].origin.deadline if self._fresh else None

    def drop_first(self) -> Message | None:
        """Remove the first undelivered message; None when there is none in memory (it is being read)."""
        if self._returned and self._returned[0][1].hollow:
            self._recall()
            return None
        if self._returned:
            message = heapq.heappop(self._returned)[1]
        elif self._fresh:
            message = self._fresh.popleft()
            self._head_bytes -= cost_of(message)
        else:
            if not self._paging:
                self._request_page()
            return None
        self.ready -= 1
        self.ready_bytes -= message.size
        if message.stored:
            self._unsealed.deletes.append(message.position)
            self._touch()
        return message

    def purge(self, outstanding: Sequence[int]) -> int:
        """Removes every undelivered message; returns how many. `outstanding`: the positions that stay, sorted."""
        purged = self.ready
        self._unsealed.delete_all_but(outstanding, self.next_position)
        self._fresh.clear()
        self._returned.clear()
        self._arrivals = None
        self._head_bytes = 0
        self._head_end = self._high = self.next_position
        self._epoch += 1
        self._paging = False
        self._page = None
        self.ready = self.ready_bytes = 0
        self._touch()
        return purged

    def drop(self) -> None:
        """Forget everything: nothing of this line reaches the store from now on."""
        self.dropped = True
        self._dirty = True  # so that it is never touched again
        self._fresh.clear()
        self._returned.clear()
        self._unsealed.clear()
        self._arrivals = None
        self._epoch += 1
        self.ready = self.ready_bytes = 0

    def committed(self, mark: int, written: int) -> bool:
        """A batch with this mark is on disk, and all below `written`; True if there is more to deliver."""
        self.written = written
        if mark <= self.granted:
            return False
        self.granted = mark
        return self.ready > 0

    @property
    def written_to(self) -> int:
        """Once what was sealed last is written, no position below is missing from the store."""
        withheld = self._unsealed.withheld
        return withheld[0].position if withheld else self.next_position

    @property
    def overflows(self) -> bool:
        """True if memory has no room for all of it."""
        return self._head_end < self.next_position

    def offer_withheld(self) -> None:
        """Hands over withheld messages again."""
        if self._unsealed.withheld and not self._dirty:
            self._touch()

    def restore(self, change: SpoolChange) -> None:
        """Restores what was handed over last and not written: it is handed over again."""
        self._unsealed.restore(change.inserts, change.deletes)
        self._touch()

    def completed(self, page: Page) -> Page:
        """Completes a page that was read with the messages of its span for which the store had no room."""
        request = page.request
        missing: list[Row] = [
            (
                message.position,
                message.origin.wire,
                message.header,
                b"" if request.headers_only else message.body,
            )
            for message in self._unsealed.withheld
            if request.first <= message.position < page.end
            and (not request.positions or message.position in request.positions)
        ]
        return Page(request, sorted([*page.rows, *missing]), page.end) if missing else page

    def page_loaded(self, page: Page) -> None:
        """Take in what was read. An answer to a question from before a purge is dropped."""
        if page.request.epoch != self._epoch or not self._paging:
            return
        self._paging = False
        if page.request.recall:
            hollow = {position: message for position, message in self._returned if message.hollow}
            for position, _, header, body in page.rows:
                if position in hollow:
                    hollow[position].fill(header, body)
            return
        expires = self.queue.rules.message_ttl_s is not None
        origins: dict[bytes, Origin] = {}
        for position, wire, header, body in page.rows:
            origin = origins.get(wire)
            if origin is None:
                origin = origins[wire] = Origin.from_wire(wire, expires=expires)
            message = Message(position, origin, header, body, True)
            self._fresh.append(message)
            self._head_bytes += cost_of(message)
        self._head_end = page.end
        if page.end == page.request.upto and self._arrivals is not None:
            self._fresh.extend(self._arrivals)
            self._head_end = self.next_position
            self._arrivals = None
        else:
            self._forget_arrivals()

    def seal(
        self, *, final: bool = False, letters: LetterBox | None = None
    ) -> tuple[SpoolChange | None, PageRequest | None]:
        """Hands over the changes since the last time. `final`: nothing more will be delivered, so the mark falls
        back to what really was. `letters`: there is no room; what has no place in the reserve is withheld."""
        self._dirty = False
        if final and self.durable:
            self._mark = self._high
        inserts, deletes = self._unsealed.seal(letters)
        withheld = self._unsealed.withheld
        page, self._page = self._page, None
        record = None
        if self.durable:
            record = SpoolRecord(
                self.id,
                self.next_position,
                self._mark,
                self.ready + self.outstanding - len(withheld),
                self.ready_bytes + self.outstanding_bytes - sum([message.size for message in withheld]),
            )
        if record is None and not inserts and not deletes:
            return None, page
        return SpoolChange(self.id, self.durable, inserts, deletes, record), page

    def _request_page(self) -> None:
        if (
            self._head_end >= self.next_position
            or self._head_bytes >= share(WINDOW_BYTES, attended=self.attended) // 2
        ):
            return
        self._paging = True
        self._arrivals = deque()
        self._page = PageRequest(
            self.id,
            self.durable,
            self._head_end,
            self.next_position,
            share(WINDOW_MESSAGES, attended=self.attended) // 2,
            share(WINDOW_BYTES, attended=self.attended) // 2,
            self._epoch,
        )
        self._touch()

    def _recall(self) -> None:
        """Have the first of what came back hollow read again."""
        if self._paging:
            return
        self._paging = True
        first = self._returned[0][0]
        nearest = heapq.nsmallest(WINDOW_MESSAGES // 2, self._returned)
        last = max(position for position, message in nearest if message.hollow)
        self._page = PageRequest(
            self.id,
            self.durable,
            first,
            last + 1,
            WINDOW_MESSAGES // 2,
            WINDOW_BYTES // 2,
            self._epoch,
            recall=True,
        )
        self._touch()

    def _has_room(self, part: deque[Message]) -> bool:
        return len(part) < share(WINDOW_MESSAGES, attended=self.attended) and self._head_bytes < share(
            WINDOW_BYTES, attended=self.attended
        )

    def _forget_arrivals(self) -> None:
        for message in self._arrivals or ():
            self._head_bytes -= cost_of(message)
        self._arrivals = None

    def _touch(self) -> None:
        if not self._dirty:
            self._dirty = True
            self._touched.append(self)
