"""How a member takes its share of the queues; `MemberSettings` explains each value."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from lbg_broker.group import balanced_primaries, static_primaries


class Assignment(enum.StrEnum):
    """Which member should serve which queue. `static`: queue mod clients == index, the rule of "Sticky Load
    Balancing"; `balanced`: computed from who is there, so that loads differ by at most one."""

    BALANCED = "balanced"
    STATIC = "static"


@dataclass(frozen=True, slots=True)
class BalancingRules:
    queue_count: int
    assignment: Assignment = Assignment.BALANCED
    client_count: int = 1
    prefetch: int | None = None
    rebalance_delay_s: float = 5.0
    max_handoff_s: float = 3.0
    release_interval_s: float = 30.0
    answers_s: float = 0.1
    moves_at_once: int = 2
    shutdown_grace_s: float = 20.0
    ack_interval_s: float = 0.005
    consumer_timeout_s: float = 1800.0
    on_rabbitmq: bool = False

    def primaries(self, live: frozenset[int]) -> dict[int, int | None]:
        """Which index should serve each queue; None when nobody should in particular."""
        if self.assignment is Assignment.STATIC:
            return static_primaries(self.queue_count, self.client_count, live)
        return dict.fromkeys(range(self.queue_count)) | balanced_primaries(self.queue_count, live)
