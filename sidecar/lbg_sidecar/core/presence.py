"""A member's presence: the stages of taking part and leaving, and the time that a leave takes.

The setting `shutdown_grace_s` is the time of running calls. All that comes after has a share in a margin: the
queues' closes are answered or not, the connections are closed, the application ends, what is published is confirmed,
the listeners close. A step that takes less than its share leaves the rest to the application and the confirms, which
can make use of it. With the default grace the whole is 26 s, which leaves 4 s of the 30 s that Kubernetes gives a pod
by default (terminationGracePeriodSeconds) to a machine that is loaded.

It hands its queues over for one of two reasons: it leaves for good, or its application cannot take messages for a while
(it stands down, and the next join brings it back). Standing down can become leaving, and never the other way round.
"""

from __future__ import annotations

import enum

CLOSES_S = 0.5
"""For the broker's answers, from the moment on which every queue is released, drained or not. They take milliseconds;
without an answer the channels end with their connection."""

CONNECTIONS_S = 1.0
APP_STOP_S = 2.0
"""At least. A command gets half of it to end when its input does, the other half when it has SIGTERM."""

APP_STOP_MAX_S = 5.0

MEMBER_MARGIN_S = CLOSES_S + CONNECTIONS_S + APP_STOP_S

CONFIRMS_S = 1.0
"""At least: for the confirms of what the application published through the sidecar. What it published while the calls
at work were waited for has had all that time."""

CONFIRMS_MAX_S = 5.0
PUBLISHERS_S = 0.5
LISTENERS_S = 1.0

MARGIN_S = MEMBER_MARGIN_S + CONFIRMS_S + PUBLISHERS_S + LISTENERS_S
"""Of a whole sidecar. A member alone needs `MEMBER_MARGIN_S`."""


class LeavingTime:
    """Times of one leave, which begins with the first request; moments are of the event loop's clock."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._began_at: float | None = None

    def begin(self, now: float) -> None:
        if self._began_at is None:
            self._began_at = now

    def app_stop_s(self, now: float) -> float:
        """Seconds that the application may take to end."""
        return self._share(now, by_s=MEMBER_MARGIN_S, least_s=APP_STOP_S, most_s=APP_STOP_MAX_S)

    def confirms_s(self, now: float) -> float:
        """Seconds to wait for confirms."""
        by_s = MARGIN_S - PUBLISHERS_S - LISTENERS_S
        return self._share(now, by_s=by_s, least_s=CONFIRMS_S, most_s=CONFIRMS_MAX_S)

    def _share(self, now: float, *, by_s: float, least_s: float, most_s: float) -> float:
        began_at = now if self._began_at is None else self._began_at
        return min(max(began_at + self._grace_s + by_s - now, least_s), most_s)


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
"""Every step there is. Only a member that hands its queues over can have handed over the last one."""


class Presence:
    def __init__(self) -> None:
        self.stage = Stage.TAKING_PART
        self.why: str | None = None
        """Reason for which it does not take part; None while it does."""
        self.empty_by = float("inf")
        """From this moment on its queues go at any price."""

    @property
    def is_handing_over(self) -> bool:
        return self.stage is Stage.STANDING_DOWN or self.stage is Stage.LEAVING

    @property
    def is_for_good(self) -> bool:
        """It leaves or has left, and no join brings it back."""
        return self.stage is Stage.LEAVING or self.stage is Stage.GONE

    def is_overdue(self, now: float) -> bool:
        """True if it leaves and the last closes have no answer: the end of the connection closes as well."""
        return self.stage is Stage.LEAVING and now >= self.empty_by + CLOSES_S

    def stop(self, why: str, now: float, *, grace_s: float) -> bool:
        """Leaves within the grace period, or at once with the second call. True if it took part until now."""
        before = self._step(Input.STOP)
        if before is Stage.LEAVING or before is Stage.GONE:
            self.empty_by = now
            return False
        self.why = why
        if before is Stage.TAKING_PART:
            self.empty_by = now + grace_s
        return before is Stage.TAKING_PART

    def stand_down(self, why: str, now: float, *, within_s: float) -> bool:
        """Has no queue until the next join. True if it took part until now."""
        if self._step(Input.STAND_DOWN) is not Stage.TAKING_PART:
            return False
        self.why = why
        self.empty_by = now + within_s
        return True

    def emptied(self) -> Stage:
        """The last queue is handed over: down, or gone for good."""
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
