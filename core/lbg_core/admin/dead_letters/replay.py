"""Lists, replays and discards dead letters, and replays unrouted messages in the order of their numbers.

`mandatory` does not help: the group's alternate exchange accepts what reaches no queue, and the broker confirms it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from lbg_core.admin.dead_letters.letter import (
    DeadLetter,
    LetterStamper,
    ReplayStopped,
    Selection,
    saved_json,
)
from lbg_core.admin.dead_letters.queue import DeadQueue, Page
from lbg_core.admin.group_locks import hold_lock
from lbg_core.admin.record import read_record, require_open, spec_in
from lbg_core.amqp import EncodeError
from lbg_core.client import (
    AccessRefused,
    BasicProperties,
    BodyExcerpt,
    ChannelClosed,
    ClientConnection,
    ClientError,
    ConfirmingPublisher,
    Delivery,
    Nacked,
    Unroutable,
)
from lbg_core.client.republication import copied_properties
from lbg_core.client.retransmit import ANSWER_S
from lbg_core.group import Engine, GroupSpec, SequenceSet, binding_of, hash_in


@dataclass(slots=True)
class Binding:
    """Binds the queue of each hash that is replayed to the group's exchange: nothing happens where it is bound."""

    connection: ClientConnection
    spec: GroupSpec
    _bound: set[int] = field(default_factory=set)

    async def ensure(self, letter: DeadLetter) -> None:
        """Raises ReplayStopped, and ClientError when the connection is lost. A hash that is not of the group is left
        to `LetterStamper`."""
        hash_ = hash_in(letter.routing_key)
        if hash_ is None or hash_ >= self.spec.hash_count or hash_ in self._bound:
            return
        binding = binding_of(self.spec, Engine.announced(self.connection.server_properties), hash_)
        queue = binding.queue
        channel = await self.connection.open_channel()
        try:
            await channel.queue_bind(queue, binding.exchange, binding.routing_key)
        except AccessRefused as error:
            why = f"this user may not make sure that queue {queue} is bound ({error.reply_text})"
            raise ReplayStopped(str(letter), why) from None
        except ChannelClosed as error:
            repair = f"`lbg group create {self.spec.name} …` repairs the group"
            why = f"queue {queue} cannot be bound ({error.reply_text}): {repair}"
            raise ReplayStopped(str(letter), why) from None
        await channel.close()
        self._bound.add(hash_)


@dataclass(slots=True)
class Listing:
    """Dead letters for a view. `not_looked_at`: another consumer has them. `bodies`: of each letter, if asked for."""

    total: int
    letters: list[DeadLetter]
    not_looked_at: int
    bodies: list[BodyExcerpt] = field(default_factory=list)


@dataclass(slots=True)
class ReplayResult:
    """Counts of a replay, updated while it runs, so that they are right whatever ends it.

    `unknown`: published, and the connection went before the answer: replayed and still dead letters, or only the
    latter. `not_looked_at`: another consumer has them. `unroutable`: of unrouted messages, those that no queue of the
    group takes.
    """

    total: int = 0
    done: int = 0
    unknown: int = 0
    not_looked_at: int = 0
    unroutable: int = 0
    missing_ids: set[str] = field(default_factory=set)

    def to_json(self, what: str) -> dict[str, Any]:
        """`done` under the name of `what` was done."""
        document = {**asdict(self), "missing_ids": sorted(self.missing_ids)}
        return document | {what: document.pop("done")}


async def list_letters(
    queue: DeadQueue, selection: Selection, *, limit: int, body_bytes: int | None = None
) -> Listing:
    """The oldest `limit` of those selected, and how many dead letters there are in all. `body_bytes`: with so much of
    each body; None: without bodies."""
    listing = Listing(queue.total, [], 0)
    async for page in queue.pages(selection):
        for letter, delivery in page[: limit - len(listing.letters)]:
            listing.letters.append(letter)
            if body_bytes is not None:
                listing.bodies.append(BodyExcerpt.of(delivery.body, body_bytes))
        if len(listing.letters) >= limit:
            return listing
    listing.not_looked_at = queue.unread
    return listing


async def count(queue: DeadQueue, selection: Selection) -> int:
    """Number of letters that are selected."""
    if selection.is_everything:
        return queue.total
    return sum([len(page) async for page in queue.pages(selection)])


async def lock_open_group(queue: DeadQueue) -> None:
    """Holds the group's lock, and has its attributes as they are, from here on: a binding that `Binding` made during a
    change of the number of queues would lead a message to two of them. Raises Busy, and the errors of `read_record` and
    `require_open`."""
    await hold_lock(queue.connection, queue.spec.name)
    channel = await queue.connection.open_channel()
    record = await read_record(channel, queue.spec.name)
    await channel.close()
    queue.spec = spec_in(record.text, queue.spec.name)
    require_open(queue.spec, record)


async def replay(
    queue: DeadQueue, selection: Selection, done: ReplayResult, *, limit: int | None = None
) -> None:
    """Publish those selected to the group again, in their order per key, and then acknowledge them; the oldest `limit`
    of them, None: all.

    Raises ReplayStopped at the first that is not taken, the errors of `lock_open_group`, and ClientError. A crash in
    between leaves a message in both places: it is replayed at most twice.
    """
    await lock_open_group(queue)
    stamper = LetterStamper(queue.spec, frame_max_bytes=queue.connection.frame_max_bytes)
    sender = await ReplaySender.open(queue, stamper.properties, done)
    async for page in _pages(queue, selection, done, limit=limit):
        await sender.send(page, lambda letter: letter.key)


Properties = Callable[[DeadLetter, Delivery], BasicProperties]


@dataclass(slots=True)
class ReplaySender:
    """Publishes letters to the group and acknowledges them once they are confirmed. `properties`: of the message."""

    queue: DeadQueue
    properties: Properties
    done: ReplayResult
    publisher: ConfirmingPublisher
    binding: Binding

    @classmethod
    async def open(cls, queue: DeadQueue, properties: Properties, done: ReplayResult) -> ReplaySender:
        publisher = await ConfirmingPublisher.open(queue.connection)
        return cls(queue, properties, done, publisher, Binding(queue.connection, queue.spec))

    async def send(self, page: Page, line_of: Callable[[DeadLetter], str | None]) -> None:
        """Each after the confirm of the one before it in its line. Raises ReplayStopped, ClientError."""
        for letter, _ in page:
            await self.binding.ensure(letter)
        left = page
        while left:
            first, behind, lines = Page(), Page(), set[str]()
            for one in left:
                line = line_of(one[0])
                (behind if line in lines else first).append(one)
                if line is not None:
                    lines.add(line)
            await self._send_at_once(first)
            left = behind

    async def _send_at_once(self, each: Page) -> None:
        stopped: ReplayStopped | ClientError | None = None
        sent: list[tuple[DeadLetter, Delivery, asyncio.Future[None]]] = []
        for letter, message in each:
            where = (self.queue.names.exchange, letter.routing_key, bytes(message.body))
            try:
                properties = self.properties(letter, message)
                confirm = self.publisher.publish_soon(*where, properties=properties, mandatory=True)
            except ReplayStopped as error:
                stopped = error
                break
            except EncodeError as error:
                stopped = ReplayStopped(str(letter), str(error))
                break
            sent.append((letter, message, confirm))
        if sent:
            self.done.unknown = len(sent)
            await asyncio.wait([confirm for _, _, confirm in sent], timeout=ANSWER_S)
        for letter, message, confirm in sent:
            if not confirm.done():
                why = f"the broker gave no answer in {ANSWER_S:g} s (it may have been taken all the same)"
                stopped = stopped or ReplayStopped(str(letter), why)
                continue
            failure = confirm.exception()
            if failure is None:
                _settle(self.queue, letter, message, self.done)
                self.done.unknown -= 1
            elif isinstance(failure, Nacked | Unroutable):
                stopped = ReplayStopped(str(letter), refusal_text(self.queue.spec.name, failure))
                self.done.unknown -= 1
            elif isinstance(failure, ClientError):
                stopped = failure
        if stopped is not None:
            raise stopped


async def discard(
    queue: DeadQueue, selection: Selection, done: ReplayResult, *, save: IO[str] | None = None
) -> None:
    """Acknowledge those selected; with `save`, once they are on its disk as JSON lines. Raises OSError, ClientError."""
    async for page in _pages(queue, selection, done):
        if save is not None:
            save_letters(page, save)
        for letter, message in page:
            _settle(queue, letter, message, done)


def save_letters(page: Page, save: IO[str]) -> None:
    """Returns when they are on its disk. Raises OSError."""
    now_us = time.time_ns() // 1000
    for letter, message in page:
        save.write(json.dumps(saved_json(letter, message, now_us), default=str) + "\n")
    save.flush()
    os.fsync(save.fileno())


async def _pages(
    queue: DeadQueue, selection: Selection, done: ReplayResult, *, limit: int | None = None
) -> AsyncIterator[Page]:
    done.total = queue.total
    done.missing_ids = set(selection.ids)
    left = queue.total if limit is None else limit
    async for page in queue.pages(selection):
        yield page[:left]
        left -= len(page)
        if left <= 0 and limit is not None:
            done.missing_ids.clear()  # those behind the limit are not looked for
            return
    done.not_looked_at = queue.unread


def refusal_text(group: str, error: Nacked | Unroutable) -> str:
    """Cause for which a message was not published, and its remedy."""
    if isinstance(error, Nacked):
        return "its queue refuses it, as a full one does: let members catch up first"
    return f"no queue takes it ({error}): `lbg group create {group} …` repairs bindings"


def _settle(queue: DeadQueue, letter: DeadLetter, message: Delivery, done: ReplayResult) -> None:
    queue.ack(message)
    done.done += 1
    if letter.id is not None:
        done.missing_ids.discard(letter.id)


# Messages that no queue of the group took. They have their identity still, as no member has processed them: members
# process each, and drop a copy as a repeat.


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


class _InOrder:
    """Selects a message once all lower numbers of its publisher and hash were selected, and copies of these."""

    def __init__(self, spec: GroupSpec, numbers: _Numbers) -> None:
        self._spec = spec
        self._left = {name: iter(of_stream) for name, of_stream in numbers.streams.items()}
        self._due = {name: next(left, None) for name, left in self._left.items()}
        """Lowest number of each stream that was not selected yet; None once all were."""

        self.due_count = sum(map(len, numbers.streams.values()))

    def __contains__(self, letter: object) -> bool:
        assert isinstance(letter, DeadLetter)
        if not letter.is_routable(self._spec):
            return False
        if letter.identity is None:
            return True
        publisher, hash_, seq = letter.identity
        stream = publisher, hash_
        if stream not in self._due:
            return False
        due = self._due[stream]
        if seq == due:
            self._due[stream] = next(self._left[stream], None)
            self.due_count -= 1
            return True
        return due is None or seq < due


async def replay_unrouted(queue: DeadQueue, done: ReplayResult) -> None:
    """Publish the messages to the group again, in the order of their numbers for each publisher and hash, and then
    acknowledge them. Those with a routing key that is not of the group stay, and are counted as `unroutable`.

    A queue that was read before by a client which ended has them in another order, on RabbitMQ at least: all numbers
    are read first, and then messages in as many passes as their order needs.

    Raises as `replay`.
    """
    await lock_open_group(queue)
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
            # A line for each hash: numbers count per publisher and hash.
            await sender.send(page, lambda letter: str(hash_in(letter.routing_key)))
        if order.due_count and order.due_count == due_before:
            done.not_looked_at = order.due_count
            return


def _as_it_was(letter: DeadLetter, delivery: Delivery) -> BasicProperties:
    of_no_queue = {name: value for name, value in delivery.headers.items() if name == "CC"}
    properties = copied_properties(delivery, added=of_no_queue)
    properties.delivery_mode = 2
    return properties
