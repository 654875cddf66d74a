"""A group's traffic as arrays, slice by slice, so that slices can be made side by side.

Like the flights: 4,000 keys, the hottest with half a percent of all, one message in 64 without a key, 1,024 hashes on
16 queues of 8 members, four publishers. Every slice has the same messages in another order, so its first sequence
numbers are known without the slices before it. In each, queues change hands; who loses one gives its last deliveries
back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from lbg_core.group import hash_of

GROUP = "flights"
KEYS, HASHES, QUEUES, MEMBERS, PUBLISHERS = 4000, 1024, 16, 8, 4
SLICE_MESSAGES = 1_250_000
"""About a file of 64 MiB for each member and publisher."""

HANDOFFS_A_SLICE = 4
RELEASED_AT_HANDOFF = 20
START_US = 1_700_000_000_000_000
GAP_US = 1700
"""Between two messages; each is done with before the next is published, but for planted faults."""

DELIVERY_STRIDE = 64
ACK, RELEASED = 0, 1
Array = Any  # of numpy, which the type checker does not follow here


@dataclass(frozen=True)
class Traffic:
    """`messages` in all; `slices` of the same size, so that it is rounded up to a multiple of them."""

    messages: int

    @property
    def slices(self) -> int:
        return max(1, round(self.messages / SLICE_MESSAGES))

    @property
    def slice_messages(self) -> int:
        return -(-self.messages // self.slices)

    @cached_property
    def key_names(self) -> list[str]:
        return [f"N{10_000 + 7 * number}" for number in range(KEYS)]

    @cached_property
    def _hash_of_key(self) -> Array:
        return np.array([hash_of(key, HASHES) for key in self.key_names])

    @cached_property
    def _messages_of_a_slice(self) -> tuple[Array, Array, Array]:
        """Key (-1 for none), hash and publisher of each, in no order."""
        size = self.slice_messages
        keyless = size // 64
        weights = (np.arange(KEYS) + 20.0) ** -0.8
        counts = np.floor(weights / weights.sum() * (size - keyless)).astype(np.int64)
        counts[: size - keyless - counts.sum()] += 1
        key = np.concatenate([np.full(keyless, -1), np.repeat(np.arange(KEYS), counts)])
        hash_ = np.where(key < 0, np.arange(size) * 7919 % HASHES, self._hash_of_key[key])
        return key, hash_, np.arange(size) % PUBLISHERS

    def slice(self, number: int) -> Slice:
        order = np.random.default_rng(number).permutation(self.slice_messages)
        key, hash_, publisher = (column[order] for column in self._messages_of_a_slice)
        stream = publisher * HASHES + hash_
        counts = np.bincount(stream, minlength=PUBLISHERS * HASHES)
        by_stream = np.argsort(stream, kind="stable")
        seq = np.empty(len(stream), np.int64)
        seq[by_stream] = np.arange(len(stream)) - np.repeat(np.cumsum(counts) - counts, counts)
        return Slice(
            number,
            is_last=number == self.slices - 1,
            key=key,
            hash_=hash_,
            publisher=publisher,
            seq=seq + number * counts[stream],
        )


@dataclass(slots=True)
class Slice:
    """Published messages, and deliveries in columns: the first of each message in its place, then any others."""

    number: int
    is_last: bool
    key: Array
    hash_: Array
    publisher: Array
    seq: Array
    queue: Array = field(init=False)
    published_us: Array = field(init=False)
    special: Array = field(init=False)
    """Messages that were given back: no place to plant a fault."""
    message: Array = field(init=False)
    """Message of each delivery; the columns from here on are of deliveries."""
    member: Array = field(init=False)
    delivery: Array = field(init=False)
    delivered_us: Array = field(init=False)
    started_us: Array = field(init=False)
    finished_us: Array = field(init=False)
    settled_us: Array = field(init=False)
    verdict: Array = field(init=False)
    redelivered: Array = field(init=False)
    moves: int = 0

    def __post_init__(self) -> None:
        size = len(self.key)
        first = self.number * size
        random = np.random.default_rng(1_000_000 + self.number)
        self.queue = self.hash_ % QUEUES
        self.published_us = START_US + (first + np.arange(size)) * GAP_US
        self.special = np.zeros(size, bool)
        self.message = np.arange(size)
        self.delivery = (first + np.arange(size)) * DELIVERY_STRIDE
        self.delivered_us = self.published_us + 600 + random.integers(0, 400, size)
        self.started_us = self.delivered_us + 30 + random.integers(0, 50, size)
        self.finished_us = self.started_us + 150 + random.integers(0, 400, size)
        self.settled_us = self.finished_us + 20
        self.verdict = np.full(size, ACK)
        self.redelivered = np.zeros(size, bool)
        handoffs = self.number * HANDOFFS_A_SLICE + np.searchsorted(self._handed, self.message, side="right")
        self.member = _owner(self.queue, handoffs)
        for number, at in enumerate(self._handed):
            self._hand_over(self.number * HANDOFFS_A_SLICE + number, at)

    @property
    def _handed(self) -> list[int]:
        """Before which messages."""
        return [len(self.key) * (one + 1) // (HANDOFFS_A_SLICE + 1) for one in range(HANDOFFS_A_SLICE)]

    def _hand_over(self, handoff: int, at: int) -> None:
        queue = handoff % QUEUES
        of_queue = np.flatnonzero(self.queue == queue)
        released = of_queue[of_queue < at][-RELEASED_AT_HANDOFF:]
        self.special[released] = True
        self.verdict[released] = RELEASED
        later = np.arange(len(released))
        delivered_us = self.published_us[at] + 100 + later * 10
        self.add(
            released,
            member=np.full(len(released), int(_owner(queue, handoff + 1))),
            delivery=int(self.delivery[at]) - DELIVERY_STRIDE // 2 + later,
            delivered_us=delivered_us,
        )
        before = np.unique(self.hash_[of_queue if self.number else of_queue[of_queue < at]])
        after = np.unique(self.hash_[of_queue if not self.is_last else of_queue[of_queue >= released[0]]])
        self.moves += len(np.intersect1d(before, after))

    def add(self, message: Array, *, member: Array, delivery: Array, delivered_us: Array) -> None:
        """Further deliveries of messages, each done within 6 µs."""
        new = {
            "message": message,
            "member": member,
            "delivery": delivery,
            "delivered_us": delivered_us,
            "started_us": delivered_us + 2,
            "finished_us": delivered_us + 4,
            "settled_us": delivered_us + 6,
            "verdict": np.full(len(message), ACK),
            "redelivered": np.ones(len(message), bool),
        }
        for name, values in new.items():
            setattr(self, name, np.concatenate([getattr(self, name), values]))


def _owner(queue: Array, handoffs: Array) -> Array:
    """Member of a queue after so many handoffs, which go through the queues in turn."""
    return (queue // 2 + (handoffs - queue + QUEUES - 1) // QUEUES) % MEMBERS
