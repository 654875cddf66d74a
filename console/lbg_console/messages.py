"""Messages of a group for the pages: of a key, parked, dead letters. Read with the user's own login, and left in place.

The parking queue and that of the dead letters have one reader at a time, since another one would get a part of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC
from typing import Any

from lbg_console.acts import offers
from lbg_console.sessions import Session, admin_of, places_of
from lbg_core.admin import GroupAdmin, ProvisioningError
from lbg_core.admin.dead_letters import (
    DeadLetter,
    DeadLetterError,
    Listing,
    Selection,
    list_letters,
    open_dead_queue,
)
from lbg_core.admin.describe import Description
from lbg_core.admin.key_fate import PlaceKind, find_key, places_text
from lbg_core.admin.key_lane import HEADER, WAITS, lane_rows, reach_text
from lbg_core.admin.live import LiveAdmin
from lbg_core.client import AccessRefused, BodyExcerpt, BrokerAddress, ClientError
from lbg_core.counted_nouns import counted
from lbg_core.group import SpecError, hash_of, queue_of
from lbg_core.group.held_messages import HeldState, PeekedMessage
from lbg_core.redaction import redacted

MESSAGES_MAX = 20
ROWS_SHOWN = 6
"""Of the lane, without a click."""

LETTERS_MAX = 50
BODY_BYTES = 1000
PEEKS_MAX = 8
"""Reads at a time, of all users, each on connections of its own."""

READ_S = 10.0
"""For one page. Dead letters of a key behind 100,000 others take 3 s."""

Found = dict[str, Any]


@dataclass(slots=True)
class MessageList:
    """`messages` as the templates show them, at most so many. `notes`: reasons why others are not shown."""

    messages: list[Found] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    total: int | None = None


class MessageReader:
    def __init__(self, address: BrokerAddress) -> None:
        self._address = address
        self._peeks = asyncio.Semaphore(PEEKS_MAX)

    async def key(
        self, session: Session, one: Description, key: str, reading: asyncio.Lock, allowed: Container[str]
    ) -> Found:
        """Place of the key, its lane, and its messages wherever they are, with the acts on each that are allowed.
        Raises SpecError for a key that the group's hash function cannot take."""
        place = _place_of(one, key)
        now_us = time.time_ns() // 1000
        async with self._admin(session) as admin:
            try:
                fate = await find_key(
                    admin, one.group, key, limit=MESSAGES_MAX, body_bytes=BODY_BYTES, alone=reading
                )
            except ProvisioningError as error:
                nothing: Found = {"publishers": [], "header": [], "rows": [], "reach": "", "messages": []}
                nothing |= {"rows_before": 0, "rows_shown": ROWS_SHOWN}
                return {**place, **nothing, "parked": None, "dead": None, "text": redacted(str(error))}
        parked, dead = fate.at(PlaceKind.PARKED), fate.at(PlaceKind.DEAD)
        publishers, rows = lane_rows(fate.lane, now_us, UTC)
        messages = sorted(
            (message for each in fate.places for message in each.messages),
            key=lambda message: message.state in WAITS,
        )  # those for which others wait, first
        return {
            **place,
            "text": places_text(fate),
            "publishers": publishers,
            "header": [*HEADER[:-1], "Fate"],
            "rows": rows,
            "rows_shown": ROWS_SHOWN,
            "reach": reach_text(fate.lane, now_us, UTC),
            "rows_before": min(fate.lane.open_from, max(0, len(rows) - ROWS_SHOWN)),
            "messages": [_message(one.group, message, now_us, allowed) for message in messages],
            "parked": None if parked is None else parked.count,
            "dead": None if dead is None else dead.count,
        }

    async def parked_keys(self, session: Session, group: str, reading: asyncio.Lock) -> MessageList:
        """The parked keys of a group, in the order in which they were parked."""
        found = MessageList()
        async with self._admin(session) as admin:

            async def read() -> None:
                now_us = time.time_ns() // 1000
                listing = await GroupAdmin(admin).list_parked(group)
                found.total = listing.messages
                found.messages = [
                    {
                        "key": each.key,
                        "state": "released" if each.is_released else "parked",
                        "messages": each.messages,
                        "bytes": each.size_bytes,
                        "age_s": each.age_s(now_us),
                        "reason": listing.reasons.get(each.key),
                        "first": ", ".join("-".join(map(str, identity)) for identity in each.first),
                    }
                    for each in listing.keys
                ]
                if listing.leftovers:
                    found.notes.append(
                        f"{counted(listing.leftovers, 'more copy is', 'more copies are')} in the parking queue, of a "
                        "crash or being parked now: a release or a discard deletes those of crashes"
                    )

            await _read(reading, found.notes, read)
        return found

    async def dead_letters(
        self,
        session: Session,
        group: str,
        selection: Selection,
        reading: asyncio.Lock,
        allowed: Container[str],
    ) -> MessageList:
        """The oldest dead letters that are selected."""
        found = MessageList()
        now_us = time.time_ns() // 1000
        places = places_of(self._address, session.username, session.password)

        async def read() -> None:
            async with open_dead_queue(places, group) as queue:
                listing = await list_letters(queue, selection, limit=LETTERS_MAX, body_bytes=BODY_BYTES)
            found.total = listing.total
            found.messages = _letters(group, listing, now_us, allowed)
            if listing.not_looked_at:
                unread = (
                    f"{counted(listing.not_looked_at, 'was', 'were')} not read, as another client holds them"
                )
                found.notes.append(f"{unread}: read again when it has ended")

        async with self._peeks:
            await _read(reading, found.notes, read)
        return found

    @asynccontextmanager
    async def _admin(self, session: Session) -> AsyncIterator[LiveAdmin]:
        async with self._peeks:
            admin = admin_of(self._address, session.username, session.password)
            try:
                yield admin
            finally:
                await admin.close()


async def _read(reading: asyncio.Lock, notes: list[str], work: Callable[[], Awaitable[None]]) -> None:
    """Does the work as the only reader. Errors become a note."""
    try:
        async with asyncio.timeout(READ_S), reading:
            await work()
    except TimeoutError:
        notes.append(f"not read within {READ_S:.0f} s: an act or another reader is at them; read again later")
    except (ProvisioningError, DeadLetterError, ClientError, OSError) as error:
        refused = next((one for one in (error, error.__cause__) if isinstance(one, AccessRefused)), None)
        if refused is not None:
            notes.append(f"only an administrator may read them: {redacted(refused.reply_text)}")
        else:
            notes.append(redacted(str(error)))


def _place_of(one: Description, key: str) -> Found:
    """Place of a key: hash, queue and member. Raises SpecError for one that the group's hash function cannot take."""
    spec = one.spec
    if spec is None:
        raise SpecError("group", one.group, "has no readable record, so the queue of a key is not known")
    hash_ = hash_of(key, spec.hash_count, spec.hash_function)
    number = 0 if one.is_shared else queue_of(hash_, spec.queue_count)
    service = next((row for row in one.reported_services if row.number == number), None)
    return {
        "hash": hash_,
        "hash_count": spec.hash_count,
        "queue": number,
        "word": "partition" if one.has_partitions else "queue",
        "status": "Unknown" if service is None else service.status,
        "member": None if service is None or service.member is None else service.member.name,
        "is_shared": one.is_shared,
    }


def _message(group: str, message: PeekedMessage, now_us: int, allowed: Container[str]) -> Found:
    fields = ("id", "state", "attempts", "reason", "routing_key", "redelivered", "content_type")
    body = ("body", "body_base64", "body_bytes")
    return {
        **{name: getattr(message, name) for name in (*fields, *body)},
        "key": None,
        "at": message.member or "the broker",
        "age_s": message.age_s(now_us),
        "acts": offers(_ACTS_OF.get(message.state, ()), allowed, group, id=message.id),
    }


_ACTS_OF = {
    HeldState.POISONED: ("skip",),
    HeldState.PARKED: ("discard-parked",),
    HeldState.DEAD: ("replay", "discard"),
}
"""By the state of a message, the acts on it."""


def _letters(group: str, listing: Listing, now_us: int, allowed: Container[str]) -> list[Found]:
    return [
        _letter(group, letter, body, now_us, allowed)
        for letter, body in zip(listing.letters, listing.bodies, strict=True)
    ]


def _letter(group: str, letter: DeadLetter, body: BodyExcerpt, now_us: int, allowed: Container[str]) -> Found:
    return {
        "body": None,
        "body_base64": None,
        **body.to_json(),
        "id": letter.id or "without an id",
        "key": letter.key,
        "state": "",
        "attempts": letter.attempts,
        "reason": letter.reason,
        "routing_key": letter.routing_key,
        "redelivered": None,
        "content_type": None,
        "at": letter.member_name or (None if letter.member is None else f"member {letter.member}"),
        "age_s": letter.age_s(now_us),
        "acts": [] if letter.id is None else offers(_ACTS_OF[HeldState.DEAD], allowed, group, id=letter.id),
    }
