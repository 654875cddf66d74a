"""Messages that no queue of the group took: their replay, in the order of their numbers.

They have their identity still, as no member has processed them: members process each, and drop a copy as a repeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from lbg_core.admin.dead_letters.letter import DeadLetter
from lbg_core.admin.dead_letters.queue import DeadQueue
from lbg_core.admin.dead_letters.replay import ReplayResult, ReplaySender, require_open_group
from lbg_core.client import BasicProperties, Delivery
from lbg_core.client.republication import copied_properties
from lbg_core.group import GroupSpec, SequenceSet, hash_in


class _Numbers:
    """Reads the numbers of all messages, and selects none of them."""

    def __init__(self, spec: GroupSpec) -> None:
        self.streams: dict[tuple[str, int], SequenceSet] = defaultdict(SequenceSet)
        self.unroutable = 0
        self.routable = 0
        self._spec = spec

    def __contains__(self, letter: object) -> bool:
        assert isinstance(letter, DeadLetter)
        if not letter.is_routable(self._spec):
            self.unroutable += 1
            return False
        self.routable += 1
        if letter.identity is not None:
            publisher, hash_, seq = letter.identity
            self.streams[publisher, hash_].add(seq)
        return False


@dataclass(slots=True)
class _Stream:
    """`due`: the lowest number that was not selected yet; None once all were."""

    numbers: Iterator[int]
    due: int | None = None

    def advance(self) -> None:
        self.due = next(self.numbers, None)


class _InOrder:
    """Selects a message once all lower numbers of its publisher and hash were selected, and copies of these."""

    def __init__(self, spec: GroupSpec, numbers: _Numbers) -> None:
        self._spec = spec
        self._streams = {name: _Stream(iter(of_stream)) for name, of_stream in numbers.streams.items()}
        for stream in self._streams.values():
            stream.advance()
        self.due_count = sum(map(len, numbers.streams.values()))

    def __contains__(self, letter: object) -> bool:
        assert isinstance(letter, DeadLetter)
        if not letter.is_routable(self._spec):
            return False
        if letter.identity is None:
            return True
        publisher, hash_, seq = letter.identity
        stream = self._streams.get((publisher, hash_))
        if stream is None:
            return False
        if seq == stream.due:
            stream.advance()
            self.due_count -= 1
            return True
        return stream.due is None or seq < stream.due


async def replay_unrouted(queue: DeadQueue, done: ReplayResult) -> None:
    """Publish the messages to the group again, in the order of their numbers for each publisher and hash, and then
    acknowledge them. Those with a routing key that is not of the group stay, and are counted as `unroutable`.

    A queue that was read before by a client which ended has them in another order, on RabbitMQ at least: all numbers
    are read first, and then messages in as many passes as their order needs.

    Raises ReplayStopped at the first that is not taken, KeysMove, IngressIsPaused, and ClientError.
    """
    await require_open_group(queue)
    numbers = _Numbers(queue.spec)
    async for _ in queue.pages(numbers):
        pass
    done.total, done.unroutable, done.not_looked_at = numbers.routable, numbers.unroutable, queue.unread
    if queue.unread:
        return  # what another client holds may come before what is here
    order = _InOrder(queue.spec, numbers)
    sender = await ReplaySender.open(queue, _as_it_was, done)
    is_first = True
    while is_first or order.due_count:
        is_first, due_before = False, order.due_count
        await queue.turn()
        async for page in queue.pages(order):
            await sender.send(page, _line_of)
        if order.due_count and order.due_count == due_before:
            done.not_looked_at = order.due_count
            return


def _line_of(letter: DeadLetter) -> str:
    """The hash: numbers count per publisher and hash."""
    return str(hash_in(letter.routing_key))


def _as_it_was(letter: DeadLetter, delivery: Delivery) -> BasicProperties:
    of_no_queue = {name: value for name, value in delivery.headers.items() if name == "CC"}
    properties = copied_properties(delivery, added=of_no_queue)
    properties.delivery_mode = 2
    return properties
