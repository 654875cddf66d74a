"""Lists, replays and discards dead letters.

`mandatory` does not help: the group's alternate exchange accepts what reaches no queue, and the broker confirms it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from lbg_core.admin.dead_letters.letter import (
    PAGE_MESSAGES,
    DeadLetter,
    LetterStamper,
    ReplayStopped,
    Selection,
    saved_json,
)
from lbg_core.admin.dead_letters.queue import DeadQueue, Page
from lbg_core.admin.errors import IngressIsPaused, KeysMove, UnderWay
from lbg_core.admin.record import read_record
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
from lbg_core.client.retransmit import ANSWER_S, Outgoing, QueueWindow, RetransmitSettings
from lbg_core.group import Engine, GroupSpec, binding_of, hash_in, repartition_in
from lbg_core.group.key_moves import KeyMove


class Binding:
    """Binds the queue of each hash that is replayed to the group's exchange: nothing happens where it is bound."""

    def __init__(self, connection: ClientConnection, spec: GroupSpec) -> None:
        self._connection = connection
        self._spec = spec
        self._bound: set[int] = set()

    async def ensure(self, letter: DeadLetter) -> None:
        """Raises ReplayStopped, and ClientError when the connection is lost. A hash that is not of the group is left
        to `LetterStamper`."""
        hash_ = hash_in(letter.routing_key)
        if hash_ is None or hash_ >= self._spec.hash_count or hash_ in self._bound:
            return
        binding = binding_of(self._spec, Engine.announced(self._connection.server_properties), hash_)
        queue = binding.queue
        channel = await self._connection.open_channel()
        try:
            await channel.queue_bind(queue, binding.exchange, binding.routing_key)
        except AccessRefused as error:
            why = f"this user may not make sure that queue {queue} is bound ({error.reply_text})"
            raise ReplayStopped(str(letter), why) from None
        except ChannelClosed as error:
            why = f"queue {queue} cannot be bound ({error.reply_text}): `lbg group create` repairs a group"
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


Replayed = Outgoing[tuple[DeadLetter, Delivery]]

REPLAY_SETTINGS = RetransmitSettings(
    window_messages=PAGE_MESSAGES, first_window_messages=PAGE_MESSAGES, one_per_key=True
)


async def require_open_group(queue: DeadQueue) -> None:
    """Raises UnderWay and KeysMove while the group's number of queues changes: a binding that `Binding` made then would
    lead a message to two of them. Raises IngressIsPaused while nobody may publish to the group."""
    spec = queue.spec
    channel = await queue.connection.open_channel()
    record = await read_record(channel, spec.name)
    await channel.close()
    if record is None:
        return
    if (target := repartition_in(record.text)) is not None:
        raise UnderWay(spec.name, spec.queue_count, target)
    if record.key_move:
        move = KeyMove.of_id(record.key_move, spec.hash_count)
        raise KeysMove(spec.name, spec.queue_count if move is None else move.new)
    if record.is_ingress_paused:
        raise IngressIsPaused(spec.name)


async def replay(
    queue: DeadQueue, selection: Selection, done: ReplayResult, *, limit: int | None = None
) -> None:
    """Publish those selected to the group again, in their order per key, and then acknowledge them; the oldest `limit`
    of them, None: all.

    Raises ReplayStopped at the first that is not taken, and ClientError. A crash in between leaves a message in both
    places: it is replayed at most twice.
    """
    await require_open_group(queue)
    stamper = LetterStamper(queue.spec, frame_max_bytes=queue.connection.frame_max_bytes)
    sender = await ReplaySender.open(queue, stamper.properties, done)
    async for page in _pages(queue, selection, done, limit=limit):
        await sender.send(page, lambda letter: letter.key)


class ReplaySender:
    """Publishes letters to the group and acknowledges them once they are confirmed. `properties`: of the message."""

    def __init__(
        self,
        queue: DeadQueue,
        publisher: ConfirmingPublisher,
        properties: Callable[[DeadLetter, Delivery], BasicProperties],
        done: ReplayResult,
    ) -> None:
        self._queue = queue
        self._publisher = publisher
        self._properties = properties
        self._done = done
        self._binding = Binding(queue.connection, queue.spec)
        self._window: QueueWindow[Replayed] = QueueWindow(REPLAY_SETTINGS)

    @classmethod
    async def open(
        cls,
        queue: DeadQueue,
        properties: Callable[[DeadLetter, Delivery], BasicProperties],
        done: ReplayResult,
    ) -> ReplaySender:
        return cls(queue, await ConfirmingPublisher.open(queue.connection), properties, done)

    async def send(self, page: Page, line_of: Callable[[DeadLetter], str | None]) -> None:
        """Each after the confirm of the one before it in its line. Raises ReplayStopped, ClientError."""
        now, window = asyncio.get_running_loop().time, self._window
        for letter, _ in page:
            await self._binding.ensure(letter)
        window.pending.extend(Outgoing(one, line_of(one[0])) for one in page)
        while window.pending:
            sends: list[Replayed] = []
            window.pop_sendable(sends, now())
            await self._round([message.item for message in sends])
            for message in sends:
                window.answered(message, ok=True)
            window.settle(now())

    async def _round(self, each: Page) -> None:
        stopped: ReplayStopped | ClientError | None = None
        ready: list[tuple[DeadLetter, Delivery, BasicProperties]] = []
        for letter, message in each:
            try:
                ready.append((letter, message, self._properties(letter, message)))
            except ReplayStopped as error:
                stopped = error
                break
        confirms: list[asyncio.Future[None]] = []
        for letter, message, properties in ready:
            where = (self._queue.names.exchange, letter.routing_key, bytes(message.body))
            try:
                confirms.append(self._publisher.publish_soon(*where, properties=properties, mandatory=True))
            except EncodeError as error:
                stopped = ReplayStopped(str(letter), str(error))
                break
        if confirms:
            self._done.unknown = len(confirms)
            await asyncio.wait(confirms, timeout=ANSWER_S)
        for (letter, message, _), confirm in zip(ready, confirms, strict=False):
            if not confirm.done():
                why = f"the broker gave no answer in {ANSWER_S:g} s (it may have been taken all the same)"
                stopped = stopped or ReplayStopped(str(letter), why)
                continue
            failure = confirm.exception()
            if failure is None:
                _settle(self._queue, letter, message, self._done)
                self._done.unknown -= 1
            elif isinstance(failure, Nacked | Unroutable):
                stopped = _why_refused(letter, failure)
                self._done.unknown -= 1
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
            now_us = time.time_ns() // 1000
            for letter, message in page:
                save.write(json.dumps(saved_json(letter, message, now_us), default=str) + "\n")
            save.flush()
            os.fsync(save.fileno())
        for letter, message in page:
            _settle(queue, letter, message, done)


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


def _why_refused(letter: DeadLetter, error: Nacked | Unroutable) -> ReplayStopped:
    if isinstance(error, Nacked):
        return ReplayStopped(
            str(letter), "its queue refuses it, as a full one does: let members catch up first"
        )
    return ReplayStopped(str(letter), f"no queue takes it ({error}): `lbg group create` repairs bindings")


def _settle(queue: DeadQueue, letter: DeadLetter, message: Delivery, done: ReplayResult) -> None:
    queue.ack(message)
    done.done += 1
    if letter.id is not None:
        done.missing_ids.discard(letter.id)
