"""A message as the application receives it, its stamp and trace context, and the application's verdict.

Publishers put them into AMQP headers of the same names, as OpenTelemetry's instrumentations do. An event may also have
`traceparent` and `tracestate` as attributes of its own (CloudEvents, distributed tracing extension): these are of its
source, the headers of its last sender.

Decoding a table of headers is a third of what a member spends on a message (bench: 20,000 messages of 256 bytes).
Our publisher writes its four first and always in the same order (`HeaderEncoder`), so they are read at
their known offsets; any other table is decoded in full.
"""

from __future__ import annotations

import base64
import enum
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from struct import error as _StructError
from typing import Any, Literal, TypeAlias

from lbg_core.client import BodyExcerpt, Delivery
from lbg_core.group import (
    HEADER_FENCE,
    HEADER_KEY,
    HEADER_PARKED_COPY,
    HEADER_PUBLISHER,
    HEADER_ROUTING_KEY,
    HEADER_SEQ,
    HEADER_SESSION_END,
    HEADER_SESSION_EPOCH,
    HEADER_SESSION_SEQ,
    HEADER_TS,
    key_in,
)
from lbg_core.group.held_messages import Ending, Handled, HeldState, PeekedMessage
from lbg_core.group.member_state import YEAR_9999_US
from lbg_core.group.sequences import MessageIdentity
from lbg_core.tracing import CallSpan
from lbg_sidecar.core.delivery import Attachment, InFlight, Outcome
from lbg_sidecar.core.finished import Found


class Kind(enum.StrEnum):
    """The three answers of an application, and one that stands for none."""

    ACK = "ack"
    RETRY = "retry"
    DROP = "drop"
    INTERRUPTED = "interrupted"  # ours, never the application's: the call was aborted and gave no verdict


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer; made by `ACK`, `retry` and `drop`. `reason` is for people: in the log, in the state, and, of a drop,
    in header `lbg-reason`. `after_s` (of a retry): seconds to wait at least, a day at most; None leaves it to the
    backoff. `is_unreadable`: the application's reply is none, so it counts as a retry. `is_of_group` (of a retry): no
    call of the group can succeed now."""

    kind: Kind
    reason: str = ""
    after_s: float | None = None
    is_unreadable: bool = False
    is_of_group: bool = False

    def __post_init__(self) -> None:
        """Raises TypeError and ValueError in the handler that makes it."""
        if not isinstance(self.reason, str):
            raise TypeError(f"reason is {self.reason!r}, not text")
        if self.after_s is not None and math.isnan(self.after_s):
            raise ValueError("after_s is not a number")
        # A surrogate, as of a file's name in an error or in an application's JSON, can be in no header and no terminal.
        if not self.reason.isascii():
            object.__setattr__(self, "reason", self.reason.encode(errors="backslashreplace").decode())


ACK = Verdict(Kind.ACK)
"""Processed: it is acknowledged to the broker and never delivered again. None from a handler means the same."""

INTERRUPTED = Verdict(Kind.INTERRUPTED)


def interrupted(reason: str, after_s: float) -> Verdict:
    """The application did not get the message: it counts as no attempt."""
    return Verdict(Kind.INTERRUPTED, reason, after_s)


def retry(
    reason: str = "", *, after_s: float | None = None, scope: Literal["message", "group"] = "message"
) -> Verdict:
    """Delivers the message again later; its lane waits, so nothing of its key overtakes it. It counts as an attempt.

    With scope `group` no call of the group can succeed, because what the application depends on is down::

        except DatabaseDown as error:
            return retry(str(error), scope="group")

    Then no member starts a call, and no attempt is counted. After `after_s`, by default 1 s and up to 30 s, one message
    is tried; when that succeeds, calls are let through again, at first a few. Raises ValueError for another scope.
    """
    return Verdict(Kind.RETRY, reason, after_s, is_of_group=is_of_group(scope))


def is_of_group(scope: object) -> bool:
    """Raises ValueError unless it is a scope."""
    if scope not in (None, "message", "group"):
        raise ValueError(f"the scope is {scope!r:.80}, not message or group")
    return scope == "group"


def unreadable(reason: str, *, after_s: float | None = None) -> Verdict:
    """A reply that is no verdict. It is retried, as an acknowledgement cannot be revoked, and reported as a problem."""
    return Verdict(Kind.RETRY, reason, after_s, is_unreadable=True)


AFTER_MAX_S = 86_400
"""Longest wait that an application can ask for: a date that it got wrong must not block a key for years."""

PROGRESS_MAX_CHARS = 200


def checked_seconds(seconds: object) -> float:
    """Seconds for which a call may be extended. Raises ValueError."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= AFTER_MAX_S:
        raise ValueError(f"the seconds are {seconds!r:.80}, not a number above 0 and up to {AFTER_MAX_S}")
    return seconds


_WORDS = {"ack": Kind.ACK, "ok": Kind.ACK, "success": Kind.ACK, "retry": Kind.RETRY, "drop": Kind.DROP}
VERDICT_RULE = "must be ack (or ok, success), retry or drop"


def kind_of(word: object) -> Kind | None:
    """The answer that a word of an application stands for, in any case of letters; None for another word."""
    return _WORDS.get(word.lower()) if isinstance(word, str) else None


def drop(reason: str) -> Verdict:
    """Refuses the message for good: it goes to the group's dead letters with this reason."""
    return Verdict(Kind.DROP, reason)


def verdict_of(answer: object) -> Verdict:
    """The verdict that a handler returned, whatever that is."""
    if answer is None:
        return ACK
    if isinstance(answer, Verdict) and answer.kind is not Kind.INTERRUPTED:
        return answer
    return retry(f"the handler returned {type(answer).__name__}, which is not a verdict")


PARENT, STATE, BAGGAGE = NAMES = ("traceparent", "tracestate", "baggage")

AMQP_PREFIXES = ("cloudEvents:", "cloudEvents_")  # CloudEvents AMQP binding 1.0.2, section 3.1.3.1

VALUE_MAX_CHARS = 8192
"""W3C Baggage, section 3.3.2: so much must be passed on. More would only make servers refuse the request."""


def trace_in(headers: Mapping[str, Any]) -> dict[str, str]:
    """Parts of a trace context that can be headers; a state without its parent is dropped."""
    trace: dict[str, str] = {name: headers[name] for name in NAMES if _is_usable(headers.get(name))}
    if PARENT not in trace:
        trace.pop(STATE, None)
    return trace


def trace_of(headers: Mapping[str, Any]) -> dict[str, str]:
    """Trace context of a message's AMQP headers; without a parent there, that of the event itself."""
    sent = trace_in(headers)
    if PARENT in sent:
        return sent
    for prefix in AMQP_PREFIXES:
        if prefix + PARENT in headers:
            return trace_in({name: headers.get(prefix + name) for name in (PARENT, STATE)}) | sent
    return sent


def _is_usable(value: object) -> bool:
    return (
        isinstance(value, str)
        and 0 < len(value) <= VALUE_MAX_CHARS
        and value.isascii()
        and value.isprintable()
    )


# AMQP 0-9-1, section 4.2.6.1: which properties there are; ours are in this order.
_CONTENT_TYPE, _CONTENT_ENCODING, _HEADERS = 0x80, 0x40, 0x20
_LONG = Struct(">I").unpack_from


def _name(field: str, kind: bytes) -> bytes:
    return bytes([len(field)]) + field.encode() + kind


_KEY = _name(HEADER_KEY, b"S")
_PUBLISHER = _name(HEADER_PUBLISHER, b"S")
_SEQ = _name(HEADER_SEQ, b"l")
_TS = _name(HEADER_TS, b"l")
_SESSION_SEQ = _name(HEADER_SESSION_SEQ, b"l")
_SESSION_EPOCH = _name(HEADER_SESSION_EPOCH, b"S")
_SESSION_END = HEADER_SESSION_END.encode()
_LONG_LONG = Struct(">q").unpack_from
_SEQ_AND_TS = Struct(f">q{len(_TS)}sq").unpack_from
_SEQ_AND_TS_BYTES = 8 + len(_TS) + 8

Stamp: TypeAlias = tuple[str | None, str | None, int | None, int | None]
"""Key, publisher, sequence number, microseconds at which it was published; None where the publisher set none."""


def stamp_of(delivery: Delivery) -> tuple[Stamp, bool]:
    """The stamp, with True if its headers are all that there are."""
    return quick_stamp(delivery.header) or (full_stamp(delivery), False)


def quick_stamp(header: bytes) -> tuple[Stamp, bool] | None:
    """From encoded properties in the layout of our publisher, with True if no other header follows; None if it is
    another layout."""
    try:
        flags = header[0]
        if flags & (_CONTENT_ENCODING | _HEADERS) != _HEADERS:
            return None
        at = 2
        if flags & _CONTENT_TYPE:
            at += 1 + header[at]
        table_end = at + 4 + _LONG(header, at)[0]
        at += 4
        key = None
        if header.startswith(_KEY, at):
            at += len(_KEY)
            end = at + 4 + _LONG(header, at)[0]
            key = header[at + 4 : end].decode()
            if not key:
                return None
            at = end
        if not header.startswith(_PUBLISHER, at):
            return None
        at += len(_PUBLISHER)
        end = at + 4 + _LONG(header, at)[0]
        publisher = header[at + 4 : end].decode()
        if not header.startswith(_SEQ, end):
            return None
        at = end + len(_SEQ)
        seq, name, published_at_us = _SEQ_AND_TS(header, at)
        at += _SEQ_AND_TS_BYTES
        if name != _TS or at > table_end:
            return None
        if key is None and at < table_end:
            key = key_in(header)  # one of the headers behind the stamp may have it
        return (key, publisher, seq, published_at_us), at == table_end
    except (IndexError, ValueError, _StructError):
        return None


def session_stamp_of(delivery: Delivery) -> tuple[int | None, bool]:
    """Its number in its session, and whether it is the End-of-Session. The broker puts the number last."""
    header = delivery.header
    sequence: int | None = None
    if not header[0] & _CONTENT_ENCODING:
        at = 3 + header[2] if header[0] & _CONTENT_TYPE else 2
        number_at = at + 4 + _LONG(header, at)[0] - 8
        if header.startswith(_SESSION_SEQ, number_at - len(_SESSION_SEQ)):
            (sequence,) = _LONG_LONG(header, number_at)
    if sequence is None:
        value = delivery.headers.get(HEADER_SESSION_SEQ)
        sequence = value if isinstance(value, int) else None
    ends = _SESSION_END in header and delivery.headers.get(HEADER_SESSION_END) is True
    return sequence, ends


def session_epoch_of(delivery: Delivery) -> str | None:
    """The epoch of a session number. The broker puts it right before the number."""
    header = delivery.header
    end = header.rfind(_SESSION_SEQ)
    at = header.rfind(_SESSION_EPOCH, 0, end) + len(_SESSION_EPOCH)
    if end >= 0 and at >= len(_SESSION_EPOCH) and at + 4 + _LONG(header, at)[0] == end:
        return header[at + 4 : end].decode()
    epoch = delivery.headers.get(HEADER_SESSION_EPOCH) if HEADER_SESSION_EPOCH.encode() in header else None
    return epoch if isinstance(epoch, str) else None


def content_type_of(header: bytes) -> str | None:
    """From encoded properties: the content type is the first of them. A byte that is no UTF-8 becomes `\\xNN`."""
    if not header[0] & _CONTENT_TYPE:
        return None
    return header[3 : 3 + header[2]].decode(errors="backslashreplace")


def _unicode(text: str) -> str:
    """Text of the wire without surrogates, which no HTTP header can have: as `content_type_of`."""
    return text if text.isascii() else text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def full_stamp(delivery: Delivery) -> Stamp:
    headers = delivery.headers
    publisher = headers.get(HEADER_PUBLISHER)
    seq, at_us = headers.get(HEADER_SEQ), headers.get(HEADER_TS)
    return (
        key_in(delivery.header),
        publisher if isinstance(publisher, str) else None,
        seq if isinstance(seq, int) else None,
        at_us if isinstance(at_us, int) else None,
    )


Extender: TypeAlias = Callable[[InFlight, float, str | None], float]


class Message:
    """One message, as a handler receives it. Its headers are decoded when they are read."""

    __slots__ = ("extender", "group", "in_flight", "span")

    def __init__(self, in_flight: InFlight, group: str) -> None:
        self.in_flight = in_flight
        self.group = group
        """Its group's name."""
        self.span: CallSpan | None = None
        """Of its call, where calls are traced."""
        self.extender: Extender | None = None
        """Set while a member calls the application with it."""

    def extend(self, seconds: float, progress: str | None = None) -> float:
        """Asks for so many seconds from now on for this call, in place of what is left of `call_timeout_s`::

            for number, part in enumerate(parts):
                message.extend(60, f"{number} of {len(parts)} parts")
                await load(part)

        Returns the seconds that the call has left. It never gets fewer than it had, and it ends at half of
        `consumer_timeout_s` after the delivery (15 minutes by default), so that the broker takes no message back from a
        member that works. 0: the call does not count any more, because its time is over or another member has the
        message. `progress` is shown with the call (`lbg top`, `lbg group key`), up to 200 characters. A handler in a
        thread calls it likewise. Raises ValueError unless 0 < seconds <= 86400.
        """
        seconds = checked_seconds(seconds)
        if progress is not None:
            progress = " ".join(str(progress).encode(errors="backslashreplace").decode().split())[
                :PROGRESS_MAX_CHARS
            ]
        return 0.0 if self.extender is None else self.extender(self.in_flight, seconds, progress)

    @property
    def id(self) -> str:
        """The same for every delivery of the same message: publisher, hash and sequence."""
        return self.in_flight.id_in(self.group)

    @property
    def queue(self) -> int:
        """Its queue's or partition's number, from 0: `hash` mod the group's queue count."""
        return self.in_flight.queue

    @property
    def key(self) -> str | None:
        """Within it messages are in order: `lbg-key`, or the first other header that has a key, as text
        (docs/publishing.md, "Keys"). None: it has no key, and no order."""
        return self.in_flight.key

    @property
    def publisher(self) -> str | None:
        """Header `lbg-publisher`: name and incarnation of who published it; None for one that is not ours."""
        return self.in_flight.identity[0] if self.in_flight.identity else None

    @property
    def hash(self) -> int | None:
        """The key's, from the routing key; None without an identity, that is of a publisher that is not ours."""
        return self.in_flight.identity[1] if self.in_flight.identity else None

    @property
    def seq(self) -> int | None:
        """Header `lbg-seq`: from 0, of this publisher and hash ("Achieving Exactly-Once Message Delivery Guarantees
        with Sequence Numbers"); None without an identity."""
        return self.in_flight.identity[2] if self.in_flight.identity else None

    @property
    def session(self) -> str | None:
        """The session that it belongs to, for ever; None in other modes."""
        return self.in_flight.attachment.session

    @property
    def sequence(self) -> int | None:
        """Its number in that session, from 1 without gaps: what an application commits with its own writes."""
        return self.in_flight.sequence

    @property
    def session_epoch(self) -> str | None:
        """The epoch of that number: a broker that is restored from a backup assigns the number to another message, in
        another epoch. To be committed with the number."""
        return self.in_flight.epoch

    @property
    def topic(self) -> str:
        """Rest of the routing key, after prefix and hash."""
        _, _, rest = str(self.delivery.routing_key).partition(".")
        return _unicode(rest.partition(".")[2])

    @property
    def attempt(self) -> int:
        """The number of this call, from 1; over handoffs, as far as former members reported."""
        return self.in_flight.attempts

    @property
    def redelivered(self) -> bool:
        """True if the broker delivered it before, to a consumer that may not have processed it."""
        return self.delivery.redelivered

    @property
    def data(self) -> bytes:
        """The body."""
        return bytes(self.delivery.body)

    @property
    def headers(self) -> dict[str, Any]:
        """A copy of all of them (AMQP 0-9-1, section 4.2.5.5: field tables), ours among them."""
        return dict(self.delivery.headers)

    @property
    def trace(self) -> dict[str, str]:
        """Trace context for the application, as W3C headers: that of the call's span where it is traced, else that of
        the message; and the message's baggage."""
        sent = trace_of(self.delivery.headers)
        return sent if self.span is None else {**sent, **self.span.headers}

    @property
    def content_type(self) -> str | None:
        """As its publisher set it; None if it did not."""
        return content_type_of(self.in_flight.delivery.header)

    @property
    def delivery(self) -> Delivery:
        """As it came from the broker."""
        delivery: Delivery = self.in_flight.delivery
        return delivery

    def __repr__(self) -> str:
        return f"<Message {self.id} key={self.key!r} queue={self.queue} attempt={self.attempt}>"

    def as_json(self) -> dict[str, Any]:
        """For a command and the stream: `data` when the body is text, else `data_base64`; `traceparent`, `tracestate`
        and `baggage` where the publisher sent them."""
        headers = self.delivery.headers
        fields: dict[str, Any] = {
            "id": self.id,
            "group": self.group,
            "queue": self.queue,
            "hash": self.hash,
            "key": self.key,
            "publisher": self.publisher,
            "seq": self.seq,
            "topic": self.topic,
            "attempt": self.attempt,
            "redelivered": self.redelivered,
            "headers": {_unicode(name): _plain(value) for name, value in headers.items()},
            **self.trace,
        }
        if self.sequence is not None:
            fields |= {"session": self.session, "sequence": self.sequence, "epoch": self.session_epoch}
        try:
            fields["data"] = self.data.decode()
        except UnicodeDecodeError:
            fields["data_base64"] = base64.b64encode(self.data).decode()
        return fields


def in_flight_of(attachment: Attachment, delivery: Delivery, prefix: str) -> InFlight:
    """A delivery with what lanes and positions need of it. One that no publisher of ours stamped has no identity."""
    (key, publisher, seq, published_at_us), is_only_stamped = stamp_of(delivery)
    identity: MessageIdentity | None = None
    hash_ = _hash_in(delivery.routing_key, prefix)
    if hash_ is not None and publisher is not None and seq is not None and seq >= 0:
        identity = (publisher, hash_, seq)
    in_flight = InFlight(attachment, delivery.delivery_tag, key=key, identity=identity, delivery=delivery)
    in_flight.hash_ = hash_
    in_flight.is_only_stamped = is_only_stamped
    if delivery.exchange == "":
        in_flight.fence = _fence_of(delivery)
    in_flight.published_at_us = min(max(0, published_at_us or 0), YEAR_9999_US)
    in_flight.redelivered = delivery.redelivered
    in_flight.size = len(delivery.body)
    if attachment.session is not None:
        in_flight.sequence, in_flight.ends_session = session_stamp_of(delivery)
        in_flight.epoch = session_epoch_of(delivery)
    return in_flight


def _fence_of(delivery: Delivery) -> str | None:
    fence = delivery.headers.get(HEADER_FENCE)
    return fence if isinstance(fence, str) else None


def original_of(copy: Delivery, *, tag: int, redelivered: bool = False) -> Delivery:
    """The message of which a copy came over the members exchange, as if its queue had delivered it."""
    properties, headers = copy.properties, dict(copy.headers)
    routing_key = str(headers.pop(HEADER_ROUTING_KEY))
    headers.pop(HEADER_PARKED_COPY, None)
    properties.headers = headers
    original = Delivery.__new__(Delivery)
    original.channel, original.header, original.body = copy.channel, properties.encode(), copy.body
    original.consumer_tag, original.exchange, original.redelivered = (
        copy.consumer_tag,
        copy.exchange,
        redelivered,
    )
    original.delivery_tag, original.routing_key = tag, routing_key
    return original


def forwarded(delivery: Delivery) -> Delivery:
    """The message that another member forwarded to a queue, as it was published; another one as it is."""
    if HEADER_ROUTING_KEY not in delivery.headers:
        return delivery
    return original_of(delivery, tag=delivery.delivery_tag, redelivered=delivery.redelivered)


REASON_MAX_CHARS = 200


def held_message(
    in_flight: InFlight, state: HeldState, group: str, body_bytes: int, us: Callable[[float], int]
) -> PeekedMessage:
    """A message that a member holds, for an administrator. One whose body cannot be read has none. `us`: microseconds
    since the epoch of a time of the loop."""
    delivery: Delivery = in_flight.delivery
    body = None
    with suppress(OSError):
        body = BodyExcerpt.of(delivery.body, body_bytes).to_json()
    fields = body or {}
    reason = in_flight.reason
    if in_flight.is_called and in_flight.extended is not None:
        reason = in_flight.extended.progress or reason
    return PeekedMessage(
        id=in_flight.id_in(group),
        key=in_flight.key,
        queue=in_flight.queue,
        state=state,
        attempts=in_flight.attempts,
        reason=reason[:REASON_MAX_CHARS],
        redelivered=in_flight.redelivered,
        published_at_us=in_flight.published_at_us,
        routing_key=_unicode(delivery.routing_key),
        content_type=content_type_of(delivery.header),
        body=fields.get("body"),
        body_base64=fields.get("body_base64"),
        body_bytes=in_flight.size,
        identity=in_flight.identity,
        received_us=us(in_flight.received_at),
        first_call_us=0 if in_flight.first_started_at is None else us(in_flight.first_started_at),
        last_call_us=us(in_flight.started_at) if in_flight.calls else 0,
    )


_ENDINGS = {
    Outcome.ACK: Ending.FINISHED,
    Outcome.DEAD: Ending.DEAD,
    Outcome.REPEAT: Ending.REPEAT,
    Outcome.PARKED: Ending.PARKED,
    Outcome.FORWARDED: Ending.FORWARDED,
}


def handled_message(found: Found, us: Callable[[float], int]) -> Handled:
    """A message that a member was done with, for an administrator."""
    message, queue, done_at, settled = found
    publisher, hash_, seq = message.identity or (None, None, None)
    first_at = message.first_started_at
    ending = _ENDINGS.get(message.outcome or Outcome.RELEASED, Ending.RELEASED)
    if ending is Ending.FINISHED and not settled:
        ending = Ending.UNACKNOWLEDGED
    return Handled(
        publisher,
        hash_,
        seq,
        queue,
        message.published_at_us,
        us(message.received_at),
        0 if first_at is None else us(first_at),
        us(message.started_at) if first_at is not None else 0,
        0 if message.finished_at is None else us(message.finished_at),
        us(done_at),
        message.earlier + message.calls,
        ending,
        message.redelivered,
    )


@lru_cache(maxsize=4096)  # a stream repeats few routing keys: a hash and a topic
def _hash_in(routing_key: str, prefix: str) -> int | None:
    parts = routing_key.split(".", 2)
    if len(parts) < 2 or parts[0] != prefix or not parts[1].isdecimal():
        return None
    return int(parts[1])


def _plain(value: object) -> object:
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {_unicode(str(name)): _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)  # also of an infinite number, which JSON does not have
