"""Spool of message groups: delivers the oldest message of any free group, at any position.

No more is in memory than fits in the window, as in other spools, until a consumer has room and all groups in the window
have other holders: then the spool reads ahead behind the window, headers first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, nsmallest
from typing import Final, cast

from lbg_broker.core.effects import Page, PageRequest, Row, SpoolChange
from lbg_broker.core.message import Message, Origin
from lbg_broker.core.queue_types.group_index import Group, GroupedMessage, GroupIndex, Holder
from lbg_broker.core.spool import (
    LEAD_MAX,
    UNLIMITED_BYTES,
    WINDOW_BYTES,
    WINDOW_MESSAGES,
    LetterBox,
    Spool,
    cost_of,
    share,
)

EACH_MIN_PARTS: Final = 4
"""Of what is read together no group gets more than this part."""


class PageRequests:
    """The groups whose first message must be read. They are on no heap before."""

    __slots__ = ("_hollow", "_reading", "_requested", "_skipped")

    def __init__(self) -> None:
        self._requested: list[Group] = []
        self._reading: list[Group] = []
        self._skipped: dict[int, Group] = {}  # the positions that are being read
        self._hollow: dict[int, GroupedMessage] = {}  # … and those of messages that came back hollow

    def request(self, group: Group, *, most: int) -> bool:
        """Requests the first messages of a group; False when `most` groups are requested already."""
        if not group.reading:
            if len(self._requested) >= most:
                return False
            group.reading = True
            self._requested.append(group)
        return True

    def positions(self, *, most: int) -> list[int]:
        """Positions to read now, sorted: about `most` positions, the first of each requested group. One whose first
        message has come back in memory meanwhile is on a heap again, and needs none."""
        if not self._requested:
            return []
        for group in self._requested:
            group.reading = group.position >= 0 and group.is_hollow
        self._reading, self._requested = [group for group in self._requested if group.reading], []
        each = max(most // max(len(self._reading), EACH_MIN_PARTS), 1)
        for group in self._reading:
            if group.returned:
                self._hollow.update(nsmallest(each, (entry for entry in group.returned if entry[1].hollow)))
            elif group.skipped:
                self._skipped.update((position, group) for position in group.skipped.lowest(each))
        return sorted((*self._skipped, *self._hollow))

    def place(self, rows: Sequence[Row], groups: GroupIndex) -> list[GroupedMessage]:
        """Places what was read, and offers the groups again; returns the messages that are new in memory."""
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
        """Forgets all requests."""
        for group in (*self._requested, *self._reading):
            group.reading = False
        self._requested, self._reading, self._skipped, self._hollow = [], [], {}, {}


GROUP_SHARE: Final = 8
"""No group has more than this part of the window in memory where there are others."""

HEADERS_READ: Final = 4096
"""Headers read at a time, behind the window."""

Reader = Callable[[bytes], bytes | None]


def _none(_header: bytes) -> bytes | None:
    """A queue without a group header."""
    return None


def _no_action() -> None:
    """Nothing waits for a group to become free."""


class GroupBacklog(Spool):
    """Dispatch of message groups: next messages, their holders, and pages to read."""

    __slots__ = (
        "_appetite",
        "_default",
        "_group_of",
        "_on_free",
        "_reach",
        "_recalls",
        "_resident",
        "_wall",
        "groups",
    )

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self.groups = GroupIndex()
        self._recalls = PageRequests()
        self._group_of: Reader = _none
        self._default = b""
        self._on_free: Callable[[], None] = _no_action
        self._appetite = 0  # how many more messages consumers would have taken
        self._resident = 0
        self._reach = 0  # positions from here on were never delivered
        self._wall = -1  # the next position to deliver, behind the mark

    def classify(self, group_of: Reader, default: bytes, on_free: Callable[[], None]) -> None:
        """Messages have the group that `group_of` finds in their properties, or else (none, or an empty one) are of
        the group `default`."""
        self._group_of, self._default, self._on_free = group_of, default, on_free

    @property
    def resident(self) -> int:
        """Undelivered messages in memory, but for those that came back."""
        return self._resident + len(self._arrivals or ())

    def append(self, origin: Origin, header: bytes, body: bytes) -> None:
        """Appends a message."""
        position = self.next_position
        self.next_position = position + 1
        self.ready += 1
        self.ready_bytes += len(body)
        message = GroupedMessage(position, origin, header, body, self.durable)
        if self._head_end == position:
            if self._place(message) and not message.stored:
                return
        else:
            message.stored = True
            self._arrive(message)
        self._unsealed.inserts.append(message)
        if not self._dirty:
            self._touch()

    def purge(self, outstanding: Sequence[int]) -> int:
        """Removes every undelivered message; returns how many. `outstanding`: the positions that stay, sorted."""
        purged = super().purge(outstanding)
        self._forget_waiting()
        return purged

    def drop(self) -> None:
        """Forget everything: nothing of this line reaches the store from now on."""
        super().drop()
        self._forget_waiting()

    def page_loaded(self, page: Page) -> None:
        """Places what was read. A page that was requested before a purge is dropped."""
        request = page.request
        if request.epoch != self._epoch or not self._paging:
            return
        self._paging = False
        if request.recall:
            for message in self._recalls.place(page.rows, self.groups):
                self._resident += 1
                self._head_bytes += cost_of(message)
            return
        origins: dict[bytes, Origin] = {}
        for position, wire, header, body in page.rows:
            group = self._group(header)
            if request.headers_only or not self._has_place(group):
                self.groups.skip(group, position)
                continue
            origin = origins.get(wire)
            if origin is None:
                origin = origins[wire] = Origin.from_wire(wire)
            self._join(group, GroupedMessage(position, origin, header, body, True))
        self._head_end = page.end
        if page.end == request.upto and self._arrivals is not None:
            self._place_arrivals(cast("deque[GroupedMessage]", self._arrivals))
        else:
            self._forget_arrivals()

    def _read_headers(self) -> None:
        """Requests headers behind the window: a message for a waiting consumer may be there."""
        self._arrivals = deque()
        self._request(
            PageRequest(
                self.id,
                self.durable,
                self._head_end,
                self.next_position,
                HEADERS_READ,
                WINDOW_BYTES,
                self._epoch,
                headers_only=True,
            )
        )

    def _request(self, request: PageRequest) -> None:
        self._paging = True
        self._page = request
        self._touch()

    def _place(self, message: GroupedMessage) -> bool:
        """Indexes the newest message, if there is room or a consumer waits; returns True if it stays in memory."""
        window = WINDOW_MESSAGES if self.attended else share(WINDOW_MESSAGES, attended=False)
        is_resident = False
        if self._appetite or self._resident < window:
            group = self._group(message.header)
            is_resident = self._has_place(group)
            if is_resident:
                self._join(group, message)
                self._head_end = message.position + 1
            elif self._appetite:
                self.groups.skip(group, message.position)
                self._head_end = message.position + 1
            else:
                self.groups.forget_if_idle(group)
        message.stored = message.stored or not is_resident
        return is_resident

    def _arrive(self, message: GroupedMessage) -> None:
        """A message behind what is not known yet: it may be when the page that is being read has come."""
        if self._arrivals is None:
            return
        if self._has_room(self._arrivals):
            self._arrivals.append(message)
            self._head_bytes += cost_of(message)
        else:
            self._forget_arrivals()

    def _place_arrivals(self, arrivals: deque[GroupedMessage]) -> None:
        for message in arrivals:
            self._head_bytes -= cost_of(message)
            group = self._group(message.header)
            if self._has_place(group):
                self._join(group, message)
            else:
                self.groups.skip(group, message.position)
        self._head_end = self.next_position
        self._arrivals = None

    def _group(self, header: bytes) -> Group:
        key = self._group_of(header) or self._default
        return self.groups.get(key) or self.groups.add(key)

    def _has_place(self, group: Group) -> bool:
        """True if one message more of the group may be in memory: a group has a part of the window, and when a consumer
        waits, what is delivered at once needs no room. Behind a message that is not in memory none of its group is."""
        if group.skipped:
            return False
        window = WINDOW_MESSAGES if self.attended else share(WINDOW_MESSAGES, attended=False)
        if self._resident < window and self._head_bytes < share(WINDOW_BYTES, attended=self.attended):
            return group.resident < window // GROUP_SHARE or group.resident < window // (len(self.groups) + 1)
        if self._appetite and group.position < 0 and group.allowance > 0:
            self._appetite -= 1
            return True
        return False

    def _join(self, group: Group, message: GroupedMessage) -> None:
        self.groups.join(group, message)
        self._resident += 1
        self._head_bytes += cost_of(message)

    def _forget_waiting(self) -> None:
        self._recalls.forget()
        self.groups.forget_waiting()
        self._resident = 0

    @property
    def awaits_store(self) -> bool:
        """True if more may be delivered after the next batch."""
        return self._paging or self._mark > self.granted

    def head(self, limit: int) -> list[tuple[Message, bool]]:
        """Up to `limit` undelivered messages from the front, without those that memory does not have."""
        first = nsmallest(limit, self.groups.in_memory(), key=lambda one: one[0].position)
        return [(message, returned or message.position < self._high) for message, returned in first]

    def take(self, limit: int, below_bytes: int = UNLIMITED_BYTES) -> tuple[list[Message], int]:
        """For basic.get: the oldest messages of free groups. Their groups have a holder until they are settled."""
        holder = Holder()
        messages: list[Message] = []
        again = 0
        while len(messages) < limit and below_bytes > 0 and (taken := self.take_one(holder)) is not None:
            message, returned = taken
            messages.insert(again if returned else len(messages), message)
            below_bytes -= message.size
            again += returned
        self.read_ahead(self._appetite if messages else max(self._appetite, 1))
        return messages, again

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
                if not self._recalls.request(group, most=WINDOW_MESSAGES // 2):
                    return None
                heappop(heap)
                continue
            heappop(heap)
            message, returned = self.groups.deliver(group, holder)
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
        """True if more may be known of the line after the next batch."""
        return self._paging

    def read_ahead(self, appetite: int) -> None:
        """Requests what is to be read next, after deliveries. `appetite`: how many more would have been taken."""
        self._appetite = appetite
        self._move_mark()
        if self._paging:
            return
        page = WINDOW_MESSAGES // 2
        if positions := self._recalls.positions(most=page):
            self._read_due(positions, page)
        elif self._head_end < self.next_position:
            window = share(WINDOW_MESSAGES, attended=self.attended)
            if self._resident < window // 2 and (appetite or not self.groups.skipped):
                self._request_page()
            if appetite and not self._paging:
                self._read_headers()

    def rest(self) -> None:
        """The spool has no consumer any more."""
        self._appetite = 0

    def settle(self, message: Message) -> None:
        """An outstanding message is done with."""
        super().settle(message)
        if self.groups.settle(cast(GroupedMessage, message).group):
            self._on_free()

    def requeue(self, messages: Iterable[Message]) -> None:
        """Requeues unsettled messages in their places."""
        if self.dropped:
            return
        self.queue.forget_room()
        returned = cast("list[GroupedMessage]", list(messages))
        size = sum([message.size for message in returned])
        self.outstanding -= len(returned)
        self.outstanding_bytes -= size
        self.ready += len(returned)
        self.ready_bytes += size
        self.groups.requeue(returned)

    def seal(
        self, *, final: bool = False, letters: LetterBox | None = None
    ) -> tuple[SpoolChange | None, PageRequest | None]:
        """Hands over the changes since the last time. `final`: nothing more will be delivered, so the mark falls back
        to the last message that was and is still here."""
        self.groups.shrink()
        if final and self.durable:
            self._high = max(self._high if self.ready else 0, self.groups.last_returned() + 1)
        return super().seal(final=final, letters=letters)

    def _read_due(self, positions: list[int], page: int) -> None:
        """Requests the first messages of due groups that are indexed and not in memory."""
        self._request(
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
        """Moves the mark ahead of deliveries; further ahead where the disk is slow to follow."""
        reach = self._reach
        if self._wall >= 0:
            reach, self._wall = self._wall, -1
            self._lead = min(self._lead * 2, LEAD_MAX)
        if reach + self._lead // 2 > self._mark:
            self._mark = reach + self._lead
            self._touch()
