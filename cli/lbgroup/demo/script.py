"""Script of the demo: its acts and their times, for each mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from lbg_core.group import EXCLUSIVE, MESSAGE_GROUPS, PARTITIONED, SESSIONS


class Do(Enum):
    START = "start"
    KILL = "SIGKILL: no goodbye"
    LEAVE = "SIGTERM: a planned leave"
    CLOSE = "its session is closed: it ends by itself when that is drained"


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
FIRST_MEMBERS = ("m1", "m2")
TIMES = (0.0, 0.14, 0.27, 0.42, 0.56, 0.71, 0.85)


def _acts(texts: str, *, end: Do = Do.LEAVE) -> tuple[Act, ...]:
    """The same members come and go in every mode: `texts` has a line for each act. `end`: the act by which they
    leave."""
    steps: Sequence[tuple[Step, ...]] = (
        (),
        (Step(Do.KILL, "m2"),),
        (Step(Do.START, "m2"),),
        (Step(Do.START, "m3"),),
        (Step(Do.START, "m4"),),
        (Step(end, "m4"), Step(end, "m3")),
        (Step(end, "m2"),),
    )
    lines = (line.partition(" | ") for line in texts.strip().splitlines())
    return tuple(
        Act(at, title, text, some) for at, (title, _, text), some in zip(TIMES, lines, steps, strict=True)
    )


SCRIPT = _acts("""
Two instances service four queues | m1 and m2 bind every queue: two each as primary (solid), two as secondary (dotted).
m2 is killed | SIGKILL, no goodbye. The broker gives its queues to m1, next in line, in order and at once.
m2 comes back | It waits at the tail until the group is stable; then its queues are drained and handed over.
A third instance joins | More load, more hands: m3 takes over what is its share, and nothing else moves.
Scale to four | One queue each: as far as four queues can be shared.
Back down: m4 and m3 leave | SIGTERM: calls that run end, queues are handed over, nothing is delivered twice.
One is left | m2 leaves too: m1 serves all four queues, as it could have from the start.
""")
_PARTITIONS = _acts("""
Two consumers share the partitions | One queue. The broker gives each consumer its partitions.
m2 is killed | SIGKILL, no goodbye. Its partitions wait for it, unbound, for the rebalance delay; then m1 has them.
m2 comes back | The delay runs; then partitions are paused, drained and handed over.
A third consumer joins | Loads differ by at most one; nothing else moves.
Scale to four | One partition each: as far as four partitions can be shared.
Back down: m4 and m3 leave | Calls that run end; when the delay is over, the others have their partitions.
One is left | m2 leaves too: m1 serves all partitions.
""")
_MESSAGE_GROUPS = _acts("""
    Two consumers, any number of keys | A key is at one consumer at a time; any takes any free key.
m2 is killed | SIGKILL, no goodbye. The keys that it had go on at m1 at once, in order; no other key notices.
m2 comes back | It gets the next free key. There is nothing to move, and no delay.
A third consumer joins | More hands, at once.
Scale to four | As many consumers as there are keys with messages could work.
Back down: m4 and m3 leave | Calls that run end; what had not begun goes back to its place.
One is left | m2 leaves too: m1 gets every key.
""")
_SESSIONS = _acts(
    """
Two sessions | Each message is assigned to one session for good, with the next number there: 1, 2, 3 …
m2 is killed | SIGKILL, no goodbye. What its session was assigned waits for it, and nobody else ever gets it.
m2 comes back | It reports its last number; the broker goes on right after that.
A third session | An unknown name: a new session, which gets its share of what comes.
A fourth | What is assigned to a session is its own.
m4 and m3 are closed | Nothing more is assigned; when they are drained they get End-of-Session, and leave.
One is left | m2 is closed as well: m1 gets all that is to come.
""",
    end=Do.CLOSE,
)


def script_of(mode: str, *, is_native: bool) -> tuple[Act, ...]:
    """On RabbitMQ mode Partitioned is the queues of Exclusive, and so is its play."""
    scripts = {
        PARTITIONED: _PARTITIONS,
        MESSAGE_GROUPS: _MESSAGE_GROUPS,
        SESSIONS: _SESSIONS,
        EXCLUSIVE: SCRIPT,
    }
    return scripts[mode if is_native else EXCLUSIVE]


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
