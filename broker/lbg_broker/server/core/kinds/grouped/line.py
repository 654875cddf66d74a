"""A line of messages in groups: it gives out the oldest of any group that is free, wherever in the line that is.

The front of the line is known: of each message up to `_head_end` the group is, and either the message is in memory or
its position is remembered (4 bytes). The line knows no more than its window, as others do, until somebody has room and
finds only groups that others hold: then it reads on behind the window, first headers only.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, nsmallest
from typing import Final, cast

from lbg_broker.server.core.changes import Page, PageRequest, SpoolChange
from lbg_broker.server.core.kinds.grouped.group import Group, GroupedMessage, Holder
from lbg_broker.server.core.kinds.grouped.index import Groups
from lbg_broker.server.core.message import Message, Origin
from lbg_broker.server.core.spool import LEAD_MAX, Spool
from lbg_broker.server.core.window import WINDOW_BYTES, WINDOW_MESSAGES, cost_of, share

__all__ = ["GroupedLine"]

Reader = Callable[[bytes], bytes | None]

GROUP_SHARE: Final = 8
"""No group has more than this part of the window in memory where there are others."""

LOOK_MESSAGES: Final = 4096
"""Headers read at a time, behind the window."""


def _nobody() -> None:
    """Nobody waits for a group to become free."""


class GroupedLine(Spool):
    """`classify` says where a message's group stands, and who is to know that a group became free."""

    __slots__ = (
        "_appetite",
        "_asked",
        "_default",
        "_group_of",
        "_hollow",
        "_on_free",
        "_reach",
        "_reading",
        "_resident",
        "_wall",
        "_wanted",
        "groups",
    )

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self.groups = Groups()
        self._group_of: Reader = lambda _header: None
        self._default = b""
        self._on_free: Callable[[], None] = _nobody
        self._appetite = 0  # how many more consumers would have taken
        self._reach = 0  # positions from here on were never given out
        self._resident = 0
        self._wall = -1  # the position that was to be given out and lies behind the mark
        self._wanted: list[Group] = []  # what waits first in these has to be read
        self._reading: list[Group] = []  # … and is being read
        self._asked: dict[int, Group] = {}  # the skipped positions that are being read
        self._hollow: dict[int, GroupedMessage] = {}  # … and what came back hollow

    def classify(self, group_of: Reader, default: bytes, on_free: Callable[[], None]) -> None:
        """Messages have the group that `group_of` finds in their properties, or else (none, or an empty one) are of
        the group `default`."""
        self._group_of, self._default, self._on_free = group_of, default, on_free

    @property
    def resident(self) -> int:
        """Undelivered messages in memory, but for those that came back."""
        return self._resident + len(self._arrivals or ())

    @property
    def awaits_store(self) -> bool:
        """Whether more may be given out after the next batch."""
        return self._paging or self._mark > self.granted

    def append(self, origin: Origin, header: bytes, body: bytes) -> None:
        """Put a message at the end of the line."""
        position = self.next_position
        self.next_position = position + 1
        size = len(body)
        self.ready += 1
        self.ready_bytes += size
        message = GroupedMessage(position, origin, header, body, self.durable)
        if self._head_end == position:
            if self._take_in(message) and not message.stored:
                return
        else:
            message.stored = True
            self._arrive(message)
        self._unsealed.inserts.append(message)
        if not self._dirty:
            self._touch()

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

    def take_one(self, holder: Holder) -> tuple[GroupedMessage, bool] | None:
        """The next message for this holder, and whether it may have been delivered before. None: there is none, or it
        must be read first, or the mark must move."""
        choose = self.groups.choose
        while (heap := choose(holder)) is not None:
            position, group = heap[0]
            if position >= self.granted:
                self._wall = position
                return None
            if group.is_hollow:
                if not self._want(group):
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

    def look_on(self, appetite: int) -> None:
        """After giving out: `appetite` is how many more would have been taken. See to what is to be read next."""
        self._appetite = appetite
        self._move_mark()
        if self._paging:
            return
        if self._wanted:
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
        returned = cast("list[GroupedMessage]", list(messages))
        size = sum([message.size for message in returned])
        self.outstanding -= len(returned)
        self.outstanding_bytes -= size
        self.ready += len(returned)
        self.ready_bytes += size
        self.groups.put_back(returned)

    def purge(self, outstanding: Sequence[int]) -> int:
        """Remove every undelivered message and say how many. `outstanding`: the positions that stay, sorted."""
        purged = super().purge(outstanding)
        self._forget()
        return purged

    def drop(self) -> None:
        """Forget everything: nothing of this line reaches the store from now on."""
        super().drop()
        self._forget()

    def page_loaded(self, page: Page) -> None:
        """Take in what was read. An answer to a question from before a purge is dropped."""
        request = page.request
        if request.epoch != self._epoch or not self._paging:
            return
        self._paging = False
        if request.recall:
            self._recalled(page)
            return
        origins: dict[bytes, Origin] = {}
        for position, wire, header, body in page.rows:
            group = self._known(header)
            if request.headers_only or not self._has_place(group):
                self.groups.skip(group, position)
                continue
            origin = origins.get(wire)
            if origin is None:
                origin = origins[wire] = Origin.from_wire(wire)
            self._join(group, GroupedMessage(position, origin, header, body, True))
        self._head_end = page.end
        if page.end == request.upto and self._arrivals is not None:
            for message in self._arrivals:
                self._head_bytes -= cost_of(message)
                group = self._known(message.header)
                if self._has_place(group):
                    self._join(group, cast(GroupedMessage, message))
                else:
                    self.groups.skip(group, message.position)
            self._head_end = self.next_position
            self._arrivals = None
        else:
            self._forget_arrivals()

    def seal(self, *, final: bool = False) -> tuple[SpoolChange | None, PageRequest | None]:
        """Hand over the changes since the last time. `final`: nothing more will be given out, so the mark falls back
        to the last message that was and is still here."""
        self.groups.shrink()
        if final and self.durable:
            self._high = max(self._high if self.ready else 0, self.groups.last_returned() + 1)
        return super().seal(final=final)

    # --- inside ------------------------------------------------------------------------------------------------

    def _take_in(self, message: GroupedMessage) -> bool:
        """Know the newest message, if there is room or somebody waits for one; whether it is kept in memory."""
        window = WINDOW_MESSAGES if self.attended else share(WINDOW_MESSAGES, attended=False)
        keep = False
        if self._appetite or self._resident < window:
            key = self._group_of(message.header) or self._default
            group = self.groups.get(key) or self.groups.add(key)
            keep = self._has_place(group)
            if keep:
                self._join(group, message)
                self._head_end = message.position + 1
            elif self._appetite:
                self.groups.skip(group, message.position)
                self._head_end = message.position + 1
            else:
                self.groups.forget_if_idle(group)
        message.stored = message.stored or not keep
        return keep

    def _known(self, header: bytes) -> Group:
        key = self._group_of(header) or self._default
        return self.groups.get(key) or self.groups.add(key)

    def _has_place(self, group: Group) -> bool:
        """Whether one message more of the group may be in memory: a group has a part of the window, and when somebody
        waits, what goes out at once needs no room. Behind a message that is not in memory none of its group is."""
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

    def _arrive(self, message: GroupedMessage) -> None:
        """A message behind what is not known yet: it may be known when the page that is being read has come."""
        if self._arrivals is None:
            return
        if self._has_room(self._arrivals):
            self._arrivals.append(message)
            self._head_bytes += cost_of(message)
        else:
            self._forget_arrivals()

    def _want(self, group: Group) -> bool:
        """Have what waits first in a group read; False when enough is being read."""
        if not group.reading:
            if len(self._wanted) >= WINDOW_MESSAGES // 2:
                return False
            group.reading = True
            self._wanted.append(group)
        return True

    def _recall(self) -> None:
        """Have the first of what is known but not in memory read, of each group whose turn it is."""
        self._reading, self._wanted = self._wanted, []
        page = WINDOW_MESSAGES // 2
        each = max(page // max(len(self._reading), GROUP_SHARE // 2), 1)
        for group in self._reading:
            if group.returned:
                hollow = (entry for entry in group.returned if entry[1].hollow)
                self._hollow.update(nsmallest(each, hollow))
            elif group.skipped:
                self._asked.update((position, group) for position in group.skipped.lowest(each))
        positions = sorted((*self._asked, *self._hollow))
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

    def _recalled(self, page: Page) -> None:
        for position, wire, header, body in page.rows:
            if position in self._hollow:
                self._hollow[position].fill(header, body)
            elif position in self._asked:
                message = GroupedMessage(position, Origin.from_wire(wire), header, body, True)
                self.groups.bring_back(self._asked[position], message)
                self._resident += 1
                self._head_bytes += cost_of(message)
        for group in self._reading:
            group.reading = False
            self.groups.offer(group)
        self._reading, self._asked, self._hollow = [], {}, {}

    def _look_behind(self) -> None:
        """Have headers read of what is behind the known front: somebody's turn may be there."""
        self._arrivals = deque()
        self._ask(
            PageRequest(
                self.id,
                self.durable,
                self._head_end,
                self.next_position,
                LOOK_MESSAGES,
                WINDOW_BYTES,
                self._epoch,
                headers_only=True,
            )
        )

    def _ask(self, request: PageRequest) -> None:
        self._paging = True
        self._page = request
        self._touch()

    def _move_mark(self) -> None:
        """Keep the mark ahead of what is given out; further ahead where the disk is slow to follow."""
        reach = self._reach
        if self._wall >= 0:
            reach, self._wall = self._wall, -1
            self._lead = min(self._lead * 2, LEAD_MAX)
        if reach + self._lead // 2 > self._mark:
            self._mark = reach + self._lead
            self._touch()

    def _forget(self) -> None:
        for group in (*self._wanted, *self._reading):
            group.reading = False
        self.groups.forget_waiting()
        self._wanted, self._reading, self._asked, self._hollow = [], [], {}, {}
        self._resident = 0
