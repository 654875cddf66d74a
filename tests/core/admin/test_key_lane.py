"""The lane of a key: what members remember and hold, put in time order."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

from lbg_core.admin.key_lane import Gap, Lane, Moved, Visit, lane_lines, lane_of
from lbg_core.group.held_messages import Ending, Handled, HeldState, PeekedMessage
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import KeyAnswer

S = 1_000_000
START_US = 1_700_000_000 * S  # 22:13:20 UTC


def handled(
    seq: int,
    at_s: float,
    ending: Ending = Ending.FINISHED,
    *,
    attempts: int = 1,
    last_call_s: float = 0.0,
    redelivered: bool = False,
) -> Handled:
    """The last call begins `last_call_s` after the first one."""
    at_us, later_us = START_US + int(at_s * S), int(last_call_s * S)
    times = (
        at_us - 5000,
        at_us,
        at_us + 1000,
        at_us + 1000 + later_us,
        at_us + 4200 + later_us,
        at_us + 9000,
    )
    return Handled(*("p", 7, seq, 1, *times, attempts, ending), redelivered=redelivered)


def message(seq: int, at_s: float, state: HeldState, *, received: bool) -> PeekedMessage:
    at_us = START_US + int(at_s * S)
    return PeekedMessage(
        *(f"p-7-{seq}", "k", 1, state, 1, "", False, at_us, "p.7.t", None, "b", None, 1),
        identity=("p", 7, seq),
        received_us=at_us + 1000 if received else 0,
    )


def answer(name: str, *records: Handled, held: tuple[PeekedMessage, ...] = (), upto: int = 9) -> KeyAnswer:
    me = Identity(0, name, name)
    return KeyAnswer(me, len(held), held, records, 0, 10_000, START_US, (("p", 7, ((0, upto),)),))


def words(lane: Lane) -> list[tuple[object, ...]]:
    return [(one.seq, one.word, one.member) for one in lane.steps if isinstance(one, Visit)]


def test_visits_are_in_time_order_whichever_member_had_them() -> None:
    waits = message(3, 9, HeldState.READY, received=False)
    lane = lane_of([answer("b", handled(2, 3)), answer("a", handled(0, 1), handled(1, 2))], [waits])
    assert words(lane) == [
        (0, Ending.FINISHED, "a"),
        (1, Ending.FINISHED, "a"),
        (2, Ending.FINISHED, "b"),
        (3, HeldState.READY, None),
    ]
    assert [one for one in lane.steps if isinstance(one, Moved)] == [Moved(START_US + 3 * S, 1, "a", "b")]


def test_the_lane_is_open_from_the_message_that_the_others_wait_for() -> None:
    held = tuple(message(seq, 50 + seq, HeldState.WAITING, received=True) for seq in (3, 4))
    dead, queued = (
        message(1, 1, HeldState.DEAD, received=False),
        message(5, 5, HeldState.READY, received=False),
    )
    poisoned = message(2, 60, HeldState.POISONED, received=True)  # it was delivered again
    lane = lane_of([answer("a", handled(0, 0), held=(*held, poisoned))], [dead, queued])
    assert [seq for seq, *_ in words(lane)] == [0, 1, 3, 4, 2, 5], "what waits in the queue is last"
    assert lane.open_from == 4
    assert lane_of([answer("a", handled(0, 0), held=held)], [dead]).open_from == 2
    assert lane_of([answer("a", handled(0, 0))], [dead]).open_from == 2, "none is"


def test_a_dead_letter_that_a_member_remembers_is_one_visit() -> None:
    dead = message(0, 1, HeldState.DEAD, received=False)
    assert words(lane_of([answer("a", handled(0, 1, Ending.DEAD))], [dead])) == [(0, Ending.DEAD, "a")]
    assert words(lane_of([answer("a")], [dead])) == [(0, Ending.DEAD, None)]


def test_a_message_that_was_finished_before_is_called_again() -> None:
    lost = handled(0, 1, Ending.UNACKNOWLEDGED)
    lane = lane_of([answer("a", lost), answer("b", handled(0, 2, redelivered=True))], [])
    first, _, again = lane.steps
    assert isinstance(first, Visit)
    assert isinstance(again, Visit)
    assert (first.word, first.is_called_again) == (Ending.UNACKNOWLEDGED, False)
    assert (again.word, again.is_called_again) == (Ending.FINISHED, True)


def test_a_gap_is_what_no_member_has_or_had() -> None:
    lane = lane_of([answer("a", handled(0, 1), handled(5, 2), upto=1), answer("b", upto=2)], [])
    assert [one for one in lane.steps if isinstance(one, Gap)] == [Gap(START_US + 2 * S, "p", 3, 4)]
    assert not [
        one for one in lane_of([answer("a", handled(0, 1), handled(5, 2))], []).steps if isinstance(one, Gap)
    ]


def test_the_table_is_for_people() -> None:
    retried = handled(1, 2, attempts=3, last_call_s=1.0)
    running = message(5, 4, HeldState.RUNNING, received=True)
    a = answer("a", handled(0, 1), retried, held=(running,), upto=1)
    lane = lane_of([a, answer("b", handled(2, 3, Ending.PARKED), upto=2)], [])
    assert list(lane_lines(lane, START_US + 60 * S, UTC)) == [
        "publisher p",
        "TIME          SEQ  PUBLISHED     QUEUE  MEMBER  WAITED  TRIES  LAST CALL",
        "22:13:21.000  0    22:13:20.995  1      a       6.0 ms  1      3.2 ms     finished",
        "22:13:22.000  1    22:13:21.995  1      a       6.0 ms  3      3.2 ms     finished, 1.0 s in all",
        "22:13:23.000                     1                                        moved from a to b",
        "22:13:23.000  2    22:13:22.995  1      b       6.0 ms  1      3.2 ms     parked",
        "22:13:24.001                     1                                        moved from b to a",
        "22:13:24.001  3-4                                                         GAP: no member that answered has or "
        "had them",
        "22:13:24.001  5    22:13:24.000  1      a       -       1      since -    RUNS",
        "history: the last messages of all keys at a 10,000 since 22:13:20, b 10,000 since 22:13:20; earlier ones and "
        "those of other members: the journals (lbg pipeline validate … --key KEY)",
    ]


def test_without_an_answer_there_is_no_history() -> None:
    assert list(lane_lines(lane_of([], []), START_US, UTC)) == [
        "no message of this key is remembered",
        "history: no member answered; what was finished is in the journals (lbg pipeline validate … --key KEY)",
    ]


def test_a_time_that_no_clock_has_is_shown_as_unknown() -> None:
    for stamp_us in (-1, 1_700_000_000_000_000_000, 1 << 62):
        odd = replace(message(4, 0.0, HeldState.WAITING, received=True), published_at_us=stamp_us)
        lane = lane_of([answer("m0", held=(odd,))], [])
        assert lane_lines(lane, START_US, UTC)
