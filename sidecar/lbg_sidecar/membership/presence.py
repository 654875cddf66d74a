"""Whether a member takes part in its group, gives its queues away, or holds none any more.

It gives them away for one of two reasons: it leaves for good, or its application cannot take messages for a while
(it stands down, and the next join brings it back). Standing down can become leaving, and never the other way round.
"""

from __future__ import annotations

import enum

from ..leaving import CLOSES_S


class Stage(enum.StrEnum):
    TAKING_PART = "taking part"
    STANDING_DOWN = "standing down"
    DOWN = "down"
    LEAVING = "leaving"
    GONE = "gone"


class Input(enum.StrEnum):
    STOP = "stop"
    STAND_DOWN = "stand down"
    EMPTY = "empty"
    JOIN = "join"


NEXT = {
    (Stage.TAKING_PART, Input.STOP): Stage.LEAVING,
    (Stage.TAKING_PART, Input.STAND_DOWN): Stage.STANDING_DOWN,
    (Stage.TAKING_PART, Input.JOIN): Stage.TAKING_PART,
    (Stage.STANDING_DOWN, Input.STOP): Stage.LEAVING,
    (Stage.STANDING_DOWN, Input.STAND_DOWN): Stage.STANDING_DOWN,
    (Stage.STANDING_DOWN, Input.JOIN): Stage.STANDING_DOWN,
    (Stage.STANDING_DOWN, Input.EMPTY): Stage.DOWN,
    (Stage.DOWN, Input.STOP): Stage.LEAVING,
    (Stage.DOWN, Input.STAND_DOWN): Stage.DOWN,
    (Stage.DOWN, Input.JOIN): Stage.TAKING_PART,
    (Stage.LEAVING, Input.STOP): Stage.LEAVING,
    (Stage.LEAVING, Input.STAND_DOWN): Stage.LEAVING,
    (Stage.LEAVING, Input.JOIN): Stage.LEAVING,
    (Stage.LEAVING, Input.EMPTY): Stage.GONE,
    (Stage.GONE, Input.STOP): Stage.GONE,
    (Stage.GONE, Input.STAND_DOWN): Stage.GONE,
    (Stage.GONE, Input.JOIN): Stage.GONE,
}
"""Every step there is. Nothing but a member that gives its queues away can have given the last one."""


class Presence:
    def __init__(self) -> None:
        self.stage = Stage.TAKING_PART
        self.why: str | None = None
        """Why it does not take part; None while it does."""
        self.empty_by = float("inf")
        """From this moment on its queues go at any price."""

    @property
    def is_giving_away(self) -> bool:
        return self.stage is Stage.STANDING_DOWN or self.stage is Stage.LEAVING

    @property
    def is_for_good(self) -> bool:
        """It leaves or has left, and no join brings it back."""
        return self.stage is Stage.LEAVING or self.stage is Stage.GONE

    def is_overdue(self, now: float) -> bool:
        """Whether it leaves and the last closes have no answer: the end of the connection closes as well."""
        return self.stage is Stage.LEAVING and now >= self.empty_by + CLOSES_S

    def stop(self, why: str, now: float, *, grace_s: float) -> bool:
        """Leave, within the grace period, or at once when asked again. True if it took part until now."""
        before = self._step(Input.STOP)
        if before is Stage.LEAVING or before is Stage.GONE:
            self.empty_by = now
            return False
        self.why = why
        if before is Stage.TAKING_PART:
            self.empty_by = now + grace_s
        return before is Stage.TAKING_PART

    def stand_down(self, why: str, now: float, *, within_s: float) -> bool:
        """Hold no queue until the next join. True if it took part until now."""
        if self._step(Input.STAND_DOWN) is not Stage.TAKING_PART:
            return False
        self.why = why
        self.empty_by = now + within_s
        return True

    def emptied(self) -> Stage:
        """The last queue is given away: down, or gone for good."""
        self._step(Input.EMPTY)
        return self.stage

    def joined(self) -> bool:
        """An index is claimed. True if it had stood down, and takes part again."""
        if self._step(Input.JOIN) is not Stage.DOWN:
            return False
        self.why = None
        self.empty_by = float("inf")
        return True

    def _step(self, input_: Input) -> Stage:
        """Returns the stage before."""
        before, after = self.stage, NEXT.get((self.stage, input_))
        if after is None:
            raise ValueError(f"a member that is {before} cannot get: {input_}")
        self.stage = after
        return before
