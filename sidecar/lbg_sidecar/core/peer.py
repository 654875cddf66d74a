"""Another member of the group, the state of its bindings as it reported them, and its place in the ring."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import MutableMapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import MappingProxyType
from typing import Any

from lbg_core.group.member_state import Identity, QueueState, Status

CLAIM_S = 3.5
"""Three reports and a half: for so long the primary of a queue believes another member that serves it."""

_NOTHING: Any = MappingProxyType({})
"""Of a member that has reported no queue: most members of a large group share no queue with this one."""


def _nothing() -> Any:
    return _NOTHING


def digest_of(identity: Identity) -> int:
    """48 bits. That of a live set is the exclusive or over its members."""
    text = f"{identity.index}:{identity.incarnation}".encode()
    return int.from_bytes(blake2b(text, digest_size=6).digest(), "big")


@dataclass(slots=True)
class Peer:
    identity: Identity
    suspected_at: float = float("-inf")
    queues: MutableMapping[int, QueueState] = field(default_factory=_nothing)
    queue_reported_at: MutableMapping[int, float] = field(default_factory=_nothing)
    attached_at: MutableMapping[int, float] = field(default_factory=_nothing)
    """Times at which the present epoch of its binding was first reported as bound."""
    handing_over: frozenset[int] = frozenset()
    """Queues of which it announced a move, until its next report."""
    served: frozenset[int] = frozenset()
    """Queues of which it ever reported to be the active consumer."""
    digest: int = 0

    def update(self, state: QueueState, now: float) -> bool:
        """Records the state of a binding. True if it is the first of this queue."""
        if self.queues is _NOTHING:
            self.queues, self.queue_reported_at, self.attached_at = {}, {}, {}
        queue, former = state.queue, self.queues.get(state.queue)
        if former is None or former.epoch != state.epoch or former.status is Status.UNBOUND:
            self.attached_at[queue] = now
        self.queues[queue] = state
        self.queue_reported_at[queue] = now
        if state.active and queue not in self.served:
            self.served |= {queue}
        return former is None

    def claims(self, queue: int) -> bool:
        """True if it reported to be the active consumer."""
        return self.serves(queue) and queue not in self.handing_over

    def serves(self, queue: int) -> bool:
        """The same, also if it has announced to hand the queue over."""
        state = self.queues.get(queue)
        return state is not None and state.active

    def claims_now(self, queue: int, now: float) -> bool:
        """True if it reported that a moment ago. One that is not the primary repeats it."""
        return self.claims(queue) and now - self.queue_reported_at[queue] <= CLAIM_S


# The ring of members: their indexes in ascending order, and from the last one on to the first


def following(others: Sequence[int], index: int, places: int = 1) -> int:
    """The member so many places after `index`. `others`: indexes of the other members, ascending, at least one."""
    return others[(bisect_right(others, index) + places - 1) % len(others)]


def neighbour(others: Sequence[int], index: int, uniform: float) -> int:
    """One of the members that are 1, 2, 4, 8, … places after `index`, as the fingers of Chord (Stoica et al., 2001),
    chosen by a number from 0 up to 1. `others`: at least one.

    Over these a change reaches all in a few rounds, and each member exchanges messages with log2 N others. RabbitMQ
    keeps statistics of each pair of channel and queue, and goes through all of them every 5 s.
    """
    return following(others, index, 1 << int(uniform * len(others).bit_length()))
