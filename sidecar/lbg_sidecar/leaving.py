"""How long leaving may take: one budget, of which each step gets what the steps before it have left.

What the calls at work get is the user's to say (`shutdown_grace_s`). All that comes after has a share in a margin: the
queues' closes are answered or not, the connections are closed, the application ends, what is published is confirmed,
the listeners close. A step that takes less than its share leaves the rest to the application and the confirms, which
can make use of it. With the default grace the whole is 26 s, which leaves 4 s of the 30 s that Kubernetes gives a pod
by default (terminationGracePeriodSeconds) to a machine that is loaded.
"""

from __future__ import annotations

CLOSES_S = 0.5
"""For the broker to answer, from the moment on which every queue goes at any price. It takes milliseconds; where there
is no answer, the channels end with their connection."""

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
    """Of one leave, which begins when the first is asked for; moments are of the event loop's clock."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._began_at: float | None = None

    def begin(self, now: float) -> None:
        if self._began_at is None:
            self._began_at = now

    def app_stop_s(self, now: float) -> float:
        """How long the application may take to end."""
        return self._share(now, by_s=MEMBER_MARGIN_S, least_s=APP_STOP_S, most_s=APP_STOP_MAX_S)

    def confirms_s(self, now: float) -> float:
        """How long confirms are waited for."""
        by_s = MARGIN_S - PUBLISHERS_S - LISTENERS_S
        return self._share(now, by_s=by_s, least_s=CONFIRMS_S, most_s=CONFIRMS_MAX_S)

    def _share(self, now: float, *, by_s: float, least_s: float, most_s: float) -> float:
        began_at = now if self._began_at is None else self._began_at
        return min(max(began_at + self._grace_s + by_s - now, least_s), most_s)
