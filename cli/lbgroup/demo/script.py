"""Script of the demo: its acts and their times, for each mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from lbg_broker.group import EXCLUSIVE, MESSAGE_GROUPS, PARTITIONED, SESSIONS


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
    """Schedule of the acts. Acts keep their order and stand at least `gap_s` apart, however fast the input runs."""

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


_KILL, _BACK = (Step(Do.KILL, "m2"),), (Step(Do.START, "m2"),)
_THIRD, _FOURTH = (Step(Do.START, "m3"),), (Step(Do.START, "m4"),)
_TWO_LEAVE = (Step(Do.LEAVE, "m4"), Step(Do.LEAVE, "m3"))
_LAST_LEAVES = (Step(Do.LEAVE, "m2"),)

PARTITIONS: tuple[Act, ...] = (
    Act(
        0.0, "Two consumers share the partitions", "One queue. The broker gives each consumer its partitions."
    ),
    Act(
        0.14,
        "m2 is killed",
        "SIGKILL, no goodbye. Its partitions wait for it, unbound, as long as the rebalance delay; then m1 has them.",
        _KILL,
    ),
    Act(0.27, "m2 comes back", "The delay runs; then partitions are paused, drained and handed over.", _BACK),
    Act(0.42, "A third consumer joins", "Loads differ by at most one; nothing else moves.", _THIRD),
    Act(0.56, "Scale to four", "One partition each: as far as four partitions can be shared.", _FOURTH),
    Act(
        0.71,
        "Back down: m4 and m3 leave",
        "They finish what they hold and go; when the delay is over, the others have their partitions.",
        _TWO_LEAVE,
    ),
    Act(0.85, "One is left", "m2 leaves too: m1 serves all partitions.", _LAST_LEAVES),
)

GROUPS: tuple[Act, ...] = (
    Act(
        0.0,
        "Two consumers, any number of keys",
        "A key is at one consumer at a time; any takes any free key.",
    ),
    Act(
        0.14,
        "m2 is killed",
        "SIGKILL, no goodbye. The keys that it had go on at m1 at once, in order; no other key notices.",
        _KILL,
    ),
    Act(0.27, "m2 comes back", "It gets the next free key. There is nothing to move, and no delay.", _BACK),
    Act(0.42, "A third consumer joins", "More hands, at once.", _THIRD),
    Act(0.56, "Scale to four", "As many consumers as there are keys with messages could work.", _FOURTH),
    Act(
        0.71,
        "Back down: m4 and m3 leave",
        "They finish what they hold, give back what they had not begun, in its place, and go.",
        _TWO_LEAVE,
    ),
    Act(0.85, "One is left", "m2 leaves too: m1 gets every key.", _LAST_LEAVES),
)

NUMBERED: tuple[Act, ...] = (
    Act(
        0.0,
        "Two sessions",
        "Each message goes to one session, for ever, with the next number there: 1, 2, 3 …",
    ),
    Act(
        0.14,
        "m2 is killed",
        "SIGKILL, no goodbye. What its session was given waits for it, and nobody else ever gets it.",
        _KILL,
    ),
    Act(0.27, "m2 comes back", "It says how far it is; the broker goes on right after that number.", _BACK),
    Act(
        0.42, "A third session", "An unknown name: a new session, which gets its share of what comes.", _THIRD
    ),
    Act(0.56, "A fourth", "What each is given is its own.", _FOURTH),
    Act(
        0.71,
        "m4 and m3 are closed",
        "They are given nothing more; when theirs is done they get End-of-Session, and go by themselves.",
        (Step(Do.CLOSE, "m4"), Step(Do.CLOSE, "m3")),
    ),
    Act(0.85, "One is left", "m2 is closed as well: m1 gets all that is to come.", (Step(Do.CLOSE, "m2"),)),
)


def script_of(mode: str, *, is_native: bool) -> tuple[Act, ...]:
    """On RabbitMQ mode Partitioned is the queues of Exclusive, and so is its play."""
    played_as = mode if is_native else EXCLUSIVE
    return {EXCLUSIVE: SCRIPT, PARTITIONED: PARTITIONS, MESSAGE_GROUPS: GROUPS, SESSIONS: NUMBERED}[played_as]
