"""Releases and discards parked messages.

A release is done in rounds: the key is released in the stream, and its messages are published to the group again in the
order of their numbers, and leave the parking queue after the confirm. Those of a queue with a backlog go to the member
that serves it, and leave the parking queue when they are settled. What was published meanwhile is parked behind them,
and is the next round; behind the last messages of a key it waits. Every step can be repeated after a crash: members
drop what is settled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from lbg_core.admin.dead_letters.letter import OF_DEAD_LETTERS, PAGE_MESSAGES, DeadLetter
from lbg_core.admin.dead_letters.queue import Copy, DeadQueue
from lbg_core.admin.dead_letters.replay import Binding, Listing, refusal_text, save_letters
from lbg_core.admin.parked_messages.queue import (
    ParkingStopped,
    delete_leftovers,
    identity_of,
    is_parked,
    parking_queue,
)
from lbg_core.admin.parked_messages.stream import ParkedStream
from lbg_core.admin.progress import Progress, Report, Stage, unreported
from lbg_core.client import (
    BasicProperties,
    BodyExcerpt,
    Channel,
    ClientError,
    ConfirmingPublisher,
    Delivery,
    Nacked,
    Unroutable,
)
from lbg_core.client.republication import copied_properties
from lbg_core.client.retransmit import ANSWER_S
from lbg_core.counted_nouns import counted
from lbg_core.group import HEADER_PARKED_COPY, HEADER_ROUTING_KEY, epoch_of, queue_of
from lbg_core.group.parked_keys import KeyState, ParkedKeys, ReleaseEntry, SettleEntry
from lbg_core.group.sequences import MessageIdentity

READ_BY_MEMBERS_S = 0.5
"""For members to read a release. One that has not parks its messages once more, for the next round."""

STILL_S = 10.0
"""If members are through with no message for so long, the next round begins: what was published again may be in the
parking queue again, and copies in mailboxes may be lost."""

COLLECTED_MAX_BYTES = 64 * 1024 * 1024
"""Of bodies in one round, as they are sorted. The keys beyond are in the next round."""


@dataclass(slots=True)
class Released:
    """`done`: keys that are free now. `failed_again`: keys of which a message used up its attempts once more, so that
    they are parked. `left`: keys that are released, and have messages yet. `leftovers`: copies that crashes had left in
    the parking queue, and that are deleted."""

    published: int = 0
    rounds: int = 0
    leftovers: int = 0
    done: set[str] = field(default_factory=set)
    failed_again: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)

    def to_json(self) -> dict[str, Any]:
        fields = {name: sorted(one) if isinstance(one, set) else one for name, one in asdict(self).items()}
        return {"released": fields.pop("done"), **fields}


@dataclass(frozen=True, slots=True)
class _OfKeys:
    """Selects the messages of these keys."""

    keys: Collection[str]

    def __contains__(self, letter: object) -> bool:
        return isinstance(letter, DeadLetter) and letter.key in self.keys


async def release_parked(
    stream: ParkedStream,
    keys: Collection[str] | None,
    *,
    timeout_s: float,
    report: Report = unreported,
) -> Released:
    """Give the messages of these keys back, or of all that are parked, and wait until members have processed them.

    For who holds the group's lock. Raises ParkingStopped, ClientError, and EntryError.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    released, mailboxes = Released(), MailboxRelease(stream)
    entries = [
        ReleaseEntry(one.key, one.causes) for one in stream.keys.parked() if keys is None or one.key in keys
    ]
    causes = {entry.key: frozenset(entry.causes) for entry in entries}
    selected = causes.keys()
    while True:
        if entries:
            await stream.write(entries)
            await stream.catch_up()
            await asyncio.sleep(READ_BY_MEMBERS_S)
        _classify(stream.keys, selected, released)
        if not released.left:
            released.leftovers = await delete_leftovers(stream)
            return released
        released.rounds += 1
        published, delivered = await _give_back(stream, released.left, mailboxes, deadline)
        count = len(published) + delivered
        released.published += count
        figures = {"round": released.rounds, "messages": count, "keys": len(released.left)}
        report(Progress(Stage.RELEASED, figures=figures))
        is_late = asyncio.get_running_loop().time() >= deadline
        if is_late or ((published or not delivered) and not await _processed(stream, published, deadline)):
            _classify(stream.keys, selected, released)
            if released.left:
                raise ParkingStopped(
                    f"members have not processed {counted(len(released.left), 'released key')} in time: they go on, "
                    "and the same command completes the release"
                )
            return released
        await asyncio.sleep(READ_BY_MEMBERS_S)
        entries = _again(stream.keys, causes)


async def release_first(stream: ParkedStream, key: str) -> MessageIdentity | None:
    """Give the first message of a parked key back, and no other; None if the key has none. Raises ParkingStopped,
    ClientError."""
    first = next(iter(stream.keys.numbers(key)), None)
    if first is None:
        return None
    await stream.write([ReleaseEntry(key, only=(first,))])
    await asyncio.sleep(READ_BY_MEMBERS_S)
    async with parking_queue(stream) as queue:
        await _publish_again(stream, queue, await _collected(stream, queue, {key}, first))
    return first


async def discard_parked(
    stream: ParkedStream,
    selection: Container[DeadLetter],
    *,
    save: IO[str] | None = None,
) -> int:
    """Discard the selected messages; returns how many. With `save`, once they are on its disk as JSON lines. A message
    with two copies counts once. Copies of messages that are settled go as well. Raises OSError, ClientError."""
    discarded = 0
    async with parking_queue(stream) as queue:
        async for page in queue.pages(selection):
            parked = list(
                {identity_of(one[0]): one for one in page if is_parked(stream.keys, one[0])}.values()
            )
            if save is not None:
                save_letters(parked, save)
            entries = [SettleEntry(letter.key or "", identity_of(letter)) for letter, _ in parked]
            await stream.write(entries)
            for entry in entries:
                stream.keys.apply(entry)
            discarded += len(parked)
            for letter, delivery in page:
                if stream.keys.is_settled(identity_of(letter)):
                    queue.ack(delivery)
    await delete_leftovers(stream)
    return discarded


async def parked_messages(
    stream: ParkedStream, selection: Container[DeadLetter], *, limit: int, body_bytes: int | None = None
) -> Listing:
    """The oldest `limit` selected messages of the parking queue, each once, as it stands there, and how many are parked
    in all. `body_bytes`: with so much of each body; None: without bodies."""
    listed: dict[MessageIdentity, tuple[DeadLetter, BodyExcerpt | None]] = {}
    async with parking_queue(stream) as queue:
        async for page in queue.pages(selection):
            for letter, delivery in page:
                if is_parked(stream.keys, letter) and len(listed) < limit:
                    body = None if body_bytes is None else BodyExcerpt.of(delivery.body, body_bytes)
                    listed.setdefault(identity_of(letter), (letter, body))
            if len(listed) >= limit:
                break
    letters = [letter for letter, _ in listed.values()]
    bodies = [body for _, body in listed.values() if body is not None]
    return Listing(stream.keys.messages, letters, 0, bodies)


def in_order(copies: Sequence[Copy]) -> list[Copy]:
    """The copies with those of one publisher in the order of their numbers, and of its epochs."""
    histories = [epoch_of(identity_of(letter)[0]).history for letter, _ in copies]
    in_turn: dict[str, deque[Copy]] = {history: deque() for history in histories}
    for copy, history in sorted(zip(copies, histories, strict=True), key=lambda one: _place(one[0][0])):
        in_turn[history].append(copy)
    return [in_turn[history].popleft() for history in histories]


def _place(letter: DeadLetter) -> tuple[int, int]:
    publisher, _, seq = identity_of(letter)
    return epoch_of(publisher).began_us, seq


def _again(keys: ParkedKeys, causes: Mapping[str, frozenset[str]]) -> list[ReleaseEntry]:
    """Releases, for the next round, of keys that are parked for no other causes than those already released. Their
    members had messages on the way to the parking queue when the last one before them was processed, so the key was
    free for a moment: in the stream, or only at the member, which counts a message as settled before its entry is in
    the stream. There the key is parked then, though it is released here."""
    return [
        ReleaseEntry(one.key, one.causes)
        for one in keys.parked()
        if causes.get(one.key, frozenset()).issuperset(one.causes)
    ]


def _classify(keys: ParkedKeys, selected: Collection[str], released: Released) -> None:
    states = {key: keys.state(key) for key in selected}
    released.done = {key for key, state in states.items() if state is KeyState.FREE}
    released.failed_again = {key for key, state in states.items() if state is KeyState.PARKED}
    released.left = {key for key, state in states.items() if state is KeyState.RELEASED}


async def _processed(
    stream: ParkedStream, published: Sequence[tuple[str, MessageIdentity]], deadline: float
) -> bool:
    """Returns when members are through with them, or with none of them for long: what a key gets meanwhile is parked
    all the time. False at the deadline."""
    loop = asyncio.get_running_loop()
    keys = stream.keys
    still_at, count = 0.0, -1
    while True:
        open_ = [
            key
            for key, identity in published
            if keys.is_parked(key, identity) and keys.state(key) is KeyState.RELEASED
        ]
        now = loop.time()
        if len(open_) != count:
            still_at, count = now + STILL_S, len(open_)
        if now >= deadline:
            return False
        if now >= still_at or (not open_ and published):
            return True
        await stream.wait(min(still_at, deadline) - now)


async def _give_back(
    stream: ParkedStream, keys: Collection[str], mailboxes: MailboxRelease, deadline: float
) -> tuple[list[tuple[str, MessageIdentity]], int]:
    """Gives the copies of these keys back. Returns those that were published, and the number of those that members
    processed."""
    async with parking_queue(stream) as queue:
        copies = in_order(await _collected(stream, queue, keys))
        to_publish, past_backlog = await mailboxes.split(copies)
        published = await _publish_again(stream, queue, to_publish)
        return published, await mailboxes.deliver(queue, past_backlog, deadline)


async def _publish_again(
    stream: ParkedStream, queue: DeadQueue, copies: Sequence[Copy]
) -> list[tuple[str, MessageIdentity]]:
    """Publishes the copies in order, and deletes each after the confirm."""
    published: list[tuple[str, MessageIdentity]] = []
    publisher = await ConfirmingPublisher.open(stream.connection)
    binding = Binding(stream.connection, stream.spec)
    again: set[MessageIdentity] = set()
    for start in range(0, len(copies), PAGE_MESSAGES):
        page = copies[start : start + PAGE_MESSAGES]
        for letter, _ in page:
            await binding.ensure(letter)
        sent: dict[MessageIdentity, asyncio.Future[None]] = {}
        for letter, delivery in page:
            identity = identity_of(letter)
            if identity not in again and identity not in sent:
                sent[identity] = publisher.publish_soon(
                    queue.names.exchange,
                    delivery.routing_key,
                    bytes(delivery.body),
                    properties=_properties(delivery),
                    mandatory=True,
                )
        await _confirmed(stream.spec.name, list(sent.values()))
        again |= sent.keys()
        for letter, delivery in page:
            queue.ack(delivery)
            if identity_of(letter) in sent:
                published.append((letter.key or "", identity_of(letter)))
    return published


async def _collected(
    stream: ParkedStream, queue: DeadQueue, keys: Collection[str], only: MessageIdentity | None = None
) -> list[Copy]:
    """Copies of messages in the set. Those of settled messages are deleted, and others stay."""
    collected: list[Copy] = []
    taken: set[str] = set()
    size_bytes = 0
    async for page in queue.pages(_OfKeys(keys)):
        for letter, delivery in page:
            identity = identity_of(letter)
            if stream.keys.is_settled(identity):
                queue.ack(delivery)
            elif only is not None and identity != only:
                continue
            elif is_parked(stream.keys, letter):
                assert letter.key is not None
                if size_bytes < COLLECTED_MAX_BYTES or letter.key in taken:
                    taken.add(letter.key)
                    collected.append((letter, delivery))
                    size_bytes += len(delivery.body)
    return collected


async def _confirmed(group: str, confirms: Sequence[asyncio.Future[None]]) -> None:
    """Raises ParkingStopped, ClientError."""
    if not confirms:
        return
    await asyncio.wait(confirms, timeout=ANSWER_S)
    for confirm in confirms:
        if not confirm.done():
            raise ParkingStopped(
                f"the broker gave no answer in {ANSWER_S:g} s: the same command continues the release"
            )
        failure = confirm.exception()
        if isinstance(failure, Nacked | Unroutable):
            cause = refusal_text(group, failure)
            raise ParkingStopped(
                f"a message was not published: {cause}; the same command continues the release"
            )
        if isinstance(failure, ClientError):
            raise failure


def _properties(delivery: Delivery) -> BasicProperties:
    """Those of the message as its publisher made it: it keeps its identity, by which members know its place."""
    properties = copied_properties(delivery, without=(*OF_DEAD_LETTERS, HEADER_PARKED_COPY))
    properties.delivery_mode = 2
    return properties


# Release over members' mailboxes: past the backlog of a queue, to the member that serves it.

AHEAD_MESSAGES = 256
AHEAD_BYTES = 8 * 1024 * 1024
"""Copies that are at members and not processed: their mailboxes are in the broker's memory."""

ROUND_MAX_S = 600.0
"""RabbitMQ closes a channel with a message unacknowledged for `consumer_timeout`, 30 min by default."""


@dataclass(slots=True)
class MailboxRelease:
    """Of one release. The members that serve queues are remembered until nothing comes of it.

    What goes to a mailbox is a hint. The member delivers the copy if it serves the queue and the message is the next of
    its key, as if the queue had delivered it, and drops it otherwise. The copy leaves the parking queue when the
    message is settled. So a copy may get lost on the way, come twice, or come to a member that does not serve the queue
    any more.
    """

    stream: ParkedStream
    _members: Mapping[int, int] = field(default_factory=dict)

    async def split(self, copies: Sequence[Copy]) -> tuple[list[Copy], list[Copy]]:
        """Copies to publish, and those of queues with a backlog that a member serves. In an empty queue a copy is the
        next delivery, and no member may know that it serves it. Raises ClientError."""
        queues = {self._queue(letter) for letter, _ in copies}
        channel = await self.stream.connection.open_channel()
        ready = {
            queue: (await channel.queue_declare(self.stream.names.queue(queue), passive=True)).message_count
            for queue in sorted(queues)
        }
        await channel.close()
        behind = {queue for queue, count in ready.items() if count}
        if behind - self._members.keys():
            self._members = await self._serving()
        past = behind & self._members.keys()
        to_publish = [copy for copy in copies if self._queue(copy[0]) not in past]
        return to_publish, [copy for copy in copies if self._queue(copy[0]) in past]

    async def deliver(self, queue: DeadQueue, copies: Sequence[Copy], deadline: float) -> int:
        """Sends the copies in this order, and deletes each when its message is settled. Returns how many; the others
        stay. Raises ClientError, EntryError."""
        stream, loop = self.stream, asyncio.get_running_loop()
        channel = await stream.connection.open_channel()
        ended_at = min(deadline, loop.time() + ROUND_MAX_S)
        still_at = loop.time() + STILL_S
        to_send, sent = deque(copies), list[Copy]()
        delivered: set[MessageIdentity] = set()
        while to_send or sent:
            ahead_bytes = sum(len(delivery.body) for _, delivery in sent)
            while to_send and len(sent) < AHEAD_MESSAGES and ahead_bytes < AHEAD_BYTES:
                copy = to_send.popleft()
                if self._is_released(copy):
                    self._send(channel, *copy)
                    ahead_bytes += len(copy[1].body)
                    sent.append(copy)
            await stream.wait(max(0.01, min(still_at, ended_at) - loop.time()))
            for letter, delivery in sent:
                if stream.keys.is_settled(identity_of(letter)):
                    queue.ack(delivery)
                    delivered.add(identity_of(letter))
                    still_at = loop.time() + STILL_S
            sent = [copy for copy in sent if self._is_released(copy)]
            if loop.time() >= min(still_at, ended_at):
                self._members = {}
                break
        await channel.close()
        return len(delivered)

    def _is_released(self, copy: Copy) -> bool:
        keys, letter = self.stream.keys, copy[0]
        return keys.state(letter.key or "") is KeyState.RELEASED and is_parked(keys, letter)

    def _send(self, channel: Channel, letter: DeadLetter, delivery: Delivery) -> None:
        properties = _properties(delivery)
        properties.headers = {**(properties.headers or {}), HEADER_ROUTING_KEY: delivery.routing_key}
        channel.publish(
            self.stream.names.members,
            str(self._members[self._queue(letter)]),
            bytes(delivery.body),
            properties=properties,
        )

    def _queue(self, letter: DeadLetter) -> int:
        return queue_of(identity_of(letter)[1], self.stream.spec.queue_count)

    async def _serving(self) -> Mapping[int, int]:
        """Index of the member that serves each queue, as members report it."""
        return {
            queue.queue: report.index
            for report in await self.stream.reports()
            for queue in report.queues
            if queue.active
        }
