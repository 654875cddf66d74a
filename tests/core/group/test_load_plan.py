"""Plan of moves by load: moves that pay, of the member that has most to do."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import example, given
from hypothesis import strategies as st

from lbg_core.group.load_plan import MOVES_FROM, MOVES_MAX, PlannedMove
from lbg_core.group.load_plan import moves_of as planned_moves_of
from lbg_core.group.member_state import Identity, QueueLoad
from lbg_core.group.members_protocol import Load

CALL_S = 0.01
PAYS_FROM = 0.1
moves_of = partial(planned_moves_of, pays_from=PAYS_FROM)
SOMEBODY = Identity(0, "m0", "life-0")


def member(first: int, *demands: float, concurrency: int = 1, service_s: float = CALL_S) -> Load:
    return Load(
        *(SOMEBODY, concurrency),
        tuple(QueueLoad(first + n, demand, service_s) for n, demand in enumerate(demands)),
    )


def test_members_that_keep_up_equally_move_nothing() -> None:
    assert moves_of({0: member(0, 0.4, 0.4), 1: member(2, 0.4, 0.45)}) is None


def test_a_member_below_the_bound_moves_nothing_though_others_are_idle() -> None:
    assert moves_of({0: member(0, 0.2, 0.2, 0.2), 1: member(3)}) is None


def test_the_member_with_most_to_do_gives_the_one_with_least() -> None:
    loads = {0: member(0, 0.1, 0.1), 1: member(2, 0.6, 0.5), 2: member(4, 0.5)}
    assert moves_of(loads) == (1, [PlannedMove(3, 0)])


def test_a_queue_above_what_a_member_can_do_stays_and_the_others_leave_it() -> None:
    planned = moves_of({0: member(0, 1.5, 0.2, 0.2), 1: member(3, 0.1)})
    assert planned == (0, [PlannedMove(1, 1), PlannedMove(2, 1)])


def test_a_member_that_cannot_be_helped_does_not_keep_others_from_moving() -> None:
    """One key can be too much for any member."""
    planned = moves_of({0: member(0, 1.5), 1: member(1, 0.5, 0.5), 2: member(3, 0.1)})
    assert planned == (1, [PlannedMove(1, 2)])


def test_a_slow_member_gives_what_others_do_in_a_quarter_of_the_time() -> None:
    slow = member(0, *[0.32] * 8, service_s=4 * CALL_S)
    planned = moves_of({0: slow, 1: member(8, 0.64), 2: member(9, 0.64), 3: member(10, 0.64)})
    assert planned is not None
    assert len(planned[1]) == 6
    assert len({to for _, to in planned[1]}) == 3


def test_a_queue_of_heavy_messages_does_not_make_its_member_look_slow() -> None:
    """Else it would go from member to member, each time in the hope that it costs less there."""
    queues = (QueueLoad(0, 0.9, 10 * CALL_S), *(QueueLoad(n, 0.02, CALL_S) for n in range(1, 5)))
    assert moves_of({0: Load(SOMEBODY, 1, queues), 1: member(5, *[0.08] * 5)}) is None


def test_a_member_with_more_calls_at_a_time_takes_more() -> None:
    planned = moves_of({0: member(0, *[0.3] * 5), 1: member(5, 0.5), 2: member(6, 0.5, concurrency=4)})
    assert planned is not None
    assert {to for _, to in planned[1]} == {2}


def test_what_few_calls_show_moves_nothing() -> None:
    loads = {0: member(0, 0.5, 0.4), 1: member(2, 0.1)}
    assert moves_of(loads) is not None
    assert moves_of({**loads, 0: replace(loads[0], is_steady=False)}) is None


def test_a_higher_threshold_moves_fewer_queues() -> None:
    loads = {0: member(0, 0.3, 0.25, 0.15, 0.15), 1: member(4, 0.3, 0.1)}
    counts = []
    for pays_from in (0.1, 0.3, 0.6):
        planned = planned_moves_of(loads, pays_from=pays_from)
        counts.append(0 if planned is None else len(planned[1]))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] == 0


LOADS = st.dictionaries(
    st.integers(0, 9),
    st.tuples(st.lists(st.floats(0, 3), max_size=6), st.integers(1, 4), st.sampled_from([0.0, 0.01, 0.05])),
    min_size=1,
    max_size=5,
)


@given(LOADS)
def test_a_plan_moves_queues_of_one_member_each_once_and_lowers_its_share(
    drawn: dict[int, tuple[list[float], int, float]],
) -> None:
    loads = {
        index: member(10 * index, *demands, concurrency=concurrency, service_s=service_s)
        for index, (demands, concurrency, service_s) in drawn.items()
    }
    planned = moves_of(loads)
    if planned is None:
        return
    mover, moves = planned
    highest = max(one.share for one in loads.values())
    queues = {one.queue for one in loads[mover].queues}
    assert MOVES_FROM <= loads[mover].share <= highest
    assert len({queue for queue, _ in moves}) == len(moves) <= MOVES_MAX
    assert all(queue in queues and to in loads and to != mover for queue, to in moves)
    given_away = {queue for queue, _ in moves}
    left = sum(one.demand for one in loads[mover].queues if one.queue not in given_away)
    assert left / loads[mover].concurrency <= loads[mover].share * (1 - PAYS_FROM)


GROUPS = st.tuples(
    st.lists(st.sampled_from([1, 1, 1, 4]), min_size=2, max_size=4),
    st.lists(st.tuples(st.sampled_from([1, 1, 1, 3, 10]), st.floats(0.02, 1.5)), min_size=2, max_size=8),
    st.sampled_from([1, 2, 4]),
)
"""Slowness of each member, weight and demand of the messages of each queue, and calls at a time."""


@given(GROUPS)
@example(([1, 1], [(10, 0.9), *[(1, 0.08)] * 5], 1))
def test_a_load_that_does_not_change_comes_to_rest(
    group: tuple[list[int], list[tuple[int, float]], int],
) -> None:
    """A queue of heavy messages that is alone at its member makes it look slow, until another has had it."""
    slowness, queues, concurrency = group
    at = [queue % len(slowness) for queue in range(len(queues))]
    seen: dict[int, dict[int, float]] = {}
    plans = 0
    while plans < 60:
        loads = {
            index: Load(
                *(SOMEBODY, concurrency),
                tuple(
                    QueueLoad(queue, demand * slow * concurrency, CALL_S * weight * slow)
                    for queue, (weight, demand) in enumerate(queues)
                    if at[queue] == index
                ),
            )
            for index, slow in enumerate(slowness)
        }
        for index, load in loads.items():
            seen.setdefault(index, {}).update((one.queue, one.service_s) for one in load.queues)
        planned = moves_of(loads, seen=seen)
        if planned is None:
            break
        plans += 1
        for queue, to in planned[1]:
            at[queue] = to
    assert plans < 60, "queues go on moving"
