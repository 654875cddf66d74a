"""What a journal gives away of its group: how many hashes and queues it has, and which hash function."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from lbg_broker.group import HASH_FUNCTIONS, SpecError, hash_of
from lbg_broker.group.rules import HASH_COUNT_MAX

ENOUGH = 24
"""Different keys after which a common divisor that is too large by chance is out of the question (1 in 2**23)."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a record says of one key."""

    key: str
    hash: int
    queue: int


@dataclass(frozen=True, slots=True)
class Recognised:
    """None for what the stamps do not tell."""

    hash_count: int | None = None
    hash_function: str | None = None
    queue_count: int | None = None


def recognise(stamps: Collection[Stamp]) -> Recognised:
    """hash = H(key) mod count, so the count divides H(key) - hash of every key, and nothing larger divides them all."""
    if len({stamp.key for stamp in stamps}) < ENOUGH:
        return Recognised()
    for name, whole in HASH_FUNCTIONS.items():
        try:
            count = math.gcd(*(whole(stamp.key) - stamp.hash for stamp in stamps))
        except SpecError:
            continue  # keys that are no numbers were not hashed by `modulo`
        if max(stamp.hash for stamp in stamps) < count <= HASH_COUNT_MAX:
            return Recognised(count, name, _queue_count(stamps, count))
    return Recognised()


def _queue_count(stamps: Collection[Stamp], hash_count: int) -> int | None:
    count = math.gcd(*(stamp.hash - stamp.queue for stamp in stamps))
    if count == 0:
        return hash_count
    return count if count > max(stamp.queue for stamp in stamps) else None


def first_stranger(stamps: Collection[Stamp], hash_count: int, function: str) -> Stamp | None:
    """A key that would not have the hash that its record says. Queues are not compared: groups are repartitioned."""
    for stamp in stamps:
        try:
            if hash_of(stamp.key, hash_count, function) != stamp.hash:
                return stamp
        except SpecError:
            return stamp
    return None
