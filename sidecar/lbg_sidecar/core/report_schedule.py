"""Schedule of a member's status reports to observers: soon after a change, and seldom if nothing has changed.

An observer that comes says so (`Watch`), so that it need not wait for the next report, and gets one every second for
as long as it asked for. A group at rest that nobody watches would otherwise send mostly what observers have.
"""

from __future__ import annotations

from collections.abc import Callable

from lbg_core.group.members_protocol import Beat
from lbg_sidecar.core.timings import Timings, spread

JOINED_S = 30.0
"""A member that has just joined does not know who watches: for so long it counts as watched. Observers that stay ask
again within 20 s (`lbg_core.admin.status_reports`)."""


class ReportSchedule:
    def __init__(self, timings: Timings, uniform: Callable[[], float]) -> None:
        self.due = 0.0
        """Time of the next look at the content."""
        self._timings = timings
        self._uniform = uniform
        self._sent: Beat | None = None
        self._sent_at = float("-inf")
        self._watched_until = float("-inf")

    def joined(self, now: float) -> None:
        self._sent = None
        self._watched_until = now + JOINED_S
        self.due = now + spread(self._timings.changed_report_s, self._uniform)

    def changed(self, now: float) -> None:
        """A value of the report has changed."""
        due = max(now + self._timings.change_s, self._sent_at + self._timings.report_s)
        self.due = min(self.due, due)

    def watch(self, seconds: float, now: float) -> None:
        """An observer has come, for so long. Not all members report in the same moment."""
        self._watched_until = max(self._watched_until, now + seconds)
        self._sent = None
        self.due = min(self.due, now + self._timings.report_s * self._uniform())

    def takes(self, content: Beat, now: float) -> bool:
        """True if a report of this content is to be sent now. The next look follows."""
        self.due = now + spread(self._timings.changed_report_s, self._uniform)
        is_known = content == self._sent and now >= self._watched_until
        if is_known and now - self._sent_at < self._timings.same_report_s:
            return False
        self._sent, self._sent_at = content, now
        return True
