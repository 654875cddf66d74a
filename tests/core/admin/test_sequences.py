"""The sum of what members report of sequence numbers, its line for people and its problems."""

from __future__ import annotations

import pytest

from lbg_core.admin.problem_kinds import Kind
from lbg_core.admin.sequences import sequence_problems, sequences_of, unaudited_text
from lbg_core.group import NATIVE_MODES
from lbg_core.group.member_state import Identity, QueueState, Repeats, Role, SequenceReport, Status
from lbg_core.group.members_protocol import Beat

MINUTE_US = 60_000_000
AT_US = 1_767_225_540_000_000  # 2025-12-31 23:59 UTC


def beat(index: int, report: SequenceReport | None, **more: object) -> Beat:
    queue = QueueState(index, Role.PRIMARY, active=True, status=Status.READY)
    return Beat(Identity(index, f"m{index}", f"i{index}"), queues=(queue,), sequences=report, **more)


def line(*beats: Beat) -> str:
    found = sequences_of(beats, ())
    assert found is not None
    return found.line


def test_a_sound_group_has_no_gap_in_all_its_streams() -> None:
    beats = beat(0, SequenceReport(streams=3_000)), beat(1, SequenceReport(streams=214))
    assert line(*beats) == "no gap open in 3,214 streams, 0 out of order"
    found = sequences_of(beats, ())
    assert found is not None
    assert not list(sequence_problems("orders", found, 0))


def test_without_a_report_nothing_is_said_of_the_group_and_of_a_member_that_it_is_unknown() -> None:
    assert sequences_of((beat(0, None),), ()) is None
    text = line(beat(0, SequenceReport(streams=1)), beat(1, None))
    assert text == "no gap open in 1 stream, 0 out of order, unknown without a report: queues 1"


def test_repeats_are_added_up_by_the_member_that_was_lost_and_what_is_unknown_has_the_latest_time() -> None:
    one = SequenceReport(
        streams=5,
        unknown_streams=1,
        unknown_before_us=AT_US - MINUTE_US,
        repeats=(Repeats("orders-4", AT_US, 10),),
    )
    other = SequenceReport(
        streams=5, unknown_streams=1, unknown_before_us=AT_US, repeats=(Repeats("orders-4", AT_US + 1, 4),)
    )
    assert line(beat(0, one), beat(1, other, counts={"during_standstill": 2})) == (
        "no gap open in 10 streams, 0 out of order, 14 again since 2025-12-31 23:59 UTC (loss of orders-4), "
        "2 calls ran during a standstill, 2 streams unknown before 2025-12-31 23:59 UTC"
    )


def test_what_is_missing_for_more_than_a_day_is_in_the_line_and_no_problem() -> None:
    first = SequenceReport(streams=5, overdue=2, overdue_since_us=AT_US)
    second = SequenceReport(streams=5, overdue=1, overdue_since_us=AT_US - MINUTE_US)
    found = sequences_of((beat(0, first), beat(1, second), beat(2, SequenceReport())), ())
    assert found is not None
    assert found.line == (
        "no new gap in 10 streams, 3 messages missing for more than a day, since 2025-12-31 23:58 UTC, 0 out of order"
    )
    assert not list(sequence_problems("g", found, 0))


@pytest.mark.parametrize("mode", NATIVE_MODES)
def test_of_each_mode_the_reason_is_known(mode: str) -> None:
    assert unaudited_text(mode).startswith(f"gaps and order are not audited in mode {mode} (")


def test_a_gap_and_an_inversion_are_problems_and_missing_messages_may_be_unrouted() -> None:
    report = SequenceReport(
        streams=5,
        missing=3,
        gap_streams=2,
        gap_since_us=AT_US,
        first_missing="p-1-7",
        out_of_order=1,
        out_of_order_id="p-1-9",
    )
    found = sequences_of((beat(0, report),), ())
    assert found is not None
    assert found.line == "3 messages missing in 2 of 5 streams since 2025-12-31 23:59 UTC, 1 out of order"
    assert [one.kind for one in sequence_problems("g", found, 0)] == [Kind.GAP_OPEN, Kind.OUT_OF_ORDER]
    unrouted, _ = sequence_problems("g", found, 4)
    assert unrouted.kind is Kind.GAP_UNROUTED
    assert unrouted.subject.message == "p-1-7"
    assert unrouted.figures["unrouted"] == 4
