"""Dispatch policies of plain queues: one active consumer, or competing ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from lbg_broker.core.entities import Consumer, DispatchPolicy, Share
from lbg_broker.core.spool import Spool


class SingleActive(DispatchPolicy):
    """The first consumer gets everything; the others wait in the order they came."""

    def __init__(self, spool: Spool) -> None:
        super().__init__()
        self._spool = spool

    def is_active(self, consumer: Consumer) -> bool:
        return self.consumers[0] is consumer

    def dispatch(self) -> Iterator[Share]:
        if not self.consumers:
            return
        spool = self._spool
        if not spool.ready:
            return
        consumer = self.consumers[0]
        while spool.ready and (credit := consumer.credit()):
            messages, redelivered = spool.take(credit, consumer.credit_bytes())
            if not messages:
                return
            yield spool, consumer, messages, redelivered


class Competing(DispatchPolicy):
    """Each message goes to the next consumer in turn that has credit."""

    def __init__(self, spool: Spool) -> None:
        super().__init__()
        self._spool = spool
        self._turn: deque[Consumer] = deque()

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        self._turn.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        super().remove(consumer)
        self._turn.remove(consumer)

    def dispatch(self) -> Iterator[Share]:
        turn, spool = self._turn, self._spool
        if len(turn) == 1:
            consumer = turn[0]
            while spool.ready and (credit := consumer.credit()):
                messages, redelivered = spool.take(credit, consumer.credit_bytes())
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
