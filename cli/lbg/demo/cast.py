"""Who and what is on the demo's screen: members, queues, and what happened to them, as data.

Times are seconds since the curtain rose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from lbg.demo.meters import Meter


class Life(Enum):
    WAITING = "not started"
    STARTING = "starting"
    LIVE = "live"
    LEAVING = "leaving"
    LEFT = "left"
    KILLED = "killed"
    FAILED = "failed"


@dataclass(slots=True)
class Cell:
    """One member at one queue, as the member's last beat says."""

    role: str = "secondary"
    active: bool = False
    in_flight: int = 0
    status: str = "Unbound"


@dataclass(slots=True)
class MemberView:
    name: str
    life: Life = Life.WAITING
    lives: int = 0
    index: int | None = None
    rebalance: str = ""
    cells: dict[int, Cell] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    meter: Meter = field(default_factory=Meter)
    held: int = 0

    @property
    def in_flight(self) -> int:
        """What it holds, as its last beat says."""
        return self.held


@dataclass(slots=True)
class QueueView:
    """`ready` is None while it could not be read. `spans` says who got its messages from when on."""

    number: int
    ready: int | None = None
    meter: Meter = field(default_factory=Meter)
    holder: str | None = None
    spans: list[tuple[float, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MoveView:
    """A queue went from member to member. `is_crash`: the one it left had been killed."""

    at_s: float
    queue: int
    was: str
    now: str
    pause_ms: float
    waited_ms: float
    is_crash: bool


@dataclass(frozen=True, slots=True)
class Note:
    at_s: float
    kind: str
    text: str


@dataclass(slots=True)
class Kill:
    """A SIGKILL. `in_flight` is what the victim's last beat said; `at_us` is wall-clock time."""

    member: str
    at_s: float
    at_us: int
    in_flight: int
