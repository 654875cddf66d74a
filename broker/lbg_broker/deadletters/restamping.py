"""What a dead letter is published as, and what of a batch may be on the way at once. No I/O here."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from lbg_broker.client import BasicProperties, Delivery
from lbg_broker.group import (
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
    IDENTITY_BYTES,
    GroupSpec,
)

from .errors import ReplayStopped
from .letter import DeadLetter, hash_in

T = TypeVar("T")

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


class Restamping:
    """A publisher of its own for one replay, with sequences from 0 per hash.

    For members a dead letter is processed: under the identity it had it would be dropped as a repeat.
    """

    def __init__(self, spec: GroupSpec, publisher: str | None = None) -> None:
        self.publisher = publisher or f"dead-{secrets.token_hex(IDENTITY_BYTES)}"
        self._spec = spec
        self._next_seq: Counter[int] = Counter()

    def properties(self, letter: DeadLetter, delivery: Delivery) -> BasicProperties:
        """Raises ReplayStopped for a routing key that no binding of the group takes.

        The broker would confirm it, for the group's alternate exchange takes what no queue takes.
        """
        hash_ = hash_in(letter.routing_key)
        of_group = letter.routing_key.partition(".")[0] == self._spec.hash_prefix
        if not of_group or hash_ is None or hash_ >= self._spec.hash_count:
            why = f"no queue of group {self._spec.name} takes its routing key {letter.routing_key!r}"
            raise ReplayStopped(str(letter), why)
        properties = delivery.properties
        headers = {name: value for name, value in delivery.headers.items() if name not in OF_DEAD_LETTERS}
        if HEADER_PUBLISHER in headers and HEADER_SEQ in headers:
            headers.setdefault(HEADER_ORIGINAL_PUBLISHER, headers[HEADER_PUBLISHER])
            headers.setdefault(HEADER_ORIGINAL_SEQ, headers[HEADER_SEQ])
            seq = self._next_seq[hash_]
            self._next_seq[hash_] += 1
            headers |= {HEADER_PUBLISHER: self.publisher, HEADER_SEQ: seq}
            properties.message_id = f"{self.publisher}-{hash_}-{seq}"
        properties.headers = headers
        properties.delivery_mode = 2
        properties.user_id = None  # RabbitMQ refuses another user's name in it
        return properties


def rounds(batch: Iterable[tuple[DeadLetter, T]]) -> Iterator[list[tuple[DeadLetter, T]]]:
    """The batch in its order, in runs that hold no key twice.

    When a queue refuses a message it may still take the next one on the way; of the same key, that must not be.
    """
    run: list[tuple[DeadLetter, T]] = []
    keys: set[str] = set()
    for letter, what in batch:
        if letter.key is not None and letter.key in keys:
            yield run
            run, keys = [], set()
        run.append((letter, what))
        if letter.key is not None:
            keys.add(letter.key)
    if run:
        yield run
