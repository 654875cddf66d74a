"""Sharing out a line in groups: consumers take turns, and each gets the oldest message that may be given to it."""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lbg_broker.server.core.consumer import Consumer
from lbg_broker.server.core.dealing import Policy, Share
from lbg_broker.server.core.kinds.grouped.group import UNLIMITED, Holder
from lbg_broker.server.core.kinds.grouped.line import GroupedLine
from lbg_broker.server.core.message import Message

__all__ = ["GroupedPolicy"]


class _Server(Holder):
    """A consumer as a holder of groups, and what it gets in this round."""

    __slots__ = ("again", "consumer", "credit", "fresh")

    def __init__(self, consumer: Consumer) -> None:
        super().__init__()
        self.consumer = consumer
        self.credit = 0
        self.again: list[Message] = []  # may have been delivered before
        self.fresh: list[Message] = []

    def look(self) -> None:
        """How many messages there is room for now, and how many of one group at a time."""
        consumer = self.consumer
        self.credit = consumer.credit()
        limits = () if consumer.no_ack else (consumer.prefetch, consumer.channel.prefetch_total)
        self.limit = min([limit for limit in limits if limit], default=UNLIMITED)

    def hand_over(self) -> tuple[list[Message], int]:
        """What it got. Of each group what was delivered before comes first, so all that was may."""
        again, fresh = self.again, self.fresh
        self.again, self.fresh = [], []
        return again + fresh if again else fresh, len(again)


class GroupedPolicy(Policy):
    """Consumers of message groups."""

    def __init__(self, line: GroupedLine) -> None:
        super().__init__()
        self._line: Final = line
        self._turn: deque[_Server] = deque()

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        self._turn.append(_Server(consumer))

    def remove(self, consumer: Consumer) -> None:
        """Groups of which it still has something stay its own until that is settled or given back."""
        super().remove(consumer)
        self._turn = deque(server for server in self._turn if server.consumer is not consumer)

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
            refused = 0
            while refused < len(turn):
                server = turn[0]
                turn.rotate(-1)
                if server.credit <= 0 or (found := line.take_one(server)) is None:
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
        line.look_on(sum([server.credit for server in turn]))

    def describe(self) -> Mapping[str, Any]:
        groups = self._line.groups
        return {"message_groups": {"known": len(groups), "busy": groups.busy}}
