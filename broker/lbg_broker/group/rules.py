"""The rules that a single attribute of a group keeps to; each raises SpecError with field, value and rule."""

from __future__ import annotations

import re

from .errors import SpecError

HASH_COUNT_MAX = 65_536
QUEUE_COUNT_MAX = 4_096
QUEUE_SIZE_MAX_MB = 6_000_000
PREFIX_MAX_BYTES = 128
USERNAME_MAX_BYTES = 255
DURATION_MAX_S = 3600

_WHOLE = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]{1,9}\.[0-9]{1,9}")


def number(value: object) -> object:
    """The number that text says; anything else as it is."""
    if not isinstance(value, str):
        return value
    if _WHOLE.fullmatch(value):
        return int(value)
    return float(value) if _DECIMAL.fullmatch(value) else value


def integer(field: str, value: object, maximum: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= maximum:
        raise SpecError(field, value, f"must be an integer from 1 to {maximum}")
    return value


def seconds(field: str, value: object) -> float:
    """To the millisecond, which is as fine as a queue's arguments say it."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= DURATION_MAX_S:
        raise SpecError(field, value, f"must be a number of seconds from 0 to {DURATION_MAX_S}")
    return round(float(value), 3)


def prefix(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise SpecError("hash_prefix", value, "must be text of at least one character")
    if any(mark in value for mark in ".#*"):
        raise SpecError("hash_prefix", value, "must not contain . # or *: it is one word of a topic")
    return _plain("hash_prefix", value, PREFIX_MAX_BYTES)


def username(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise SpecError("client_username", value, "must be text of at least one character")
    if ":" in value:
        raise SpecError(
            "client_username", value, "must not contain a colon: HTTP basic authentication ends there"
        )
    return _plain("client_username", value, USERNAME_MAX_BYTES)


def one_of(field: str, value: object, known: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in known:
        raise SpecError(field, value, f"must be one of {', '.join(known)}")
    return value


def _plain(field: str, value: str, maximum_bytes: int) -> str:
    if not value.isprintable() or " " in value:
        raise SpecError(field, value, "must not contain spaces or unprintable characters")
    if len(value.encode()) > maximum_bytes:
        raise SpecError(field, value, f"must take at most {maximum_bytes} bytes of UTF-8")
    return value
