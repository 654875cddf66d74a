"""Lines about states that last, at times that the tests give."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.state_log import AttemptLog, Cause, QueueStates, StateLine, ranges

SILENT = Cause("no_answer", "no answer", ("answers", "answer"), hint="is it up?")
CLOSED = Cause("closed", "a closed channel", ("is consumed", "are consumed"))
EVERY = range(128)


def run(states: QueueStates[int], until: float) -> list[tuple[float, StateLine[int]]]:
    """Lines up to a time, each when it is due."""
    found = []
    while (due := states.next_due()) is not None and due <= until:
        found += [(due, line) for line in states.lines(due)]
    return found


def texts(states: QueueStates[int], until: float) -> list[str]:
    return [line.text for _, line in run(states, until)]


def silent(now: float = 0.0) -> QueueStates[int]:
    states = QueueStates[int]()
    for queue in EVERY:
        states.enter(SILENT, queue, now + queue / 1000)
    return states


def test_queues_that_enter_a_state_within_a_moment_are_one_line() -> None:
    assert texts(silent(), 5.0) == ["128 queues have no answer (queues 0-127); is it up?"]


def test_a_state_that_lasts_has_further_lines_at_growing_intervals_up_to_five_minutes() -> None:
    lines = run(silent(), 3600.0)
    assert [round(at) for at, _ in lines[:8]] == [1, 11, 31, 71, 151, 311, 611, 911]
    assert lines[1][1].text == "128 queues still have no answer after 11 s (queues 0-127)"
    assert len(lines) < 20


def test_the_end_of_a_state_is_one_line_when_its_last_queue_left() -> None:
    states = silent()
    run(states, 20.0)
    for queue in EVERY:
        states.leave(queue, 42.0)
    assert texts(states, 1000.0) == ["all 128 queues answer again after 42.0 s"]
    assert states.next_due() is None


def test_one_queue_is_named_in_the_singular() -> None:
    states = QueueStates[int]()
    states.enter(SILENT, 7, 0.0)
    assert texts(states, 11.0) == [
        "queue 7 has no answer; is it up?",
        "queue 7 still has no answer after 11 s",
    ]
    states.leave(7, 12.0)
    assert texts(states, 12.0) == ["queue 7 answers again after 12.0 s"]


def test_a_state_that_is_over_at_once_is_one_line_that_says_so() -> None:
    states = QueueStates[int]()
    for queue in EVERY:
        states.enter(CLOSED, queue, 0.0, f"queue {queue}: 404 NOT_FOUND")
        states.leave(queue, 0.3)
    [(_, line)] = run(states, 100.0)
    assert line.text == "128 queues had a closed channel for 0.3 s (queues 0-127): queue 0: 404 NOT_FOUND"
    assert line.is_over
    assert line.queues == tuple(EVERY)


def test_some_of_the_queues_are_named_while_others_have_left() -> None:
    states = silent()
    run(states, 5.0)
    for queue in (*range(64, 70), *range(71, 128)):
        states.leave(queue, 6.0)
    assert texts(states, 11.0) == ["65 queues still have no answer after 11 s (queues 0-63, 70)"]


@pytest.mark.long
def test_a_state_that_comes_and_goes_all_the_time_is_no_flood() -> None:
    states = QueueStates[int]()
    lines = 0
    for second in range(3600):
        for queue in range(8):
            states.enter(CLOSED, queue, second)
        lines += len(texts(states, second + 0.5))
        for queue in range(8):
            states.leave(queue, second + 0.5)
        lines += len(texts(states, second + 0.9))
    assert 5 < lines < 40


def test_states_are_independent() -> None:
    states = silent()
    states.enter(CLOSED, 3, 0.0)
    states.leave(3, 0.5, event=SILENT.event)
    assert texts(states, 5.0) == [
        "127 queues have no answer (queues 0-2, 4-127); is it up?",
        "queue 3 has a closed channel",
    ]


def test_a_queue_that_is_consumed_leaves_every_state() -> None:
    states = QueueStates[int]()
    states.enter(SILENT, 3, 0.0)
    states.enter(CLOSED, 3, 0.0)
    run(states, 5.0)
    states.leave(3, 6.0)
    assert len(texts(states, 1000.0)) == 2
    assert states.next_due() is None


def test_nothing_is_repeated_while_there_is_no_connection_and_the_state_goes_on_after_it() -> None:
    states = silent()
    run(states, 5.0)
    states.interrupt()
    assert texts(states, 1000.0) == []
    for queue in EVERY:
        states.enter(SILENT, queue, 1000.0)
    assert texts(states, 1005.0) == ["128 queues still have no answer after 1001 s (queues 0-127)"]
    states.interrupt()
    for queue in EVERY:
        states.leave(queue, 1100.0)
    assert texts(states, 1200.0) == ["all 128 queues answer again after 1100.0 s"]


def test_a_connection_that_is_lost_before_the_first_line_leaves_none() -> None:
    states = silent()
    states.interrupt()
    assert states.next_due() is None
    states.enter(SILENT, 1, 50.0)
    assert texts(states, 52.0) == ["queue 1 has no answer; is it up?"]


def test_after_a_lost_connection_there_is_no_line_while_no_queue_is_known_to_be_in_the_state() -> None:
    states = silent()
    run(states, 5.0)
    states.interrupt()
    states.enter(SILENT, 3, 20.0)
    states.leave(3, 20.5)
    assert texts(states, 1000.0) == []
    states.enter(SILENT, 4, 1000.0)
    assert texts(states, 1001.0) == ["queue 4 still has no answer after 1001 s"]
    for queue in EVERY:
        states.leave(queue, 1010.0)
    assert texts(states, 1100.0) == ["all 128 queues answer again after 1010.0 s"]


def test_queues_that_a_group_has_no_more_leave() -> None:
    states = silent()
    run(states, 5.0)
    states.interrupt()
    states.retain(range(2), 20.0)
    states.leave(0, 20.0)
    states.leave(1, 21.0)
    assert texts(states, 1000.0) == ["all 128 queues answer again after 21.0 s"]


@given(
    st.lists(
        st.tuples(st.sampled_from(["enter", "leave", "interrupt"]), st.integers(0, 3), st.floats(0, 30)),
        max_size=200,
    )
)
def test_lines_are_few_and_the_last_one_is_true(steps: list[tuple[str, int, float]]) -> None:
    states, inside, now, lines = QueueStates[int](), set[int](), 0.0, list[StateLine[int]]()
    for step, queue, after_s in steps:
        now += after_s
        lines += [line for _, line in run(states, now)]
        match step:
            case "enter":
                states.enter(CLOSED, queue, now)
                inside.add(queue)
            case "leave":
                states.leave(queue, now)
                inside.discard(queue)
            case _:
                states.interrupt()
    for queue in tuple(inside):
        states.leave(queue, now)
    lines += [line for _, line in run(states, now + 10_000.0)]
    assert states.next_due() is None
    assert not lines or lines[-1].is_over
    assert all(line.queues for line in lines)
    reports = [line for line in lines if not line.is_over]
    assert len(reports) <= 2 + now / 10.0


@pytest.mark.parametrize(
    ("queues", "shown"),
    [
        ((0,), "0"),
        ((0, 1, 2), "0-2"),
        ((0, 2, 3, 9), "0, 2-3, 9"),
        (tuple(range(0, 40, 2)), "0, 2, 4, 6, 8, 10, 12, 14, …"),
        (("q1", "q2", "r"), "q1, q2, r"),
    ],
)
def test_queues_are_shown_as_ranges(queues: tuple[int, ...] | tuple[str, ...], shown: str) -> None:
    assert ranges(queues) == shown


def test_attempts_that_fail_in_the_same_way_have_few_lines_with_their_number() -> None:
    attempts = AttemptLog()
    lines = [attempts.failed("refused", float(second)) for second in range(3600)]
    assert lines[0] == "refused"
    assert lines[10] == "refused (10 attempts since the last such line)"
    assert lines[30] == "refused (20 attempts since the last such line)"
    assert len([line for line in lines if line]) < 20


def test_another_error_has_a_line_at_once() -> None:
    attempts = AttemptLog()
    assert [attempts.failed(error, 0.0) for error in ("one: refused", "two: silent", "one: refused")] == [
        "one: refused",
        "two: silent",
        None,
    ]


def test_an_attempt_that_succeeds_has_a_line_if_others_failed_before() -> None:
    attempts = AttemptLog()
    assert attempts.succeeded(0.0) is None
    attempts.failed("refused", 10.0)
    assert attempts.succeeded(11.5) == "after 1.5 s and 1 failed attempt"
    attempts.failed("refused", 20.0)
    attempts.failed("refused", 21.0)
    assert attempts.succeeded(22.0) == "after 2.0 s and 2 failed attempts"
    assert attempts.failed("refused", 23.0) == "refused"
