"""Conditions that flip: worse at once, better at once, and after a relapse better once that has lasted a minute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from lbg_operator.status.conditions import Condition, Reason, merged
from lbg_operator.status.stabilization import STEADY_S, Stabilizer

BAD, GOOD = Condition(Reason.PODS_FAILING, "a pod"), Condition(Reason.AS_EXPECTED)
BEGAN = "2026-01-01T00:00:00Z"


def shown(history: Sequence[tuple[float, Condition]], *, generations: Sequence[int] = ()) -> Iterator[str]:
    """The status that is shown at each moment, in seconds."""
    stabilizer, former = Stabilizer(), merged([], [GOOD], generation=1, now=BEGAN)
    for number, (now_s, observed) in enumerate(history):
        generation = generations[number] if generations else 1
        conditions = stabilizer.shown("orders", former, [observed], generation=generation, now_s=now_s)
        former = merged(former, conditions, generation=generation, now=BEGAN)
        assert (former[0]["message"] == "a pod") == (former[0]["status"] == "True")
        yield former[0]["status"]


HISTORIES = {
    "once": "0! 5. -> 1 0",
    "a relapse": "0! 5. 10! 15. 70. 75. -> 1 0 1 1 1 0",
    "again and again": "0! 5. 10! 15. 60! 70. 129. -> 1 0 1 1 1 1 1",
    "a relapse after a minute": "0! 5. 66! 70. -> 1 0 1 0",
    "a relapse after a calm": "0! 5. 10! 15. 75. 76! 80. -> 1 0 1 1 0 1 1",
}
"""The seconds at which a problem (!) or none (.) is observed, and what Degraded is then."""


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
def test_what_flips_is_good_once_it_was_so_for_a_minute(history: str) -> None:
    observed, _, statuses = history.partition(" -> ")
    told = [(float(one[:-1]), BAD if one[-1] == "!" else GOOD) for one in observed.split()]
    assert list(shown(told)) == ["True" if one == "1" else "False" for one in statuses.split()]


def test_a_condition_that_was_never_good_before_is_no_relapse() -> None:
    stabilizer, former = Stabilizer(), merged([], [Condition(Reason.NOT_KNOWN)], generation=1, now=BEGAN)
    for now_s, observed in ((2.0, GOOD), (10.0, BAD), (15.0, GOOD)):
        conditions = stabilizer.shown("orders", former, [observed], generation=1, now_s=now_s)
        assert conditions == [observed]
        former = merged(former, conditions, generation=1, now=BEGAN)


def test_a_new_generation_is_shown_as_it_is() -> None:
    history = [(0.0, BAD), (5.0, GOOD), (10.0, BAD), (15.0, GOOD)]
    assert list(shown(history, generations=[1, 1, 1, 2])) == ["True", "False", "True", "False"]


def test_an_end_that_is_held_back_has_its_time() -> None:
    stabilizer, former = Stabilizer(), merged([], [GOOD], generation=1, now=BEGAN)
    for now_s, observed in ((0.0, BAD), (5.0, GOOD), (10.0, BAD), (20.0, GOOD)):
        conditions = stabilizer.shown("orders", former, [observed], generation=1, now_s=now_s)
        former = merged(former, conditions, generation=1, now=BEGAN)
    assert stabilizer.due_in_s("orders", now_s=30.0) == STEADY_S - 10
    assert stabilizer.due_in_s("others", now_s=30.0) == float("inf")


def test_numbers_and_permissions_are_shown_at_once() -> None:
    stabilizer, former = Stabilizer(), merged([], [Condition(Reason.ACCEPTED)], generation=1, now=BEGAN)
    for now_s in range(8):
        observed = Condition(Reason.INVALID if now_s % 2 else Reason.ACCEPTED)
        conditions = stabilizer.shown("orders", former, [observed], generation=1, now_s=now_s)
        assert conditions == [observed]
        former = merged(former, conditions, generation=1, now=BEGAN)
