"""What happens in the demo, and when: the figures of the document "Sticky Load Balancing", as acts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Do(Enum):
    START = "start"
    KILL = "kill"
    """SIGKILL: no goodbye."""
    LEAVE = "leave"
    """SIGTERM: a planned leave."""
    CLOSE = "close"
    """Its session is closed: it ends by itself when that is drained."""


@dataclass(frozen=True, slots=True)
class Step:
    do: Do
    member: str


@dataclass(frozen=True, slots=True)
class Act:
    """`at` is the share of the input that was delivered when the act begins."""

    at: float
    title: str
    text: str
    steps: tuple[Step, ...] = ()


MEMBERS = ("m1", "m2", "m3", "m4")

SCRIPT: tuple[Act, ...] = (
    Act(
        0.0,
        "Two instances service four queues",
        "m1 and m2 bind every queue: two each as primary (solid), the rest as backup (dotted).",
    ),
    Act(
        0.14,
        "m2 is killed",
        "SIGKILL, no goodbye. The broker gives its queues to m1, next in line, in order and at once.",
        (Step(Do.KILL, "m2"),),
    ),
    Act(
        0.27,
        "m2 comes back",
        "It binds at the tail and waits until the group is stable; then its queues are handed over, drained first.",
        (Step(Do.START, "m2"),),
    ),
    Act(
        0.42,
        "A third instance joins",
        "More load, more hands: m3 takes over what is its share, and nothing else moves.",
        (Step(Do.START, "m3"),),
    ),
    Act(
        0.56, "Scale to four", "One queue each: as far as four queues can be shared.", (Step(Do.START, "m4"),)
    ),
    Act(
        0.71,
        "Back down: m4 and m3 leave",
        "SIGTERM: they stop taking, finish what they hold, hand over and go. Nothing is delivered twice.",
        (Step(Do.LEAVE, "m4"), Step(Do.LEAVE, "m3")),
    ),
    Act(
        0.85,
        "One is left",
        "m2 leaves too: m1 serves all four queues, as it could have from the start.",
        (Step(Do.LEAVE, "m2"),),
    ),
)

FIRST_MEMBERS = ("m1", "m2")


@dataclass(slots=True)
class Pacing:
    """Which act is due. Acts keep their order and stand at least `gap_s` apart, however fast the input runs."""

    acts: Sequence[Act]
    gap_s: float
    played: int = 0
    last_at_s: float = 0.0

    def due(self, share: float, now_s: float) -> Act | None:
        """The next act, if `share` of the input is delivered and the act before had its time; else None."""
        if self.is_over:
            return None
        act = self.acts[self.played]
        if share < act.at or (self.played and now_s - self.last_at_s < self.gap_s):
            return None
        self.played += 1
        self.last_at_s = now_s
        return act

    @property
    def is_over(self) -> bool:
        return self.played >= len(self.acts)


def rate_for(rows: int, *, play_s: float, max_rate: float) -> float:
    """Messages per second that make `rows` last `play_s`, or longer where that would be more than `max_rate`."""
    return max(1.0, min(rows / play_s, max_rate))
