"""Who gets the next messages of a queue: one policy per kind of queue.

A policy knows the queue's consumers in the order they came, and the line or lines it takes messages from. `deal`
takes them and says who gets them; the caller numbers and sends them before it asks for the next share.
"""

from collections import deque
from collections.abc import Iterator
from typing import Protocol

from lbg_broker.server.core.consumer import Consumer
from lbg_broker.server.core.message import Message
from lbg_broker.server.core.spool import Spool

__all__ = ["Competing", "Policy", "Share", "SingleActive"]

Share = tuple[Spool, Consumer, list[Message], int]
"""Messages of a line for a consumer; the first n of them may have been delivered before."""


class Policy(Protocol):
    """How messages are shared out."""

    consumers: list[Consumer]

    def add(self, consumer: Consumer) -> None:
        """A consumer comes, behind those that are there."""

    def remove(self, consumer: Consumer) -> None:
        """A consumer goes."""

    def is_active(self, consumer: Consumer) -> bool:
        """Whether messages may go to it."""

    def deal(self) -> Iterator[Share]:
        """Share out what may be given out now."""


class SingleActive:
    """The first consumer gets everything; the others wait in the order they came."""

    def __init__(self, spool: Spool) -> None:
        self.consumers: list[Consumer] = []
        self._spool = spool

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)

    def is_active(self, consumer: Consumer) -> bool:
        return self.consumers[0] is consumer

    def deal(self) -> Iterator[Share]:
        if not self.consumers:
            return
        consumer, spool = self.consumers[0], self._spool
        while spool.ready and (credit := consumer.credit()):
            messages, redelivered = spool.take(credit)
            if not messages:
                return
            yield spool, consumer, messages, redelivered


class Competing:
    """Each message goes to the next consumer in turn that has credit."""

    def __init__(self, spool: Spool) -> None:
        self.consumers: list[Consumer] = []
        self._spool = spool
        self._turn: deque[Consumer] = deque()

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self._turn.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._turn.remove(consumer)

    def is_active(self, consumer: Consumer) -> bool:
        return True

    def deal(self) -> Iterator[Share]:
        turn, spool = self._turn, self._spool
        if len(turn) == 1:
            consumer = turn[0]
            while spool.ready and (credit := consumer.credit()):
                messages, redelivered = spool.take(credit)
                if not messages:
                    return
                yield spool, consumer, messages, redelivered
            return
        refused = 0
        while spool.ready and refused < len(turn):
            consumer = turn[0]
            turn.rotate(-1)
            if not consumer.credit():
                refused += 1
                continue
            messages, redelivered = spool.take(1)
            if not messages:
                turn.rotate(1)
                return
            refused = 0
            yield spool, consumer, messages, redelivered
