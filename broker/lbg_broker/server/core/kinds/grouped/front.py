"""The front of a line in groups: of each message up to `_head_end` the group is known, and either the message is in
memory or its position is remembered (4 bytes).

No more is known than fits in the window, as in other lines, until somebody has room and finds only groups that others
hold: then the line looks on behind the window, headers first.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, cast

from lbg_broker.server.core.changes import Page, PageRequest
from lbg_broker.server.core.kinds.grouped.group import Group, GroupedMessage
from lbg_broker.server.core.kinds.grouped.index import Groups
from lbg_broker.server.core.kinds.grouped.recalling import Recalls
from lbg_broker.server.core.message import Origin
from lbg_broker.server.core.spool import Spool
from lbg_broker.server.core.window import WINDOW_BYTES, WINDOW_MESSAGES, cost_of, share

__all__ = ["GroupedFront"]

GROUP_SHARE: Final = 8
"""No group has more than this part of the window in memory where there are others."""

LOOK_MESSAGES: Final = 4096
"""Headers read at a time, behind the window."""

Reader = Callable[[bytes], bytes | None]


class GroupedFront(Spool):
    """A line that knows the groups at its front; `GroupedLine` gives them out.

    `classify` says where a message's group stands, and who is to know that a group became free.
    """

    __slots__ = ("_appetite", "_default", "_group_of", "_on_free", "_recalls", "_resident", "groups")

    def __init__(self, spool: int, *, durable: bool, touched: list[Spool]) -> None:
        super().__init__(spool, durable=durable, touched=touched)
        self.groups = Groups()
        self._recalls = Recalls()
        self._group_of: Reader = _none
        self._default = b""
        self._on_free: Callable[[], None] = _nobody
        self._appetite = 0  # how many more messages consumers would have taken
        self._resident = 0

    def classify(self, group_of: Reader, default: bytes, on_free: Callable[[], None]) -> None:
        """Messages have the group that `group_of` finds in their properties, or else (none, or an empty one) are of
        the group `default`."""
        self._group_of, self._default, self._on_free = group_of, default, on_free

    @property
    def resident(self) -> int:
        """Undelivered messages in memory, but for those that came back."""
        return self._resident + len(self._arrivals or ())

    def append(self, origin: Origin, header: bytes, body: bytes) -> None:
        """Put a message at the end of the line."""
        position = self.next_position
        self.next_position = position + 1
        self.ready += 1
        self.ready_bytes += len(body)
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

    def purge(self, outstanding: Sequence[int]) -> int:
        """Remove every undelivered message and say how many. `outstanding`: the positions that stay, sorted."""
        purged = super().purge(outstanding)
        self._forget_waiting()
        return purged

    def drop(self) -> None:
        """Forget everything: nothing of this line reaches the store from now on."""
        super().drop()
        self._forget_waiting()

    def page_loaded(self, page: Page) -> None:
        """Take in what was read. An answer to a question from before a purge is dropped."""
        request = page.request
        if request.epoch != self._epoch or not self._paging:
            return
        self._paging = False
        if request.recall:
            for message in self._recalls.take_in(page.rows, self.groups):
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
            self._take_in_arrivals(cast("deque[GroupedMessage]", self._arrivals))
        else:
            self._forget_arrivals()

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

    def _take_in(self, message: GroupedMessage) -> bool:
        """Know the newest message, if there is room or somebody waits for one; whether it is kept in memory."""
        window = WINDOW_MESSAGES if self.attended else share(WINDOW_MESSAGES, attended=False)
        keep = False
        if self._appetite or self._resident < window:
            group = self._group(message.header)
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

    def _arrive(self, message: GroupedMessage) -> None:
        """A message behind what is not known yet: it may be when the page that is being read has come."""
        if self._arrivals is None:
            return
        if self._has_room(self._arrivals):
            self._arrivals.append(message)
            self._head_bytes += cost_of(message)
        else:
            self._forget_arrivals()

    def _take_in_arrivals(self, arrivals: "deque[GroupedMessage]") -> None:
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

    def _forget_waiting(self) -> None:
        self._recalls.forget()
        self.groups.forget_waiting()
        self._resident = 0


def _none(_header: bytes) -> bytes | None:
    """Nothing says where a group stands."""
    return None


def _nobody() -> None:
    """Nobody waits for a group to become free."""
