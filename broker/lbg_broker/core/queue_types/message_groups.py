"""Message groups: consumers take turns, and each gets the oldest message of a free group.

Two reasons move a group. A consumer has more groups than it works on while another one has room: every group beyond
that moves, first those that came last. Or it has more than twice as many as another, in proportion to what each can
work on: then groups move until both have the same. Below that nothing moves, as groups come and go by themselves. Nor
does a group that is worked on move to a consumer that has all that it works on.

A consumer may report how many groups it can work on at a time (`x-group-concurrency`). The groups are then shared out
in proportion to that, and one that is idle gets some of those of others, from which they are recalled with
basic.revoke: nothing is reassigned before, so nothing is repeated, and a group moves when what its holder has begun is
settled.

How many it really works on it may report later, and again (`basic.capacity`): what it has beyond that has not begun,
and goes to one that is idle. Shares stay in proportion to the first number, which a new member has too.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from lbg_broker.core.arguments import ArgumentReader, MessageGroupsArguments
from lbg_broker.core.entities import Consumer, DispatchPolicy, Share
from lbg_broker.core.message import Message
from lbg_broker.core.queue_types.group_backlog import GroupBacklog
from lbg_broker.core.queue_types.group_index import UNLIMITED, Group, GroupedMessage, Holder
from lbg_broker.core.queue_types.queue_type import SingleSpoolType
from lbg_broker.core.settle import recall_from
from lbg_broker.core.spool import UNLIMITED_BYTES
from lbg_core.group.keys import KEY_HEADERS, key_reader

if TYPE_CHECKING:
    from lbg_broker.core.entities import Queue
    from lbg_broker.core.state import State


S = TypeVar("S")


@dataclass(slots=True, eq=False)
class Party(Generic[S]):
    """A consumer. `concurrency`: groups that it can work on, `capacity`: groups that it works on, which may be less.
    `present`: groups that it has, without those whose recall is unanswered. `staying`: groups
    that it has, without all that are recalled. `movable`: those that may be recalled, which are more than the
    message that is worked on, in the order in which they came; none where the consumer has no basic.revoke."""

    server: S
    concurrency: int
    capacity: int
    present: int
    staying: int
    is_hungry: bool
    movable: list[Group]


def moves(parties: Sequence[Party[S]], *, unanswered: int, leaving: int) -> list[tuple[S, Group]]:
    """The groups to recall, and from which consumers. On their way already are `leaving`, and of `unanswered` of these
    their consumers have not said whether they had begun."""
    hungry = [party for party in parties if party.is_hungry]
    moves_found: list[tuple[S, Group]] = []
    if not hungry:
        return moves_found
    for _ in range(unanswered):
        min(hungry, key=_presence).present += 1
    for _ in range(leaving):
        min(hungry, key=_share).staying += 1
    _move(parties, hungry, moves_found, by=_presence, if_=_is_beyond)
    _move(parties, hungry, moves_found, by=_share, if_=lambda donor, taker: _is_uneven(donor, taker, by=2))
    if moves_found:
        _move(
            parties, hungry, moves_found, by=_share, if_=lambda donor, taker: _is_uneven(donor, taker, by=1)
        )
    return moves_found


def _move(
    parties: Sequence[Party[S]],
    hungry: Sequence[Party[S]],
    moves_found: list[tuple[S, Group]],
    *,
    by: Callable[[Party[S]], float],
    if_: Callable[[Party[S], Party[S]], bool],
) -> None:
    donors = [party for party in parties if party.movable]
    while donors:
        donor, taker = max(donors, key=by), min(hungry, key=by)
        if not if_(donor, taker):
            return
        moves_found.append((donor.server, donor.movable.pop()))
        donor.present -= 1
        donor.staying -= 1
        taker.present += 1
        taker.staying += 1
        if not donor.movable:
            donors.remove(donor)


def _presence(party: Party[S]) -> float:
    return party.present / party.capacity


def _share(party: Party[S]) -> float:
    return party.staying / party.concurrency


def _is_beyond(donor: Party[S], taker: Party[S]) -> bool:
    return donor.present > donor.capacity and taker.present < taker.capacity


def _is_uneven(donor: Party[S], taker: Party[S], *, by: int) -> bool:
    """True if the donor has more than the taker also after a move, and now more than `by` times as many."""
    has_room = taker.staying < taker.concurrency and (
        taker.present < taker.capacity or donor.present > donor.capacity
    )
    evens = (donor.staying - 1) * taker.concurrency >= (taker.staying + 1) * donor.concurrency
    return has_room and evens and _share(donor) > by * _share(taker)


CONCURRENCY: Final = "x-group-concurrency"

Load = tuple[bool, float]
"""Load of a consumer with a concurrency: free groups go to the least."""


class _Server(Holder):
    """A consumer as a holder of groups, and what it gets in this round.

    `concurrency`: how many groups it can work on at a time; None: it is not set, and it has as many as its prefetch
    admits. `capacity`: how many of these it works on, as reported. `is_revocable`: it has basic.revoke, so it may have
    more while no other consumer has room.
    """

    __slots__ = (
        "again",
        "capacity",
        "concurrency",
        "consumer",
        "credit",
        "credit_bytes",
        "fresh",
        "is_revocable",
        "slots",
    )

    def __init__(self, consumer: Consumer) -> None:
        concurrency = None if consumer.no_ack else consumer.arguments.get(CONCURRENCY)
        super().__init__(slides=concurrency is not None)
        self.consumer = consumer
        self.concurrency = cast("int | None", concurrency)
        self.capacity = self.concurrency or UNLIMITED
        self.is_revocable = consumer.channel.connection.revocable
        self.credit = 0
        self.credit_bytes = 0
        self.slots = 0  # groups for which its window has a message at least
        self.again: list[Message] = []  # may have been delivered before
        self.fresh: list[Message] = []

    def update_credit(self) -> None:
        """Updates the consumer's credit in messages, and the most of one group at a time."""
        consumer = self.consumer
        self.credit = consumer.credit()
        self.credit_bytes = consumer.credit_bytes() if consumer.limits_bytes else UNLIMITED_BYTES
        limit = UNLIMITED
        if not consumer.no_ack:
            limit = consumer.prefetch or UNLIMITED
            total = consumer.channel.prefetch_total
            if total and total < limit:
                limit = total
        self.limit = limit if self.concurrency is None else max(limit // self.concurrency, 1)
        self.slots = 0 if self.concurrency is None else min(self.concurrency, limit // 2)

    def spend(self, message: Message) -> None:
        """It gets this one: so much less credit."""
        self.credit_bytes -= message.size
        self.credit = self.credit - 1 if self.credit_bytes > 0 else 0

    @property
    def reserve(self) -> int:
        """Room in the window that only groups it does not hold yet may take: a message of each that it could work on
        besides."""
        return max(self.slots - len(self.groups), 0)

    @property
    def load(self) -> Load:
        """Load of a consumer: has it all that it works on, and groups that it holds by groups that it can work on.
        Recalled groups count: it works on what it has begun of them."""
        held = len(self.groups)
        return held >= self.capacity, held / (self.concurrency or UNLIMITED)

    @property
    def is_eager(self) -> bool:
        """True if it may have one group more: beyond what it can work on only if that can be recalled."""
        return self.concurrency is None or self.is_revocable or len(self.groups) < self.concurrency

    def may_begin(self, least_load: Load) -> bool:
        """True if a group that is free may be its: not where another consumer has less to do."""
        return self.concurrency is None or (self.is_eager and self.load <= least_load)

    def hand_over(self) -> tuple[list[Message], int]:
        """Returns the messages delivered. Those delivered before come first in each group, so all of them may."""
        again, fresh = self.again, self.fresh
        self.again, self.fresh = [], []
        return again + fresh if again else fresh, len(again)


class MessageGroupsDispatch(DispatchPolicy):
    """Consumers of message groups."""

    def __init__(self, state: State, line: GroupBacklog) -> None:
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
        """Groups of which it has unsettled messages stay its own until those are settled or requeued."""
        super().remove(consumer)
        self._turn = deque(server for server in self._turn if server.consumer is not consumer)

    def resize(self, consumer: Consumer, groups: int) -> None:
        for server in self._turn:
            if server.consumer is consumer and server.concurrency is not None:
                server.capacity = min(groups, server.concurrency)

    def dispatch(self) -> Iterator[Share]:
        turn, line = self._turn, self._line
        if not turn:
            line.rest()
            return
        if not line.ready and not self._has_surplus(turn):
            line.read_ahead(0)
            return  # nothing to deliver, and nothing to recall
        for server in turn:
            server.update_credit()
        going_on = True
        while going_on and line.ready:
            going_on = False
            refused, least_load = 0, self._least_load()
            while line.ready:
                if refused == len(turn):
                    former, least_load, refused = least_load, self._least_load(), 0
                    if least_load == former:
                        break
                server = turn[0]
                turn.rotate(-1)
                taken = None
                if server.credit > 0:
                    is_new = server.may_begin(least_load)
                    taken = line.take_one(server, own=server.credit > server.reserve, new=is_new)
                if taken is None:
                    refused += 1
                    continue
                refused = 0
                message, again = taken
                server.spend(message)
                (server.again if again else server.fresh).append(message)
                channel = server.consumer.channel
                if channel.limits_all and len(channel.consumers) > 1:  # room for one is room for all
                    yield line, server.consumer, *server.hand_over()
                    for sibling in turn:
                        if sibling.consumer.channel is channel:
                            sibling.update_credit()
            for server in turn:
                if server.fresh or server.again:
                    going_on = going_on or server.consumer.no_ack  # what is settled at once is free again
                    yield line, server.consumer, *server.hand_over()
                going_on = self._fill(server) or going_on
        line.read_ahead(sum([server.credit for server in turn if server.is_eager]))
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
        """Least load of the consumers with a concurrency that may get a free group."""
        return min(
            [
                server.load
                for server in self._turn
                if server.concurrency is not None and server.credit > 0 and server.is_eager
            ],
            default=(True, math.inf),
        )

    def _even_out(self) -> None:
        """Recalls the groups that are to move."""
        servers = [server for server in self._turn if server.concurrency is not None]
        if len(servers) < 2 or self._line.is_reading:
            return
        if not self._has_surplus(servers):
            return
        if not any(map(self._is_hungry, servers)):
            return
        unanswered = {server: self._unanswered(server) for server in servers}
        parties = [self._party(server, len(unanswered[server])) for server in servers]
        moved: dict[_Server, list[Group]] = {}
        for server, group in moves(
            parties,
            unanswered=sum(map(len, unanswered.values())),
            leaving=sum([server.leaving for server in servers]),
        ):
            moved.setdefault(server, []).append(group)
        for server, groups in moved.items():
            self._recall(server, groups)

    @staticmethod
    def _has_surplus(servers: Iterable[_Server]) -> bool:
        """True if a consumer with a concurrency has more groups than it works on, or than one."""
        for server in servers:
            count = len(server.groups)
            if (count > 1 or count > server.capacity or server.leaving) and server.concurrency is not None:
                return True
        return False

    def _is_hungry(self, server: _Server) -> bool:
        """True if it could work on one group more, and nothing waits that it may be given."""
        assert server.concurrency is not None
        if server.credit <= 0 or len(server.groups) >= server.concurrency:
            return False
        return self._line.groups.choose(server, own=server.credit > server.reserve) is None

    def _unanswered(self, server: _Server) -> set[Group]:
        """The recalled groups without an answer yet."""
        channel = server.consumer.channel
        entries = [channel.unsettled[tag] for tag in channel.recalled if tag in channel.unsettled]
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

    def _recall(self, server: _Server, groups: list[Group]) -> None:
        for group in groups:
            self._line.groups.leave(group)
        recalled = frozenset(groups)
        tags = [
            tag
            for tag, (line, message, _) in server.consumer.channel.unsettled.items()
            if line is self._line and cast(GroupedMessage, message).group in recalled
        ]
        recall_from(self._state, server.consumer, tags)


class MessageGroupsType(SingleSpoolType):
    """Queues with `qpid.group_header_key` or `x-group-header`. `lbg-key` as the header stands for the key, which other
    headers may have."""

    line = GroupBacklog

    def policy(self, state: State, queue: Queue, stored: Mapping[str, Any]) -> DispatchPolicy:
        line, rules = queue.spool, queue.rules.kind
        assert isinstance(line, GroupBacklog)
        assert isinstance(rules, MessageGroupsArguments)
        names = KEY_HEADERS if rules.header == KEY_HEADERS[0] else (rules.header,)
        line.classify(key_reader(names), state.default_group.encode(), partial(state.make_due, queue))
        queue.limited = queue.rules.limited  # it is never shut
        return MessageGroupsDispatch(state, line)
