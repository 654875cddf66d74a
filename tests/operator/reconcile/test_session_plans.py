"""Consumers of a group with sessions, and the sessions that end first."""

from __future__ import annotations

import pytest

from lbg_core.admin.snapshot import AWAY, CLOSING, LIVE, STRANDED, SessionsStatus, SessionStatus
from lbg_operator.reconcile.scale import SessionPlan, names_of_sessions, ordinal_of, plan_sessions


def session(ordinal: int, state: str = LIVE, messages: int = 3) -> SessionStatus:
    return SessionStatus(f"o-lbg-{ordinal}", state, None, 9, 4, messages, None)


def plan(wanted: int, *sessions: SessionStatus, closed: bool = False, **pods: bool) -> SessionPlan:
    """`pods`: p0=True is pod o-lbg-0, marked."""
    named = {f"o-lbg-{name[1:]}": is_marked for name, is_marked in pods.items()}
    return plan_sessions("o-lbg", wanted, SessionsStatus(closed, 0, sessions), named)


def test_as_many_as_asked_for_where_every_session_may_live() -> None:
    assert plan(2, session(0), session(1), p0=False, p1=False) == SessionPlan(2)
    assert plan(5, session(0), p0=False) == SessionPlan(5)
    assert plan(0) == SessionPlan(0)


def test_the_sessions_that_are_to_go_are_closed_and_their_pods_marked_and_kept() -> None:
    found = plan(1, session(0), session(1), session(2, messages=0), p0=False, p1=False, p2=False)
    assert found.replicas == 3
    assert found.close == ("o-lbg-1", "o-lbg-2") == found.mark
    assert [one.session for one in found.waits_for] == ["o-lbg-1", "o-lbg-2"]


def test_a_session_that_is_closed_already_is_not_closed_again() -> None:
    found = plan(1, session(0), session(1, CLOSING), p0=False, p1=True)
    assert (found.replicas, found.close, found.mark) == (2, (), ())


def test_pods_go_from_the_highest_down_as_far_as_their_sessions_are_over() -> None:
    assert plan(1, session(0), session(1, CLOSING), p0=False, p1=True, p2=True).replicas == 2
    assert plan(1, session(0), session(2, CLOSING), p0=False, p1=True, p2=True).replicas == 3
    assert plan(1, session(0), p0=False, p1=True, p2=True) == SessionPlan(1)


def test_a_session_with_messages_and_no_pod_gets_its_pod_back() -> None:
    found = plan(1, session(0), session(3, STRANDED), p0=False)
    assert (found.replicas, found.close) == (4, ("o-lbg-3",))


def test_a_session_with_neither_messages_nor_a_consumer_holds_up_nobody() -> None:
    assert plan(1, session(0), session(3, AWAY, messages=0), p0=False) == SessionPlan(1)


def test_a_pod_that_is_wanted_again_and_whose_session_is_over_is_made_anew() -> None:
    assert plan(3, session(0), session(1), p0=False, p1=False, p2=True).renew == ("o-lbg-2",)
    assert plan(3, session(0), session(2, CLOSING), p0=False, p2=True).renew == (), "it is not over yet"
    assert plan(2, session(0), p0=False, p1=False).renew == (), "it may be starting"
    assert plan(3, session(0), closed=True, p0=False, p2=True).renew == (), "every session ends"


def test_a_session_that_somebody_closes_is_noticed() -> None:
    assert plan(2, session(0), session(1, CLOSING), p0=False, p1=False).mark == ("o-lbg-1",)


def test_a_mark_goes_from_a_pod_whose_session_lives_on() -> None:
    found = plan(2, session(0), session(1), p0=False, p1=True)
    assert (found.unmark, found.renew) == (("o-lbg-1",), ())


@pytest.mark.parametrize("name", ["worker", "other-1", "o-lbg", "o-lbg-x", "o-lbg-1-2"])
def test_sessions_of_others_are_nothing_to_wait_for(name: str) -> None:
    assert ordinal_of("o-lbg", name) is None
    assert plan(0, SessionStatus(name, LIVE, None, 9, 4, 3, None)) == SessionPlan(0)


def test_what_is_waited_for_is_named_and_not_without_end() -> None:
    assert names_of_sessions([session(1, CLOSING)]) == "o-lbg-1 (closing, 3 messages)"
    assert names_of_sessions([session(n) for n in range(12)]).endswith(
        "o-lbg-9 (live, 3 messages) and 2 more"
    )
