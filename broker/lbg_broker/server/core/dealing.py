"""Who gets the next messages of a queue: one policy per kind of queue.

A policy knows the queue's consumers in the order they came, and the line or lines it takes messages from. `deal`
takes them and says who gets them; the caller numbers and sends them before it asks for the next share.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from lbg_broker.amqp import ReplyCode
from lbg_broker.server.core.consumer import Consumer
from lbg_broker.server.core.errors import ChannelRefusal
from lbg_broker.server.core.message import Message
from lbg_broker.server.core.reading_arguments import ArgumentReader
from lbg_broker.server.core.spool import Spool

__all__ = ["Competing", "Policy", "Share", "SingleActive"]

Share = tuple[Spool, Consumer, list[Message], int]
"""Messages of a line for a consumer; the first n of them may have been delivered before."""


class Policy:
    """How messages are shared out. `consumers` are in the order they came."""

    takes_get = True
    """Whether basic.get makes sense on such a queue."""

    def __init__(self) -> None:
        self.consumers: list[Consumer] = []

    def admit(self, consumer: Consumer, arguments: ArgumentReader) -> None:
        """Read the kind's own arguments of a basic.consume, and refuse a consumer that cannot be. Changes nothing:
        others may still refuse it. Raises `Refusal`."""

    def add(self, consumer: Consumer) -> None:
        """A consumer comes, behind those that are there."""
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """A consumer goes. What it holds is settled or given back later, or was before."""
        self.consumers.remove(consumer)

    def is_active(self, consumer: Consumer) -> bool:
        """Whether messages may go to it."""
        return True

    def deal(self) -> Iterator[Share]:
        """Share out what may be given out now."""
        raise NotImplementedError

    def answered(self, consumer: Consumer) -> None:
        """A consumer has given back what it had not begun of deliveries that were asked back (`revocation`): the queue
        is dealt from after this."""

    def resize(self, consumer: Consumer, groups: int) -> None:
        """A consumer works on so many groups at a time as of now: the queue is dealt from after this."""

    def ring(self) -> None:
        """A time it asked for with `State.wake_at` has come, or may have: the queue is dealt from after this."""

    def perform(self, action: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Carry out an action of the management API and give its answer as JSON. Raises `Refusal`."""
        raise ChannelRefusal(
            ReplyCode.PRECONDITION_FAILED, f"there is no action '{action}' for this kind of queue"
        )

    def describe(self) -> Mapping[str, Any]:
        """What a kind has to say of itself in the management API, as fields of the queue's JSON."""
        return {}

    def kept(self) -> Mapping[str, Any]:
        """What a durable queue of a special kind must know after a restart, as JSON; `State.redefine` stores it."""
        return {}


class SingleActive(Policy):
    """The first consumer gets everything; the others wait in the order they came."""

    def __init__(self, spool: Spool) -> None:
        super().__init__()
        self._spool = spool

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


class Competing(Policy):
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
