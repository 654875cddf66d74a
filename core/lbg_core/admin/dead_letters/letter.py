"""A dead letter: headers, selection, and its message when it is published again. No I/O.

DeadLetterError
└── ReplayStopped    a message could not be published: it and all after it stay in their queue

What is neither replayed nor discarded stays unacknowledged until the end, or it would come again; so a consumer that
passes letters over fills up, and a further one goes on behind it. A window is such a consumer with its prefetch count.
"""

from __future__ import annotations

import base64
import secrets
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from lbg_core.client import BasicProperties, Delivery
from lbg_core.client.republication import FRAME_MAX_BYTES, copied_properties, leaves_room
from lbg_core.group import (
    HEADER_ATTEMPTS,
    HEADER_FINISHED_AT,
    HEADER_INCARNATION,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_ORIGINAL_PUBLISHER,
    HEADER_ORIGINAL_SEQ,
    HEADER_PUBLISHER,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_SEQ,
    HEADER_STARTED_AT,
    HEADER_TS,
    IDENTITY_BYTES,
    GroupSpec,
    hash_in,
    key_in,
)


class DeadLetterError(Exception):
    """Base of every error of this package; `str()` is one line: the error, its place and the action to take."""


class ReplayStopped(DeadLetterError):
    def __init__(self, letter: str, why: str) -> None:
        super().__init__(
            f"{letter} was not replayed: {why}; it stays where it is, and so does what comes after it"
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter, or an unrouted message. None: not in the message. `id` is the one in applications and logs of
    members, or the message-id of a message without a stamp."""

    id: str | None
    key: str | None
    reason: str
    attempts: int | None
    queue: int | None
    member: int | None
    member_name: str | None
    published_at_us: int | None
    routing_key: str
    identity: tuple[str, int, int] | None = None
    """Publisher, hash and sequence number; None without a stamp."""

    @classmethod
    def of(cls, delivery: Delivery) -> DeadLetter:
        headers = delivery.headers
        publisher, seq = _text(headers.get(HEADER_PUBLISHER)), _number(headers.get(HEADER_SEQ))
        hash_ = hash_in(delivery.routing_key)
        identity = None if publisher is None or hash_ is None or seq is None else (publisher, hash_, seq)
        return cls(
            id=_text(delivery.properties.message_id) if identity is None else "-".join(map(str, identity)),
            key=key_in(delivery.header),
            reason=_text(headers.get(HEADER_REASON)) or "",
            attempts=_number(headers.get(HEADER_ATTEMPTS)),
            queue=_number(headers.get(HEADER_QUEUE)),
            member=_number(headers.get(HEADER_MEMBER)),
            member_name=_text(headers.get(HEADER_MEMBER_NAME)),
            published_at_us=_number(headers.get(HEADER_TS)),
            routing_key=delivery.routing_key,
            identity=identity,
        )

    def age_s(self, now_us: int) -> float | None:
        """Age since it was published; None without that time."""
        return None if self.published_at_us is None else max(0, now_us - self.published_at_us) / 1e6

    def to_json(self, now_us: int) -> dict[str, Any]:
        document = asdict(self)
        del document["published_at_us"], document["identity"]
        return document | {"age_s": self.age_s(now_us)}

    def __str__(self) -> str:
        return f"message {self.id}" if self.id else f"a message of routing key {self.routing_key!r}"

    def is_routable(self, spec: GroupSpec) -> bool:
        """True if a queue of the group takes its routing key, once the group is whole."""
        hash_ = hash_in(self.routing_key)
        is_of_group = self.routing_key.partition(".")[0] == spec.hash_prefix
        return is_of_group and hash_ is not None and hash_ < spec.hash_count


def saved_json(letter: DeadLetter, delivery: Delivery, now_us: int) -> dict[str, Any]:
    """All of a dead letter: with its headers and its body, as text where it is UTF-8 and else in base64."""
    body = bytes(delivery.body)
    try:
        content = {"body": body.decode()}
    except UnicodeDecodeError:
        content = {"body_base64": base64.b64encode(body).decode()}
    content_type = delivery.properties.content_type
    return {
        **letter.to_json(now_us),
        "headers": delivery.headers,
        "content_type": content_type,
        **content,
    }


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of dead letters: all that is given must hold, and nothing given selects everything. `reason` is a
    part of the reason's text."""

    ids: frozenset[str] = frozenset()
    key: str | None = None
    reason: str | None = None

    @property
    def is_everything(self) -> bool:
        return self == Selection()

    def __contains__(self, letter: object) -> bool:
        return (
            isinstance(letter, DeadLetter)
            and (not self.ids or letter.id in self.ids)
            and (self.key is None or letter.key == self.key)
            and (self.reason is None or self.reason in letter.reason)
        )


OF_DEAD_LETTERS = (
    HEADER_REASON,
    HEADER_ATTEMPTS,
    HEADER_QUEUE,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_INCARNATION,
    HEADER_STARTED_AT,
    HEADER_FINISHED_AT,
)


class LetterStamper:
    """A publisher of its own for one replay, with sequences from 0 per hash.

    For members a dead letter is processed: under the identity it had it would be dropped as a repeat. One whose headers
    leave no room for a new identity has none any more.
    """

    def __init__(
        self, spec: GroupSpec, publisher: str | None = None, *, frame_max_bytes: int = FRAME_MAX_BYTES
    ) -> None:
        self._frame_max_bytes = frame_max_bytes
        self.publisher = publisher or f"dead-{secrets.token_hex(IDENTITY_BYTES)}"
        self._spec = spec
        self._next_seq: Counter[int] = Counter()

    def properties(self, letter: DeadLetter, delivery: Delivery) -> BasicProperties:
        """Raises ReplayStopped for a routing key that no binding of the group takes.

        The broker would confirm it, for the group's alternate exchange takes what no queue takes.
        """
        hash_ = hash_in(letter.routing_key)
        if hash_ is None or not letter.is_routable(self._spec):
            why = f"no queue of group {self._spec.name} takes its routing key {letter.routing_key!r}"
            raise ReplayStopped(str(letter), why)
        properties = copied_properties(delivery, without=OF_DEAD_LETTERS)
        headers = dict(properties.headers or {})
        is_stamped = HEADER_PUBLISHER in headers and HEADER_SEQ in headers
        if is_stamped and not leaves_room(properties, self._frame_max_bytes):
            for name in (HEADER_PUBLISHER, HEADER_SEQ, HEADER_ORIGINAL_PUBLISHER, HEADER_ORIGINAL_SEQ):
                headers.pop(name, None)
            properties.message_id = None
        elif is_stamped:
            headers.setdefault(HEADER_ORIGINAL_PUBLISHER, headers[HEADER_PUBLISHER])
            headers.setdefault(HEADER_ORIGINAL_SEQ, headers[HEADER_SEQ])
            seq = self._next_seq[hash_]
            self._next_seq[hash_] += 1
            headers |= {HEADER_PUBLISHER: self.publisher, HEADER_SEQ: seq}
            properties.message_id = f"{self.publisher}-{hash_}-{seq}"
        properties.headers = headers
        properties.delivery_mode = 2
        return properties


PAGE_MESSAGES = 64

FIRST_MESSAGES = 256
"""Under way when all of them are acknowledged."""

LARGEST_MESSAGES = 65_535
"""A prefetch count has 16 bits (AMQP 0-9-1, basic.qos), and none at all means 2,000 to a quorum queue."""

UNACKED_MAX_BYTES = 128 * 1024 * 1024
"""Of bodies in one window, if none is larger than the largest so far. Only a window's letters can be in memory."""


class ReadWindow:
    """Doubling, so that memory is used where many letters are passed over, and there are few consumers: for up to 32 of
    them RabbitMQ returns unacknowledged messages in order (a map of Erlang is sorted up to 32 keys)."""

    def __init__(self) -> None:
        self.opened = 0
        self._size = 0
        self._largest_bytes = 1
        self._unacked = 0

    def open(self) -> int:
        """The size of a further window; what came before belongs to none any more."""
        fits = max(PAGE_MESSAGES, UNACKED_MAX_BYTES // self._largest_bytes)
        self._size = min(max(FIRST_MESSAGES, 2 * self._size), LARGEST_MESSAGES, fits)
        self._unacked = 0
        self.opened += 1
        return self._size

    def received(self, size_bytes: int) -> None:
        self._unacked += 1
        self._largest_bytes = max(self._largest_bytes, size_bytes)

    def acked(self) -> None:
        """One that came since the window was opened."""
        self._unacked -= 1

    @property
    def is_crowded(self) -> bool:
        """True if less than a page fits into the window, once everything received was handled."""
        return self._size - self._unacked < PAGE_MESSAGES
