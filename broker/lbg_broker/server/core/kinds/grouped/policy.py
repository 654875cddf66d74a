"""Sharing out a line in groups: consumers take turns, and each gets the oldest message that may be given to it.

A consumer may say how many groups it can work on at a time (`x-group-concurrency`). The groups are then shared out in
proportion to that, and one that is idle gets some of those that others hold, who are asked for them with basic.revoke:
nothing is taken away, so nothing is repeated, and a group moves when what its holder has begun is settled.

How many it really works on it may say later, and again (`basic.capacity`): what it has beyond that has not begun, and
goes to one that is idle. Shares stay in proportion to the first number, which a member that has just come knows too.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from lbg_broker.server.core.consumer import Consumer
from lbg_broker.server.core.dealing import Policy, Share
from lbg_broker.server.core.kinds.grouped.group import UNLIMITED, Group, GroupedMessage, Holder
from lbg_broker.server.core.kinds.grouped.line import GroupedLine
from lbg_broker.server.core.kinds.grouped.shares import Party, moves
from lbg_broker.server.core.message import Message
from lbg_broker.server.core.reading_arguments import ArgumentReader
from lbg_broker.server.core.revocation import ask_back

if TYPE_CHECKING:
    from lbg_broker.server.core.state import State

__all__ = ["GroupedPolicy"]

CONCURRENCY: Final = "x-group-concurrency"

Load = tuple[bool, float]
"""Of a consumer that says what it can work on: groups that are free go to the least."""


class _Server(Holder):
    """A consumer as a holder of groups, and what it gets in this round.

    `concurrency`: how many groups it can work on at a time; None: it does not say, and has as many as its prefetch
    admits. `capacity`: how many of these it works on as far as it has said. `is_revocable`: it can be asked for
    what it has, so it may have more while nobody else wants them.
    """

    __slots__ = ("again", "capacity", "concurrency", "consumer", "credit", "fresh", "is_revocable", "slots")

    def __init__(self, consumer: Consumer) -> None:
        said = None if consumer.no_ack else consumer.arguments.get(CONCURRENCY)
        super().__init__(slides=said is not None)
        self.consumer = consumer
        self.concurrency = cast("int | None", said)
        self.capacity = self.concurrency or UNLIMITED
        self.is_revocable = consumer.channel.connection.revocable
        self.credit = 0
        self.slots = 0  # groups for which its window has a message at least
        self.again: list[Message] = []  # may have been delivered before
        self.fresh: list[Message] = []

    def look(self) -> None:
        """How many messages there is room for now, and how many of one group at a time."""
        consumer = self.consumer
        self.credit = consumer.credit()
        limits = () if consumer.no_ack else (consumer.prefetch, consumer.channel.prefetch_total)
        limit = min([limit for limit in limits if limit], default=UNLIMITED)
        self.limit = limit if self.concurrency is None else max(limit // self.concurrency, 1)
        self.slots = 0 if self.concurrency is None else min(self.concurrency, limit // 2)

    @property
    def reserve(self) -> int:
        """Room in the window that only groups it does not hold yet may take: a message of each that it could work on
        besides."""
        return max(self.slots - len(self.groups), 0)

    @property
    def load(self) -> Load:
        """Whether it has all that it works on, and groups it holds by groups it can work on. Those that it was asked
        for count: what it has begun of them is in its hands."""
        held = len(self.groups)
        return held >= self.capacity, held / (self.concurrency or UNLIMITED)

    @property
    def is_eager(self) -> bool:
        """Whether it may have one group more: beyond what it can work on only if it can be asked for it."""
        return self.concurrency is None or self.is_revocable or len(self.groups) < self.concurrency

    def may_begin(self, least_load: Load) -> bool:
        """Whether a group that is free may be its: not where another consumer has less to do."""
        return self.concurrency is None or (self.is_eager and self.load <= least_load)

    def hand_over(self) -> tuple[list[Message], int]:
        """What it got. Of each group what was delivered before comes first, so all that was may."""
        again, fresh = self.again, self.fresh
        self.again, self.fresh = [], []
        return again + fresh if again else fresh, len(again)


class GroupedPolicy(Policy):
    """Consumers of message groups."""

    def __init__(self, state: "State", line: GroupedLine) -> None:
        super().__init__()
        self._state = state
        self._line: Final = line
        self._turn: deque[_Server] = deque()

    def admit(self, consumer: Consumer, arguments: ArgumentReader) -> None:
        arguments.number(CONCURRENCY, least=1)

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        self._turn.append(_Server(consumer))

    def remove(self, consumer: Consumer) -> None:
        """Groups of which it still has something stay its own until that is settled or given back."""
        super().remove(consumer)
        self._turn = deque(server for server in self._turn if server.consumer is not consumer)

    def resize(self, consumer: Consumer, groups: int) -> None:
        for server in self._turn:
            if server.consumer is consumer and server.concurrency is not None:
                server.capacity = min(groups, server.concurrency)

    def deal(self) -> Iterator[Share]:
        turn, line = self._turn, self._line
        if not turn:
            line.rest()
            return
        for server in turn:
            server.look()
        going_on = True
        while going_on:
            going_on = False
            refused, least_load = 0, self._least_load()
            while True:
                if refused == len(turn):
                    former, least_load, refused = least_load, self._least_load(), 0
                    if least_load == former:
                        break
                server = turn[0]
                turn.rotate(-1)
                found = None
                if server.credit > 0:
                    is_new = server.may_begin(least_load)
                    found = line.take_one(server, own=server.credit > server.reserve, new=is_new)
                if found is None:
                    refused += 1
                    continue
                refused = 0
                server.credit -= 1
                message, again = found
                (server.again if again else server.fresh).append(message)
                channel = server.consumer.channel
                if channel.prefetch_total:  # room for one consumer is room for all of the channel
                    yield line, server.consumer, *server.hand_over()
                    for sibling in turn:
                        if sibling.consumer.channel is channel:
                            sibling.look()
            for server in turn:
                if server.fresh or server.again:
                    going_on = going_on or server.consumer.no_ack  # what is settled at once is free again
                    yield line, server.consumer, *server.hand_over()
                going_on = self._fill(server) or going_on
        line.look_on(sum([server.credit for server in turn if server.is_eager]))
        self._even_out()

    def describe(self) -> Mapping[str, Any]:
        groups = self._line.groups
        return {"message_groups": {"known": len(groups), "busy": groups.busy}}

    # --- inside ------------------------------------------------------------------------------------------------

    def _fill(self, server: _Server) -> bool:
        """Let few groups have what the window has room for, but for one message of each group that may come yet.
        Whether that is anything."""
        if server.concurrency is None:
            return False
        room = server.credit - server.reserve
        if not server.groups or room <= 0 or len(server.groups) >= server.concurrency:
            return False
        waiting = [
            group
            for group in server.groups
            if group.position >= 0 and not group.leaving and not group.allowance and not group.reading
        ]
        for group in waiting[:room]:
            self._line.groups.allow(group, max(room // len(waiting), 1))
        return bool(waiting)

    def _least_load(self) -> Load:
        """Of the consumers that say what they can work on and may be given a group that is free."""
        return min(
            [
                server.load
                for server in self._turn
                if server.concurrency is not None and server.credit > 0 and server.is_eager
            ],
            default=(True, math.inf),
        )

    def _even_out(self) -> None:
        """Ask for the groups that are to move."""
        servers = [server for server in self._turn if server.concurrency is not None]
        if len(servers) < 2 or self._line.is_reading or not any(map(self._is_hungry, servers)):
            return
        unanswered = {server: self._unanswered(server) for server in servers}
        parties = [self._party(server, len(unanswered[server])) for server in servers]
        found: dict[_Server, list[Group]] = {}
        for server, group in moves(
            parties,
            unanswered=sum(map(len, unanswered.values())),
            leaving=sum([server.leaving for server in servers]),
        ):
            found.setdefault(server, []).append(group)
        for server, groups in found.items():
            self._ask_back(server, groups)

    def _is_hungry(self, server: _Server) -> bool:
        """Whether it could work on one group more, and nothing waits that it may be given."""
        assert server.concurrency is not None
        if server.credit <= 0 or len(server.groups) >= server.concurrency:
            return False
        return self._line.groups.choose(server, own=server.credit > server.reserve) is None

    def _unanswered(self, server: _Server) -> set[Group]:
        """The groups of which something was asked back, and the answer is still to come."""
        channel = server.consumer.channel
        entries = [channel.unsettled[tag] for tag in channel.asked if tag in channel.unsettled]
        return {cast(GroupedMessage, message).group for line, message, _ in entries if line is self._line}

    def _party(self, server: _Server, unanswered: int) -> Party[_Server]:
        concurrency = server.concurrency
        assert concurrency is not None
        staying = [group for group in server.groups if not group.leaving]
        free = server.capacity - (server.leaving - unanswered)  # what was begun of the others it works on
        movable = [
            group
            for place, group in enumerate(staying)
            if place >= free or group.outstanding > 1 or group.position >= 0
        ]
        return Party(
            server,
            concurrency,
            server.capacity,
            present=len(server.groups) - unanswered,
            staying=len(staying),
            is_hungry=self._is_hungry(server),
            movable=movable if server.is_revocable else [],
        )

    def _ask_back(self, server: _Server, groups: list[Group]) -> None:
        for group in groups:
            self._line.groups.leave(group)
        wanted = frozenset(groups)
        tags = [
            tag
            for tag, (line, message, _) in server.consumer.channel.unsettled.items()
            if line is self._line and cast(GroupedMessage, message).group in wanted
        ]
        ask_back(self._state, server.consumer, tags)
