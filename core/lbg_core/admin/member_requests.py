"""Requests of administrators to the members of a group: to show messages, to skip a poisoned one, to pause.

A request goes to the members' exchange, as what members send each other. The answers have a routing key of their own,
which only the queue of this request is bound to. Who may write to that exchange and read from it may request: the
members' user and administrators, not the publishers' user.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from lbg_core.admin.actions import ADMINISTRATOR, Announce
from lbg_core.admin.amqp import AmqpAdmin
from lbg_core.admin.errors import MessageNotSkipped, Refused, Unreachable
from lbg_core.admin.plan import existing, require_by_hand
from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.problems import Problem, Subject
from lbg_core.admin.protocol import BrokerAdmin, observe_existing, renew_unchanged, rewrite_record
from lbg_core.admin.record import paused_words
from lbg_core.admin.rows import members_of
from lbg_core.admin.snapshot import UNKNOWN, Snapshot, Unknown
from lbg_core.admin.status_reports import REPORT_KEYS, message_in, receiving, watch_reports
from lbg_core.client import Delivery
from lbg_core.counted_nouns import counted
from lbg_core.group import (
    HEADER_PUBLISHER,
    HEADER_SEQ,
    HEADER_TS,
    IDENTITY_BYTES,
    UNCOUNTED_MODES,
    GroupSpec,
    Names,
    SpecError,
    hash_in,
    key_of,
    queue_of,
)
from lbg_core.group.errors import MessageError
from lbg_core.group.held_messages import HeldState, PeekedMessage
from lbg_core.group.members_protocol import (
    ACTIVITY,
    ANSWER_PREFIX,
    Activity,
    Beat,
    KeyRequest,
    Message,
    Pause,
    Peek,
    Peeked,
    Skip,
    SkipOutcome,
    Skipped,
    Watch,
)
from lbg_core.group.message_codec import decode

if TYPE_CHECKING:
    from lbg_core.admin.live import LiveAdmin

ANSWERS_S = 1.5
"""Seconds in which members answer, and in which the status reports show who they are."""

BODY_BYTES = 1000
LIMIT = 10
READ_MAX = 5000
"""Messages of a queue that are read at the broker, at its first ones, to find those of a key or an id."""

SKIPPED_S = 35.0
"""Longer than a call with the default timeout: a message that is being called is skipped when the call has ended."""

PAUSED_S = 5.0
"""For members to report that they paused or resumed: they do so with the next status report."""


def peeked_json(message: PeekedMessage, now_us: int) -> dict[str, Any]:
    """For `--json`."""
    fields = asdict(message)
    for name in ("published_at_us", "identity", "received_us", "first_call_us", "last_call_us"):
        del fields[name]
    del fields["body" if message.body is None else "body_base64"]
    return {**fields, "age_s": message.age_s(now_us)}


@dataclass(frozen=True, slots=True)
class PeekResult:
    """Messages of a group, by queue, and in each in order: those at members first. `held`: how many messages of the
    selection members hold, shown or not. `unread`: of each queue, how many messages wait at the broker and could not be
    looked at. `silent`: members that did not answer."""

    group: str
    messages: tuple[PeekedMessage, ...]
    held: int
    unread: Mapping[str, int | Unknown]
    silent: tuple[str, ...]
    is_rabbitmq: bool

    def to_json(self) -> dict[str, Any]:
        now_us = time.time_ns() // 1000
        return {
            "group": self.group,
            "messages": [peeked_json(one, now_us) for one in self.messages],
            "held": self.held,
            "unread": {
                name: str(count) if count is UNKNOWN else count for name, count in self.unread.items()
            },
            "silent": list(self.silent),
        }


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selection of messages: all that is given must hold, and nothing given selects everything."""

    queue: int | None = None
    id: str | None = None

    def __contains__(self, message: PeekedMessage) -> bool:
        return (self.queue is None or message.queue == self.queue) and (
            self.id is None or message.id == self.id
        )


async def peek_group(
    admin: LiveAdmin, group: str, wanted: Wanted, *, limit: int = LIMIT, body_bytes: int = BODY_BYTES
) -> PeekResult:
    """The first `limit` messages that are wanted, without taking any: members answer with those that they hold, and the
    embedded broker shows the next ones. RabbitMQ shows none: it refuses basic.get from a queue with a single active
    consumer.

    Raises GroupNotFound, RecordUnreadable, SpecError for a queue that the group does not have, and AdminError.
    """
    observed = await observe_existing(admin, group)
    spec, _ = existing(group, observed)
    if wanted.queue is not None and wanted.queue >= _count(spec):
        raise SpecError(
            "queue", wanted.queue, f"must be below {_count(spec)}, the number of the group's queues"
        )
    request = Peek(
        *(ADMINISTRATOR, secrets.token_hex(IDENTITY_BYTES), wanted.queue, wanted.id),
        limit=limit,
        body_bytes=body_bytes,
    )
    found, beats = await ask_members(admin.amqp, group, request)
    answers = [answer for answer in found if isinstance(answer, Peeked)]
    at_members = [
        replace(one, member=answer.sender.name, member_index=answer.sender.index)
        for answer in answers
        for one in answer.messages
    ]
    at_broker, unread = await _at_broker(admin, observed, spec, wanted, limit=limit, body_bytes=body_bytes)
    messages = sorted((*at_members, *at_broker), key=lambda one: (one.queue, one.member is None))
    answered = {answer.sender.incarnation for answer in answers}
    return PeekResult(
        group,
        tuple(messages[:limit]),
        held=sum(answer.held for answer in answers),
        unread=unread,
        silent=tuple(one.name for one in members_of(beats) if one.incarnation not in answered),
        is_rabbitmq=observed.engine.is_rabbitmq,
    )


async def skip_message(
    admin: LiveAdmin, group: str, id: str, *, within_s: float = SKIPPED_S
) -> PeekedMessage:
    """Makes a poisoned message a dead letter, at the member that holds it; returns it as it was. Its key goes on.

    The member publishes the dead letter, waits for its confirm and acknowledges the message then, so that it is in its
    place or a dead letter, or, if the member dies in between, both, and never neither.

    Raises MessageNotSkipped, and what `peek_group` raises.
    """
    found = await peek_group(admin, group, Wanted(id=id), limit=2)
    held = [one for one in found.messages if one.member_index is not None]
    if causes := list(_why_not_skipped(held, found)):
        raise MessageNotSkipped(group, message=id, causes=causes)
    message = held[0]
    answers, _ = await ask_members(
        admin.amqp,
        group,
        Skip(ADMINISTRATOR, secrets.token_hex(IDENTITY_BYTES), id),
        to=message.member_index,
        within_s=within_s,
        is_last=lambda answer: isinstance(answer, Skipped) and answer.outcome is not SkipOutcome.RUNNING,
    )
    outcomes = [answer.outcome for answer in answers if isinstance(answer, Skipped)]
    if SkipOutcome.DEAD_LETTER in outcomes:
        return message
    kind = _NOT_SKIPPED[outcomes[-1]] if outcomes else Kind.SKIP_UNCONFIRMED
    cause = Problem(kind, Subject(group, members=(str(message.member),)))
    raise MessageNotSkipped(group, message=id, causes=[cause])


async def pause_group(
    admin: BrokerAdmin, group: str, *, is_paused: bool = True, within_s: float = PAUSED_S
) -> tuple[str, ...]:
    """Pauses the consumption of a group, or resumes it, as its record states from then on. Returns the names of members
    that do not report it within `within_s`.

    Members keep their queues and start no new call; calls that run end. It holds the group's lock to its end: behind a
    resume, one more announcement of a pause would be followed too. Raises NotOwned for a group of Kubernetes,
    GroupNotFound, RecordUnavailable, RecordUnreadable, Busy and AdminError.
    """
    async with admin.lock(group):
        observed = await observe_existing(admin, group)
        require_by_hand(group, observed)
        _, record = existing(group, observed)
        words = paused_words(record.paused, is_paused=is_paused)
        record = await rewrite_record(admin, group, record, paused=words)
        deadline = asyncio.get_running_loop().time() + within_s
        while True:
            await admin.perform(pause_announced(group, is_paused=is_paused))
            members = members_of(await admin.listen(group, seconds=ANSWERS_S))
            behind = tuple(one.name for one in members if one.paused != is_paused)
            if not behind or asyncio.get_running_loop().time() >= deadline:
                return behind
            await renew_unchanged(admin, group, record)


def pause_announced(group: str, *, is_paused: bool) -> Announce:
    """Members that are there start no new call, or go on."""
    return Announce(group, Pause(ADMINISTRATOR, is_paused))


def _why_not_skipped(held: Sequence[PeekedMessage], found: PeekResult) -> Iterator[Problem]:
    """Causes for which the message of an id cannot be skipped; none if it can. `held`: at members."""
    subject = Subject(found.group, members=tuple(str(one.member) for one in held))
    if not held:
        yield Problem(Kind.MESSAGE_NOT_HELD, subject)
        if found.silent:
            yield Problem(Kind.NO_ANSWER, Subject(found.group, members=tuple(found.silent)))
    elif len(held) > 1:
        yield Problem(Kind.MESSAGE_AMBIGUOUS, subject)
    elif held[0].state != HeldState.POISONED:
        kind = _NOT_TO_SKIP.get(held[0].state, Kind.MESSAGE_NOT_POISONED)
        yield Problem(kind, subject, {"state": str(held[0].state), "attempts": held[0].attempts})


_NOT_TO_SKIP = {
    HeldState.REFUSED: Kind.MESSAGE_REFUSED,
    HeldState.PROCESSED: Kind.MESSAGE_PROCESSED,
    HeldState.PARKING: Kind.MESSAGE_PARKING,
    HeldState.MOVING: Kind.MESSAGE_MOVING,
}
_NOT_SKIPPED = {
    SkipOutcome.RUNNING: Kind.MESSAGE_CALLED,
    SkipOutcome.PROCESSED: Kind.MESSAGE_PROCESSED,
    SkipOutcome.PARKING: Kind.MESSAGE_PARKING,
    SkipOutcome.MOVING: Kind.MESSAGE_MOVING,
    SkipOutcome.NOT_POISONED: Kind.MESSAGE_MENDED,
    SkipOutcome.NOT_HELD: Kind.MESSAGE_GONE,
}


async def ask_members(
    amqp: AmqpAdmin,
    group: str,
    request: Peek | KeyRequest | Skip,
    *,
    to: int | None = None,
    within_s: float = ANSWERS_S,
    is_last: Callable[[Message], bool] = lambda answer: False,
) -> tuple[list[Message], list[Beat]]:
    """Answers of the members to a request, or of member `to` alone, and the status reports that came meanwhile: all
    that come within `within_s`, or those up to an answer that `is_last`. Raises AdminError, also for a member of a
    newer version."""
    answer_to = f"{ANSWER_PREFIX}{request.answer}"
    answers: list[Message] = []
    beats: list[Beat] = []
    refusals: list[Refused] = []
    ended = asyncio.Event()

    def on_deliveries(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            try:
                message = message_in(group, bytes(delivery.body))
            except Refused as newer:
                refusals.append(newer)
                ended.set()
                continue
            if isinstance(message, Beat):
                beats.append(message)
            elif message is not None and delivery.routing_key == answer_to:
                answers.append(message)
                if is_last(message):
                    ended.set()

    async with receiving(amqp, [group], (answer_to, *REPORT_KEYS), on_deliveries) as refused:
        for error in refused.values():
            raise error
        watch_reports(amqp, [group], seconds=within_s)
        await amqp.send(group, request, to=to)
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await ended.wait()
    if refusals:
        raise refusals[0]
    return answers, beats


WATCH_S = 15.0
WATCH_EVERY_S = 5.0
"""Seconds for which members report their activity, and between two requests for it: members that join report soon."""


async def watch_activity(amqp: AmqpAdmin, group: str, on_activity: Callable[[Activity], None]) -> NoReturn:
    """Has the members of a group report their activity until this is cancelled; they count keys meanwhile. Raises
    AdminError, also when the connection is lost."""

    def on_deliveries(deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            with suppress(MessageError):
                if isinstance(message := decode(delivery.body), Activity):
                    on_activity(message)

    names = Names(group)
    queue = await amqp.own_queue(of_members_of=group)
    async with amqp.link.channel(within_s=None) as channel:
        await channel.consume(queue, on_deliveries, no_ack=True)
        for error in (await amqp.bind_own(queue, [names.members], keys=(ACTIVITY,))).values():
            raise error
        while channel.is_open:
            await amqp.send(group, Watch(ADMINISTRATOR, WATCH_S))
            await asyncio.sleep(WATCH_EVERY_S)
    raise Unreachable("the channel was closed")


async def oldest_waiting_us(admin: LiveAdmin, queues: Iterable[str]) -> int | None:
    """Publishing time of the oldest first message of these queues that waits at the broker; None where none waits, and
    where the broker does not show them: RabbitMQ does not. Raises AdminError."""
    if (await admin.amqp.engine()).is_rabbitmq:
        return None
    heads = [message for name in queues for message in await admin.head_of(name, 1, 1) or ()]
    published = (message["properties"].get("headers", {}).get(HEADER_TS) for message in heads)
    return min((one for one in published if isinstance(one, int)), default=None)


async def _at_broker(
    admin: LiveAdmin, observed: Snapshot, spec: GroupSpec, wanted: Wanted, *, limit: int, body_bytes: int
) -> tuple[list[PeekedMessage], dict[str, int | Unknown]]:
    """Messages that the broker shows, and how many more each queue has."""
    names = Names(spec.name)
    messages: list[PeekedMessage] = []
    unread: dict[str, int | Unknown] = {}
    for name, status in observed.queues.items():
        number = names.number_of(name)
        if status is None or not names.is_served(name):
            continue
        if number is not None and wanted.queue not in (None, number):
            continue
        count = limit if wanted.id is None else READ_MAX
        shown = () if observed.engine.is_rabbitmq else await admin.head_of(name, count, body_bytes) or ()
        messages += filter(wanted.__contains__, (waiting_message(fields, spec) for fields in shown))
        ready = UNKNOWN if status is UNKNOWN else status.ready
        if ready is UNKNOWN:
            unread[name] = UNKNOWN
        elif ready > len(shown):
            unread[name] = ready - len(shown)
    return messages, unread


def _count(spec: GroupSpec) -> int:
    return 1 if spec.mode in UNCOUNTED_MODES else spec.queue_count


def waiting_message(fields: Mapping[str, Any], spec: GroupSpec) -> PeekedMessage:
    """A message that waits, as the embedded broker shows it."""
    properties = fields["properties"]
    headers, routing_key = properties.get("headers", {}), str(fields["routing_key"])
    hash_ = hash_in(routing_key)
    publisher, seq = headers.get(HEADER_PUBLISHER), headers.get(HEADER_SEQ)
    is_text = fields["payload_encoding"] == "string"
    return PeekedMessage(
        id=str(properties.get("message_id", "-"))
        if None in (publisher, seq)
        else f"{publisher}-{hash_}-{seq}",
        key=key_of(headers),
        queue=0 if spec.mode in UNCOUNTED_MODES or hash_ is None else queue_of(hash_, spec.queue_count),
        state=HeldState.READY,
        attempts=0,
        reason="",
        redelivered=bool(fields["redelivered"]),
        published_at_us=at if isinstance(at := headers.get(HEADER_TS), int) else 0,
        routing_key=routing_key,
        content_type=properties.get("content_type"),
        body=fields["payload"] if is_text else None,
        body_base64=None if is_text else fields["payload"],
        body_bytes=int(fields["payload_bytes"]),
        identity=(publisher, hash_, seq)
        if isinstance(publisher, str) and isinstance(seq, int) and hash_ is not None
        else None,
    )


def unread_lines(result: PeekResult) -> Iterator[str]:
    """Lines about messages that could not be shown, with the reason."""
    for queue, count in result.unread.items():
        if count is UNKNOWN:
            yield f"what waits in {queue} could not be read"
        elif result.is_rabbitmq:
            yield (
                f"{counted(count, 'message waits', 'messages wait')} in {queue}: RabbitMQ refuses to show messages "
                "of a queue with a single active consumer; only those that a member holds are shown"
            )
        else:
            yield (
                f"{counted(count, 'more message waits', 'more messages wait')} in {queue}: the broker shows the "
                "first ones only, and to administrators only"
            )
    for name in result.silent:
        yield f"member {name} did not answer: it is busy"
