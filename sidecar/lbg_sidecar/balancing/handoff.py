"""One move of the active role away from this member, from its announcement to the closed channel."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class Stage(enum.Enum):
    """ANNOUNCED: the others get behind the successor while we still dispatch.
    DRAINING: nothing new starts, what runs may end, and what waits in a lane in front of it may run too.
    DETACHING: acknowledged and closing; from here there is no way back.
    """

    ANNOUNCED = enum.auto()
    DRAINING = enum.auto()
    DETACHING = enum.auto()


@dataclass(slots=True)
class Handoff:
    """`to` None is a release: whoever waits first gets the queue."""

    queue: int
    to: int | None
    why: str
    move: str
    stage: Stage = Stage.ANNOUNCED
    awaiting: set[int] = field(default_factory=set)
    deadline: float = 0.0
    halt_at: float = (
        0.0  # while draining: from then on nothing starts, also what is older than what was started
    )
    frozen_at: float = 0.0
    drained_at: float = 0.0
    forced: int = 0
