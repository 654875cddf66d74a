"""The fate of a key: where its messages are, and what became of those before them.

A message passes these places in their order, and they are read in it: unrouted, its queue (while the number of queues
changes: the old one, a staging queue, the new one), a member, the parking queue, the dead letters. So one that goes on
meanwhile is found once at least. What is returned to its queue can be missed: where nothing was found, the queues are
read once more.
"""

from __future__ import annotations

import asyncio
import enum
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from lbg_core.admin.actions import ADMINISTRATOR
from lbg_core.admin.dead_letters import DeadLetter, DeadLetterError, Selection, open_dead_queue
from lbg_core.admin.dead_letters.queue import Copy, DeadQueue
from lbg_core.admin.errors import ProvisioningError, plain_reason
from lbg_core.admin.key_lane import Lane, Visit, Word, lane_of
from lbg_core.admin.live import LiveAdmin
from lbg_core.admin.member_requests import (
    BODY_BYTES,
    LIMIT,
    READ_MAX,
    ask_members,
    peeked_json,
    waiting_message,
)
from lbg_core.admin.parked_messages.queue import is_parked, parking_queue
from lbg_core.admin.parked_messages.stream import open_parked_stream
from lbg_core.admin.plan import existing
from lbg_core.admin.protocol import observe_existing
from lbg_core.admin.queue_changes import surplus_queues
from lbg_core.admin.rows import members_of
from lbg_core.admin.snapshot import UNKNOWN, QueueStatus, Snapshot, Unknown
from lbg_core.client import AccessRefused, BodyExcerpt, ClientError, ConnectionSettings, Delivery
from lbg_core.counted_nouns import counted
from lbg_core.group import IDENTITY_BYTES, UNCOUNTED_MODES, GroupSpec, Names, hash_of, queue_of
from lbg_core.group.errors import EntryError
from lbg_core.group.held_messages import Ending, HeldState, PeekedMessage
from lbg_core.group.members_protocol import Beat, KeyAnswer, KeyRequest
from lbg_core.group.sequences import MessageIdentity
from lbg_core.redaction import redacted

RECORDS = 200
"""Finished messages of the key that each member sends, the last ones."""

READ_S = 10.0
"""For one of the queues that are read by a consumer. Dead letters of a key behind 100,000 others take 3 s."""


class PlaceKind(enum.StrEnum):
    UNROUTED = "unrouted"
    QUEUE = "queue"
    MEMBER = "member"
    PARKED = "parked"
    DEAD = "dead letters"


class Unread(enum.StrEnum):
    """Cause for which a place was not read to its end."""

    NOT_SHOWN = "not-shown"
    """RabbitMQ shows no message of a queue with a single active consumer."""
    LIMITED = "limited"
    """The broker shows the first ones only."""
    DENIED = "denied"
    """Only an administrator may read it."""
    DOWN = "down"
    """Most nodes of the queue are."""
    UNCOUNTED = "uncounted"
    AT_NO_MEMBER = "at-no-member"
    """The broker has delivered messages, and no member that answered serves the queue."""
    SILENT = "silent"
    """A member did not answer."""
    TAKEN = "taken"
    """Another client holds the rest."""
    LATE = "late"
    """It was not read within `READ_S`."""
    FAILED = "failed"


@dataclass(slots=True)
class KeyPlace:
    """A place where messages of a key may be. `count`: those that were found; `messages` are the first of them.
    `unread` is None where it was read to its end; else `left` messages of any key were not looked at, and `reason` is
    the broker's word."""

    kind: PlaceKind
    name: str
    count: int = 0
    messages: list[PeekedMessage] = field(default_factory=list)
    unread: Unread | None = None
    left: int | Unknown = UNKNOWN
    reason: str = ""

    def to_json(self, now_us: int) -> dict[str, Any]:
        return {
            "kind": str(self.kind),
            "name": self.name,
            "count": self.count,
            "messages": [peeked_json(one, now_us) for one in self.messages],
            "unknown": None if self.unread is None else unread_text(self),
        }


@dataclass(frozen=True, slots=True)
class KeyFate:
    """Places of the messages of a key. `queue`: that of new ones; of a group that is one queue, its partition."""

    group: str
    key: str
    hash_: int
    queue: int
    places: tuple[KeyPlace, ...]
    lane: Lane

    @property
    def count(self) -> int:
        return sum(one.count for one in self.places)

    @property
    def unknown(self) -> list[KeyPlace]:
        """Places that were not read to their end."""
        return [one for one in self.places if one.unread is not None]

    def at(self, kind: PlaceKind) -> KeyPlace | None:
        return next((one for one in self.places if one.kind is kind), None)

    def to_json(self) -> dict[str, Any]:
        now_us = time.time_ns() // 1000
        return {
            "group": self.group,
            "key": self.key,
            "hash": self.hash_,
            "queue": self.queue,
            "count": self.count,
            "is_complete": not self.unknown,
            "places": [one.to_json(now_us) for one in self.places],
            **self.lane.to_json(),
        }


def unread_text(place: KeyPlace) -> str:
    """Cause for which a place was not read to its end, as a sentence without its place."""
    left = "some messages" if place.left is UNKNOWN else counted(place.left, "message")
    match place.unread:
        case None:
            return ""
        case Unread.NOT_SHOWN:
            return f"it has {left} of this or other keys, and RabbitMQ shows none of a queue"
        case Unread.LIMITED:
            return f"it has {left} of this or other keys behind those that the broker shows"
        case Unread.DENIED:
            return f"it has {left} of this or other keys, and only an administrator may read them" + (
                f": {place.reason}" if place.reason else ""
            )
        case Unread.DOWN:
            return "most nodes of the queue are down"
        case Unread.UNCOUNTED:
            return f"the broker does not say what waits in it{f': {place.reason}' if place.reason else ''}"
        case Unread.AT_NO_MEMBER:
            return f"no member that answered has {left} of it"
        case Unread.SILENT:
            return "it did not answer: it is busy, of another version, or gone"
        case Unread.TAKEN:
            return f"another client holds {left} of it: read again when it has ended"
        case Unread.LATE:
            return f"it was not read to its end within {READ_S:g} s: an act or another reader is at it, or it is long"
        case Unread.FAILED:
            return place.reason


def places_text(fate: KeyFate) -> str:
    """One sentence: how many messages of the key there are, or that there is none, or why that is unknown."""
    if not fate.unknown:
        return _count_text(fate) if fate.count else "no message of this key waits"
    causes = "; ".join(f"{_place_text(one)}: {unread_text(one)}" for one in fate.unknown)
    found = (
        f"{_count_text(fate)}, perhaps more" if fate.count else "unknown whether messages of this key wait"
    )
    return f"{found}, because {causes}"


def _count_text(fate: KeyFate) -> str:
    parts = [_found_text(one, fate.lane) for one in fate.places if one.count]
    return f"{counted(fate.count, 'message')} of this key: {', '.join(parts)}"


_WORDS: dict[PlaceKind, Container[Word]] = {
    PlaceKind.PARKED: (Ending.PARKED, HeldState.PARKED),
    PlaceKind.DEAD: (Ending.DEAD, HeldState.DEAD),
}
"""Of a place whose messages are in the lane as members remember them, too."""


def _found_text(place: KeyPlace, lane: Lane) -> str:
    is_dead = place.kind is PlaceKind.DEAD
    found = counted(place.count, "dead letter") if is_dead else f"{place.count:,} {_place_text(place)}"
    remembered = [
        one for one in lane.steps if isinstance(one, Visit) and one.word in _WORDS.get(place.kind, ())
    ]
    shown = max(len(place.messages), len(remembered))
    return found if shown >= place.count else f"{found} (the first {shown:,} of them shown)"


def _place_text(place: KeyPlace) -> str:
    match place.kind:
        case PlaceKind.MEMBER:
            return f"at member {place.name}"
        case PlaceKind.PARKED:
            return "parked"
        case PlaceKind.DEAD:
            return "dead letters"
        case _:
            return f"in {place.name}"


async def find_key(
    admin: LiveAdmin,
    group: str,
    key: str,
    *,
    limit: int = LIMIT,
    body_bytes: int = BODY_BYTES,
    alone: AbstractAsyncContextManager[object] | None = None,
) -> KeyFate:
    """All places of a key's messages, each with the first `limit` of them. Nothing is taken. `alone` is entered while
    dead letters, parked and unrouted messages are read: of two readers each gets a part.

    Raises GroupNotFound, RecordUnreadable, SpecError for a key that the group's hash function cannot take, and
    AdminError.
    """
    observed = await observe_existing(admin, group)
    spec, record = existing(group, observed)
    hash_ = hash_of(key, spec.hash_count, spec.hash_function)
    queue = 0 if spec.mode in UNCOUNTED_MODES else queue_of(hash_, spec.queue_count)
    search = _Search(admin, observed, spec, key, queue, limit, body_bytes, alone or nullcontext())
    queues = _queues_of(hash_, spec, observed)
    unrouted = await search.letters(PlaceKind.UNROUTED)
    waiting = await search.queues(queues)
    members, answers, beats = await search.members()
    parked = [await search.parked()] if record.has_parking else []
    dead = await search.letters(PlaceKind.DEAD)
    if not any(one.count for one in (*waiting, *members)):  # one may have gone back to its queue meanwhile
        waiting = await search.queues(queues)
    _judge_delivered(waiting, observed, members, beats)
    elsewhere = [one for place in (unrouted, *waiting, *parked, dead) for one in place.messages]
    places = (unrouted, *waiting, *members, *parked, dead)
    return KeyFate(group, key, hash_, queue, places, lane_of(answers, elsewhere))


def _queues_of(hash_: int, spec: GroupSpec, observed: Snapshot) -> list[str]:
    """Names of the queues that may have messages of a hash, in the order in which it passes them."""
    names = Names(spec.name)
    if observed.queues.get(names.parent) is not None:
        return [names.parent]
    move, to_be = observed.key_move(spec.name), observed.queue_count_to_be
    numbers = [queue_of(hash_, spec.queue_count)] if move is None else [*move.queues_of(hash_)]
    if to_be is not None:
        numbers.append(queue_of(hash_, to_be))
    left = [name for name, _ in surplus_queues(names, observed, spec.queue_count)]
    return list(dict.fromkeys([*map(names.queue, numbers), *left]))


@dataclass(frozen=True, slots=True)
class _Search:
    admin: LiveAdmin
    observed: Snapshot
    spec: GroupSpec
    key: str
    number: int
    limit: int
    body_bytes: int
    alone: AbstractAsyncContextManager[object]

    async def queues(self, names: Sequence[str]) -> list[KeyPlace]:
        return [await self._queue(name) for name in names]

    async def _queue(self, name: str) -> KeyPlace:
        place = KeyPlace(PlaceKind.QUEUE, name)
        status = self.observed.queues.get(name)
        if isinstance(status, QueueStatus) and status.is_down:
            return replace(place, unread=Unread.DOWN)
        is_rabbitmq = self.observed.engine.is_rabbitmq
        shown = () if is_rabbitmq else await self.admin.head_of(name, READ_MAX, self.body_bytes)
        found = [
            one for one in (waiting_message(each, self.spec) for each in shown or ()) if one.key == self.key
        ]
        place.count, place.messages = len(found), found[: self.limit]
        counted = (await self.admin.amqp.counts_of([name]))[name]
        if counted is None and status is None:
            return place
        if counted is None or counted is UNKNOWN or counted.ready is UNKNOWN:
            return replace(place, unread=Unread.UNCOUNTED, reason=self.observed.why.get(("queues", name), ""))
        before = status.ready if isinstance(status, QueueStatus) else UNKNOWN
        ready = (
            counted.ready if before is UNKNOWN else min(before, counted.ready)
        )  # without what comes in meanwhile
        if (left := ready - len(shown or ())) > 0:
            not_shown = Unread.DENIED if shown is None else Unread.LIMITED
            return replace(place, unread=Unread.NOT_SHOWN if is_rabbitmq else not_shown, left=left)
        return place

    async def members(self) -> tuple[list[KeyPlace], list[KeyAnswer], list[Beat]]:
        request = KeyRequest(
            *(ADMINISTRATOR, secrets.token_hex(IDENTITY_BYTES), self.key),
            limit=self.limit,
            body_bytes=self.body_bytes,
            records=RECORDS,
        )
        replies, beats = await ask_members(self.admin.amqp, self.spec.name, request)
        answers = [one for one in replies if isinstance(one, KeyAnswer)]
        places = []
        for one in answers:
            me = one.sender
            messages = [
                replace(each, key=self.key, member=me.name, member_index=me.index) for each in one.messages
            ]
            places.append(KeyPlace(PlaceKind.MEMBER, me.name, one.held, messages))
        answered = {one.sender.incarnation for one in answers}
        silent = (one.name for one in members_of(beats) if one.incarnation not in answered)
        places += [KeyPlace(PlaceKind.MEMBER, name, unread=Unread.SILENT) for name in silent]
        return sorted(places, key=lambda one: one.name), answers, beats

    async def letters(self, kind: PlaceKind) -> KeyPlace:
        """Dead letters, or unrouted messages."""
        names, is_unrouted = Names(self.spec.name), kind is PlaceKind.UNROUTED
        place = KeyPlace(kind, names.unrouted if is_unrouted else names.dead)
        state = HeldState.UNROUTED if is_unrouted else HeldState.DEAD

        async def read() -> None:
            opened = open_dead_queue(self._where, self.spec.name, is_unrouted=is_unrouted)
            async with opened as queue:
                await self._collect(queue, place, state)

        await self._read_alone(place, read)
        return place

    async def parked(self) -> KeyPlace:
        """The stream of parked keys counts them."""
        place = KeyPlace(PlaceKind.PARKED, Names(self.spec.name).parking)

        async def read() -> None:
            async with open_parked_stream(self._where, self.spec.name) as stream:
                key = next((one for one in stream.keys.parked() if one.key == self.key), None)
                if key is None:
                    return
                async with parking_queue(stream) as queue:
                    seen: set[MessageIdentity | None] = set()
                    async for letter, delivery in _copies(queue, Selection(key=self.key)):
                        if len(seen) >= self.limit:
                            break
                        if is_parked(stream.keys, letter) and letter.identity not in seen:
                            seen.add(letter.identity)
                            place.messages.append(self._message(letter, delivery, HeldState.PARKED))
                place.count = key.messages

        await self._read_alone(place, read)
        return place

    @property
    def _where(self) -> Sequence[ConnectionSettings]:
        return self.admin.amqp.link.places

    async def _collect(self, queue: DeadQueue, place: KeyPlace, state: HeldState) -> None:
        try:
            async for letter, delivery in _copies(queue, Selection(key=self.key)):
                place.count += 1
                if len(place.messages) < self.limit:
                    place.messages.append(self._message(letter, delivery, state))
        finally:
            place.left = queue.unread
        if queue.unread:
            place.unread = Unread.TAKEN

    def _message(self, letter: DeadLetter, delivery: Delivery, state: HeldState) -> PeekedMessage:
        body: dict[str, Any] = BodyExcerpt.of(delivery.body, self.body_bytes).to_json()
        return PeekedMessage(
            id=letter.id or "without an id",
            key=letter.key,
            queue=self.number if letter.queue is None else letter.queue,
            state=state,
            attempts=letter.attempts or 0,
            reason=letter.reason,
            redelivered=False,
            published_at_us=letter.published_at_us or 0,
            routing_key=letter.routing_key,
            content_type=delivery.properties.content_type,
            body=body.get("body"),
            body_base64=body.get("body_base64"),
            body_bytes=body["body_bytes"],
            member=letter.member_name,
            member_index=letter.member,
            identity=letter.identity,
        )

    async def _read_alone(self, place: KeyPlace, read: Callable[[], Awaitable[None]]) -> None:
        """Does the work as the only reader. What fails is the place's."""
        try:
            async with asyncio.timeout(READ_S), self.alone:
                await read()
        except TimeoutError:
            place.unread = Unread.LATE
        except (ProvisioningError, DeadLetterError, EntryError, ClientError, OSError) as error:
            refused = next((one for one in (error, error.__cause__) if isinstance(one, AccessRefused)), None)
            place.unread = Unread.FAILED if refused is None else Unread.DENIED
            place.reason = redacted(plain_reason(refused or error))


async def _copies(queue: DeadQueue, selection: Container[DeadLetter]) -> AsyncIterator[Copy]:
    async for page in queue.pages(selection):
        for copy in page:
            yield copy


def _judge_delivered(
    waiting: Iterable[KeyPlace], observed: Snapshot, members: Iterable[KeyPlace], beats: Iterable[Beat]
) -> None:
    """A queue is not read to its end while the broker has delivered messages of it to nobody who answered."""
    names = {one.name for one in members if one.unread is None}
    answered = [one for one in beats if one.name in names]
    if names - {one.name for one in answered}:
        return  # one answered and did not say what it serves
    for place in waiting:
        status = observed.queues.get(place.name)
        if place.unread is not None or not isinstance(status, QueueStatus):
            continue
        count = status.consumers if status.unacked is UNKNOWN else status.unacked
        if count is not UNKNOWN and count and not any(_serves(one, place.name) for one in answered):
            place.unread, place.left = Unread.AT_NO_MEMBER, status.unacked


def _serves(member: Beat, queue: str) -> bool:
    number = Names(queue.split(".")[1]).number_of(queue)
    return any(number in (None, one.queue) and one.is_consumed for one in member.queues)
