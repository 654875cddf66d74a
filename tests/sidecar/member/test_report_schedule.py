"""Schedule of status reports: soon after a change, seldom without one, every second for who watches."""

import pytest

from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Beat
from lbg_sidecar.core.report_schedule import JOINED_S, ReportSchedule
from lbg_sidecar.core.timings import Timings

ME = Identity(0, "m0", "life-0")
IDLE, BUSY = Beat(ME), Beat(ME, paused=True)
TIMINGS = Timings()


def schedule() -> ReportSchedule:
    made = ReportSchedule(TIMINGS, lambda: 0.5)
    made.joined(0.0)
    return made


def sent(reports: ReportSchedule, since: float, until: float, content: Beat = IDLE) -> list[float]:
    """Times of the reports of this content."""
    times, now = [], since
    while (now := max(reports.due, now)) < until:
        times += [now] * reports.takes(content, now)
    return times


def test_a_member_that_has_just_joined_reports_every_second() -> None:
    assert len(sent(schedule(), 0.0, JOINED_S)) == JOINED_S - 1


def test_a_report_that_has_not_changed_is_sent_every_five_seconds() -> None:
    reports = schedule()
    sent(reports, 0.0, JOINED_S)
    assert len(sent(reports, JOINED_S, JOINED_S + 60)) == 60 / TIMINGS.same_report_s


def test_a_report_that_has_changed_is_sent_within_a_second_without_a_hint() -> None:
    reports = schedule()
    last = sent(reports, 0.0, 2 * JOINED_S)[-1]
    assert sent(reports, last, last + TIMINGS.changed_report_s + 0.1, BUSY) == [last + 1.0]


def test_a_change_that_is_reported_to_it_is_sent_at_once_and_then_four_times_a_second() -> None:
    reports = schedule()
    sent(reports, 0.0, 2 * JOINED_S)
    now = reports.due - 0.5
    reports.changed(now)
    (first,) = sent(reports, now, now + 0.1, BUSY)
    assert first == pytest.approx(now + TIMINGS.change_s)
    reports.changed(first + 0.01)
    assert reports.due == pytest.approx(first + TIMINGS.report_s)


def test_who_watches_gets_a_report_soon_and_one_every_second_for_as_long_as_it_asked() -> None:
    reports = schedule()
    now = sent(reports, 0.0, 2 * JOINED_S)[-1] + 0.1
    reports.watch(10.0, now)
    times = sent(reports, now, now + 10.0)
    assert times[0] <= now + TIMINGS.report_s
    assert len(times) == 10
    assert len(sent(reports, now + 10.0, now + 70.0)) == 60 / TIMINGS.same_report_s


def test_a_shorter_watch_does_not_end_a_longer_one() -> None:
    reports = schedule()
    sent(reports, 0.0, 2 * JOINED_S)
    reports.watch(20.0, 60.0)
    reports.watch(1.0, 61.0)
    assert len(sent(reports, 61.0, 80.0)) >= 18
