"""Operations on the parked keys of a group, for `lbg park` and `GroupAdmin`.

What changes something holds the group's lock: of two administrators that read the parking queue each gets a part.

DeadLetterError
└── NotParked    a key that is to be released is not parked
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import IO

from lbg_core.admin.actions import WriteRecord
from lbg_core.admin.dead_letters import DeadLetter, DeadLetterError, Listing, Selection
from lbg_core.admin.errors import ConsumptionIsPaused, ProvisioningError
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.parked_messages.queue import leftovers, reasons
from lbg_core.admin.parked_messages.release import (
    Released,
    discard_parked,
    parked_messages,
    release_first,
    release_parked,
)
from lbg_core.admin.parked_messages.stream import ParkedStream, open_parked_stream
from lbg_core.admin.progress import Report, unreported
from lbg_core.admin.record import read_record, require_open
from lbg_core.client import ClientError
from lbg_core.group.parked_keys import KeyState, ParkedKey
from lbg_core.group.sequences import MessageIdentity
from lbg_core.peers import printable

TIMEOUT_S = 300.0
"""Default of the time for members to process what a release gives back."""

LETTERS = 100
"""Default of the number of messages that are listed of a key."""

COMPACTED_ENTRIES = 10_000
"""Entries of the stream from which on it is compacted: members read 27,000 a second when they connect
(docs/adr/0065-parked-keys-are-a-log.md)."""


class NotParked(DeadLetterError):
    def __init__(self, group: str, keys: Collection[str]) -> None:
        super().__init__(
            f"not parked in group {group}: {', '.join(map(printable, keys))} (or released completely by now)"
        )


@dataclass(frozen=True, slots=True)
class ParkedListing:
    """Parked keys of a group, in the order in which they were parked. `messages` and `size_bytes` (of the bodies) are
    those of all keys. `leftovers`: copies in the parking queue beyond one for each message, of crashes and of messages
    that are being parked. `reasons`: the last error of the message for which a key is parked, by the key, where it
    could be read."""

    keys: tuple[ParkedKey, ...]
    messages: int
    size_bytes: int
    leftovers: int
    reasons: Mapping[str, str]


async def list_parked(admin: LiveAdmin, group: str) -> ParkedListing:
    """Raises the errors of `open_parked_stream`."""
    async with open_parked_stream(admin.amqp.link.places, group) as stream:
        keys = stream.keys
        more = await leftovers(stream)
        parked = tuple(keys.parked())
        return ParkedListing(parked, keys.messages, keys.size_bytes, more, await reasons(stream))


async def show_parked(
    admin: LiveAdmin, group: str, key: str, *, limit: int, body_bytes: int | None = None
) -> Listing:
    """The first `limit` parked messages of a key, which stay there; with `body_bytes` of each body, if given. Raises
    the errors of `open_parked_stream`."""
    async with open_parked_stream(admin.amqp.link.places, group) as stream:
        return await parked_messages(stream, Selection(key=key), limit=limit, body_bytes=body_bytes)


async def release(
    admin: LiveAdmin,
    group: str,
    keys: Collection[str] | None,
    *,
    timeout_s: float,
    report: Report = unreported,
) -> Released:
    """Give the messages of these keys back, or of all (None), and wait until members have processed them. Raises
    NotParked, ParkingStopped, Busy, KeysMove or UnderWay while a change of the number of queues is not complete,
    ConsumptionIsPaused, IngressIsPaused, and the errors of `open_parked_stream`."""
    async with open_parked_stream(admin.amqp.link.places, group, is_locked=True) as stream:
        require_open(stream.spec, stream.record)
        if stream.record.is_paused:
            raise ConsumptionIsPaused(group)
        if missing := [key for key in keys or () if stream.keys.state(key) is KeyState.FREE]:
            raise NotParked(group, missing)
        released = await release_parked(stream, keys, timeout_s=timeout_s, report=report)
        await _compact(admin, stream)
        return released


async def replay_first(admin: LiveAdmin, group: str, key: str) -> MessageIdentity:
    """Give the first message of a parked key back, and no other; members that are paused process it after the pause.
    Raises as `release`, but for ConsumptionIsPaused."""
    async with open_parked_stream(admin.amqp.link.places, group, is_locked=True) as stream:
        require_open(stream.spec, stream.record)
        first = await release_first(stream, key)
        if first is None:
            raise NotParked(group, [key])
        return first


async def discard(
    admin: LiveAdmin, group: str, selection: Container[DeadLetter], *, save: IO[str] | None = None
) -> int:
    """Delete the selected messages; returns how many. With `save`, once they are on its disk as JSON lines. Raises
    OSError, Busy, and the errors of `open_parked_stream`."""
    async with open_parked_stream(admin.amqp.link.places, group, is_locked=True) as stream:
        discarded = await discard_parked(stream, selection, save=save)
        await _compact(admin, stream)
        return discarded


async def _compact(admin: LiveAdmin, stream: ParkedStream) -> None:
    """Write the set as a snapshot, from which members read the stream, if that saves half of many entries. What fails
    here changes nothing: the next request does it again."""
    if stream.read_count < COMPACTED_ENTRIES:
        return
    with suppress(ProvisioningError, ClientError):
        place, parts = await stream.mark()
        if sum(len(part.entries) for part in parts) * 2 > stream.read_count:
            return
        for part in parts:
            await stream.write([part])
        group = stream.spec.name
        record = await read_record(await stream.connection.open_channel(), group)
        await admin.perform(WriteRecord(group, replace(record, parked_from=str(place)), record))
