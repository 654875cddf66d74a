"""A dead letter as its headers tell of it. No I/O here."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

from lbg_broker.client import Delivery
from lbg_broker.group import (
    HEADER_ATTEMPTS,
    HEADER_KEY,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_PUBLISHER,
    HEADER_QUEUE,
    HEADER_REASON,
    HEADER_SEQ,
    HEADER_TS,
)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """None: the message does not say so. `id` is the one that its members' applications and logs have seen, or the
    message-id of a message that no publisher of ours has stamped."""

    id: str | None
    key: str | None
    reason: str
    attempts: int | None
    queue: int | None
    member: int | None
    member_name: str | None
    published_at_us: int | None
    routing_key: str

    @classmethod
    def of(cls, delivery: Delivery) -> DeadLetter:
        headers = delivery.headers
        publisher, seq = _text(headers.get(HEADER_PUBLISHER)), _number(headers.get(HEADER_SEQ))
        hash_ = hash_in(delivery.routing_key)
        stamped = None not in (publisher, seq, hash_)
        return cls(
            id=f"{publisher}-{hash_}-{seq}" if stamped else _text(delivery.properties.message_id),
            key=_text(headers.get(HEADER_KEY)),
            reason=_text(headers.get(HEADER_REASON)) or "",
            attempts=_number(headers.get(HEADER_ATTEMPTS)),
            queue=_number(headers.get(HEADER_QUEUE)),
            member=_number(headers.get(HEADER_MEMBER)),
            member_name=_text(headers.get(HEADER_MEMBER_NAME)),
            published_at_us=_number(headers.get(HEADER_TS)),
            routing_key=delivery.routing_key,
        )

    def age_s(self, now_us: int) -> float | None:
        """Since it was published; None when it does not say when."""
        return None if self.published_at_us is None else max(0, now_us - self.published_at_us) / 1e6

    def to_json(self, now_us: int) -> dict[str, Any]:
        return {
            "id": self.id,
            "key": self.key,
            "reason": self.reason,
            "attempts": self.attempts,
            "queue": self.queue,
            "member": self.member,
            "member_name": self.member_name,
            "age_s": self.age_s(now_us),
            "routing_key": self.routing_key,
        }

    def __str__(self) -> str:
        return f"dead letter {self.id}" if self.id else f"a dead letter of routing key {self.routing_key!r}"


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


def hash_in(routing_key: str) -> int | None:
    """The hash of `{prefix}.{hash}.{topic}`; None when there is none."""
    _, _, rest = routing_key.partition(".")
    hash_ = rest.partition(".")[0]
    return int(hash_) if hash_.isascii() and hash_.isdecimal() else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
