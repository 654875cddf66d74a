"""A republished message, read from its headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from lbg_core.group import (
    HEADER_DELIVERED_AT,
    HEADER_FINISHED_AT,
    HEADER_HASH,
    HEADER_INCARNATION,
    HEADER_MEMBER,
    HEADER_MEMBER_NAME,
    HEADER_PUBLISHER,
    HEADER_QUEUE,
    HEADER_REDELIVERED,
    HEADER_RELEASED,
    HEADER_SEQ,
    HEADER_SESSION,
    HEADER_SESSION_SEQ,
    HEADER_STARTED_AT,
    HEADER_TS,
    key_of,
)


class NotRepublished(ValueError):
    """A message without a valid set of the headers that a republishing member adds; the text names one."""


@dataclass(frozen=True, slots=True)
class Republished:
    """Stamp of a republished message; times are microseconds since the epoch.

    `started_at_us` to `finished_at_us` is the time in which the application had it, over all attempts; both None where
    it never had it. `is_released`: the message has these times alone, and is delivered again.
    """

    publisher: str
    key: str | None
    hash_: int
    seq: int
    queue: int
    member: int
    member_name: str
    redelivered: bool
    delivered_at_us: int
    published_at_us: int | None
    is_dead_letter: bool = False
    session: str | None = None
    sequence: int | None = None
    incarnation: str = ""
    started_at_us: int | None = None
    finished_at_us: int | None = None
    is_released: bool = False

    @classmethod
    def of_dead_letter(cls, headers: Mapping[str, Any], routing_key: str, now_us: int) -> Republished:
        """From a message that the application refused; raises NotRepublished. It was delivered as well."""
        _, _, rest = routing_key.partition(".")
        hash_ = rest.partition(".")[0]
        if not hash_.isdecimal():
            raise NotRepublished(f"routing key {routing_key!r} holds no hash")
        stamped = {HEADER_DELIVERED_AT: now_us, **headers, HEADER_HASH: int(hash_)}
        return replace(cls.parse(stamped), is_dead_letter=True)

    @classmethod
    def parse(cls, headers: Mapping[str, Any]) -> Republished:
        """From a message's headers; raises NotRepublished."""
        stamped = headers.get(HEADER_TS)
        started, finished = headers.get(HEADER_STARTED_AT), headers.get(HEADER_FINISHED_AT)
        session, sequence = headers.get(HEADER_SESSION), headers.get(HEADER_SESSION_SEQ)
        return cls(
            publisher=_text(headers, HEADER_PUBLISHER),
            key=key_of(headers),
            hash_=_number(headers, HEADER_HASH),
            seq=_number(headers, HEADER_SEQ),
            queue=_number(headers, HEADER_QUEUE),
            member=_number(headers, HEADER_MEMBER),
            member_name=str(headers.get(HEADER_MEMBER_NAME) or headers.get(HEADER_MEMBER)),
            redelivered=bool(headers.get(HEADER_REDELIVERED)),
            delivered_at_us=_number(headers, HEADER_DELIVERED_AT),
            published_at_us=stamped if isinstance(stamped, int) else None,
            session=session if isinstance(session, str) else None,
            sequence=sequence if isinstance(sequence, int) else None,
            incarnation=str(headers.get(HEADER_INCARNATION) or ""),
            started_at_us=started if isinstance(started, int) else None,
            finished_at_us=finished if isinstance(finished, int) else None,
            is_released=bool(headers.get(HEADER_RELEASED)),
        )


def _text(headers: Mapping[str, Any], name: str) -> str:
    value = headers.get(name)
    if not isinstance(value, str):
        raise NotRepublished(f"header {name} is {'missing' if value is None else 'not text'}")
    return value


def _number(headers: Mapping[str, Any], name: str) -> int:
    value = headers.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise NotRepublished(f"header {name} is {'missing' if value is None else 'not a number'}")
    return value
