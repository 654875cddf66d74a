"""A message is in one session, under one number; a session's numbers come in order."""

from __future__ import annotations

import pytest

from lbg_core.group import SessionChecker
from lbg_core.group.order_checker import Place


def judged(*seen: tuple[str, int, bool]) -> list[Place]:
    judge = SessionChecker()
    return [judge.observe(session, sequence, repeated=repeated).place for session, sequence, repeated in seen]


def test_sessions_go_on_side_by_side() -> None:
    assert judged(("a", 1, False), ("b", 1, False), ("a", 2, False)) == [Place.OK] * 3


@pytest.mark.parametrize(
    ("then", "place"),
    [
        (("a", 2, True), Place.REWIND),
        (("a", 4, True), Place.TWO_PLACES),
        (("b", 1, True), Place.TWO_PLACES),
        (("a", 2, False), Place.RENUMBERED),
        (("a", 1, False), Place.INVERSION),
        (("a", 9, False), Place.OK),
    ],
)
def test_what_is_said_of_the_next(then: tuple[str, int, bool], place: Place) -> None:
    assert judged(("a", 2, False), ("a", 3, False), then)[-1] is place


def test_what_would_have_been_in_order_is_told() -> None:
    judge = SessionChecker()
    judge.observe("a", 5, repeated=False)
    assert judge.observe("a", 3, repeated=False).expected == 6
    assert judge.highest == {"a": 5}
