"""Another member, as this one knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import Identity, QueueState

LOST, LEAVE, UNSERVED = "lost", "leave", "unserved"
"""How a queue came to be without a server; see `Roster.last_server`."""


@dataclass(slots=True)
class Peer:
    identity: Identity
    heard_at: float
    looked_at: float = float("-inf")
    queues: dict[int, QueueState] = field(default_factory=dict)
    attached_at: dict[int, float] = field(default_factory=dict)  # when its present epoch was first heard of
    letting_go: set[int] = field(default_factory=set)  # announced a move; true until its next beat
    told_at: float = float("-inf")  # when it last told its state

    def claims(self, queue: int) -> bool:
        """Whether it said that it is the active consumer."""
        state = self.queues.get(queue)
        return state is not None and state.active and queue not in self.letting_go
