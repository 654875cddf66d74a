"""The parking queue `lbg.G.parking`, and the leftover copies in it: those of crashes, which are of no parked message.

A copy is written before its entry, so the entry of a copy that has none may still come: from a member that is between
the two, or late from one that is gone. An entry that voids the copy decides it, by their order in the stream.

DeadLetterError
└── ParkingStopped    a message could not be published, or members do not process what was released
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from lbg_core.admin.dead_letters.letter import DeadLetter, DeadLetterError
from lbg_core.admin.dead_letters.queue import DeadQueue
from lbg_core.admin.group_locks import is_locked
from lbg_core.admin.parked_messages.stream import ParkedStream
from lbg_core.client import Delivery
from lbg_core.group import HEADER_PARKED_COPY
from lbg_core.group.parked_keys import ParkedKeys, VoidEntry
from lbg_core.group.sequences import MessageIdentity

RETURNED_S = 0.5
"""For a quorum queue to have back what the reader before returned with its channel: it counts nothing of it before."""

ENTRY_FOLLOWS_S = 1.0
"""For members to write the entries of copies that they have just made: a void one is made again."""


REASONS_S = 3.0
"""For the reasons of parked keys: as long as 100,000 messages of a queue take."""


class ParkingStopped(DeadLetterError):
    pass


class _OfNoParkedMessage:
    """Selects copies of messages that are not in the set."""

    def __init__(self, keys: ParkedKeys) -> None:
        self._keys = keys

    def __contains__(self, letter: object) -> bool:
        return (
            isinstance(letter, DeadLetter)
            and letter.key is not None
            and letter.identity is not None
            and not self._keys.is_parked(letter.key, letter.identity)
        )


class _Reasons:
    """Notes the first reason of each key, and selects messages once each has one."""

    def __init__(self, keys: ParkedKeys) -> None:
        self.found: dict[str, str] = {}
        self._keys = keys

    def __contains__(self, letter: object) -> bool:
        if isinstance(letter, DeadLetter) and letter.reason and letter.identity is not None:
            key = letter.key
            if key is not None and key not in self.found and self._keys.is_parked(key, letter.identity):
                self.found[key] = letter.reason
        return len(self.found) == len(self._keys)


@asynccontextmanager
async def parking_queue(stream: ParkedStream) -> AsyncIterator[DeadQueue]:
    """Raises ClientError."""
    channel = await stream.connection.open_channel()
    name = stream.names.parking
    total = (await channel.queue_declare(name, passive=True)).message_count
    queue = DeadQueue(stream.connection, channel, stream.spec, total, name=name)
    try:
        yield queue
    finally:
        await queue.close()


def identity_of(letter: DeadLetter) -> MessageIdentity:
    """Raises ParkingStopped for a message that no member parked."""
    if letter.identity is None:
        raise ParkingStopped(
            f"the parking queue has a message without a publisher's stamp (routing key {letter.routing_key!r}): "
            "no member parked it"
        )
    return letter.identity


def is_parked(keys: ParkedKeys, letter: DeadLetter) -> bool:
    return letter.key is not None and keys.is_parked(letter.key, identity_of(letter))


async def reasons(stream: ParkedStream) -> Mapping[str, str]:
    """The reason for which each key is parked, as far as the parking queue is read in time. None while another client
    has the group's lock: a release or a discard would not get what this reads. Raises ClientError."""
    selection = _Reasons(stream.keys)
    if not len(stream.keys) or await is_locked(stream.connection, stream.spec.name):
        return selection.found
    async with parking_queue(stream) as queue:
        with suppress(TimeoutError):
            async with asyncio.timeout(REASONS_S):
                async for _ in queue.pages(selection):
                    break
    return selection.found


async def leftovers(stream: ParkedStream) -> int:
    """Copies beyond one for each parked message: leftovers, second copies, and those that are being parked now. Fewer
    while another administrator reads the queue, or a release is not complete. Raises ClientError."""
    channel = await stream.connection.open_channel()
    count = (await channel.queue_declare(stream.names.parking, passive=True)).message_count
    await channel.close()
    return max(0, count - stream.keys.messages)


async def delete_leftovers(stream: ParkedStream) -> int:
    """Delete the leftover copies of messages that are not parked; returns how many. A second copy of a parked message
    goes with it. For who holds the group's lock. Raises ClientError, EntryError, RecordUnavailable."""
    await asyncio.sleep(RETURNED_S)
    if not await leftovers(stream):
        return 0
    deleted = 0
    keys, selection = stream.keys, _OfNoParkedMessage(stream.keys)
    async with parking_queue(stream) as queue:
        async for page in queue.pages(selection):
            if not all(_is_done(keys, *copy) for copy in page):
                await asyncio.sleep(ENTRY_FOLLOWS_S)
                await stream.catch_up()
            copies = [copy for copy in page if copy[0] in selection]
            in_doubt = [_copy_of(copy[1]) for copy in copies if not _is_done(keys, *copy)]
            if in_doubt:
                await stream.write([VoidEntry(tuple(filter(None, in_doubt)))])
                await stream.catch_up()
            for letter, delivery in copies:
                is_recorded = stream.copies.has(identity_of(letter), _copy_of(delivery))
                if _is_done(keys, letter, delivery) and not is_recorded:
                    queue.ack(delivery)
                    deleted += 1
    return deleted


def _is_done(keys: ParkedKeys, letter: DeadLetter, delivery: Delivery) -> bool:
    """True if no entry that comes now can make it the copy of a parked message."""
    return keys.is_settled(identity_of(letter)) or keys.is_void(_copy_of(delivery))


def _copy_of(delivery: Delivery) -> str:
    """Id of the copy; empty for a message that no member parked."""
    copy = delivery.headers.get(HEADER_PARKED_COPY)
    return copy if isinstance(copy, str) else ""
