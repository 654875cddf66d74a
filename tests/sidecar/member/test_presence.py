"""Leaving, standing down and coming back: every step by its name, and no other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.core.presence import (
    LISTENERS_S,
    MARGIN_S,
    MEMBER_MARGIN_S,
    NEXT,
    PUBLISHERS_S,
    Input,
    LeavingTime,
    Presence,
    Stage,
)

WAYS = {
    Stage.TAKING_PART: (),
    Stage.STANDING_DOWN: (Input.STAND_DOWN,),
    Stage.DOWN: (Input.STAND_DOWN, Input.EMPTY),
    Stage.LEAVING: (Input.STOP,),
    Stage.GONE: (Input.STOP, Input.EMPTY),
}


def give(presence: Presence, input_: Input, now: float = 0.0) -> object:
    match input_:
        case Input.STOP:
            return presence.stop("told to", now, grace_s=30.0)
        case Input.STAND_DOWN:
            return presence.stand_down("not ready", now, within_s=3.0)
        case Input.EMPTY:
            return presence.emptied()
        case Input.JOIN:
            return presence.joined()


def at(stage: Stage) -> Presence:
    presence = Presence()
    for input_ in WAYS[stage]:
        give(presence, input_)
    assert presence.stage is stage
    return presence


@pytest.mark.parametrize("input_", Input)
@pytest.mark.parametrize("stage", Stage)
def test_a_step_is_in_the_table_or_refused_without_a_trace(stage: Stage, input_: Input) -> None:
    presence = at(stage)
    if (stage, input_) in NEXT:
        give(presence, input_)
        assert presence.stage is NEXT[stage, input_]
        return
    before = (presence.why, presence.empty_by)
    with pytest.raises(ValueError, match=f"a member that is {stage} cannot"):
        give(presence, input_)
    assert (presence.stage, presence.why, presence.empty_by) == (stage, *before)


def test_leaving_has_the_grace_period_and_ends_at_once_when_asked_again() -> None:
    presence = Presence()
    assert presence.stop("told to", 10.0, grace_s=30.0)
    assert (presence.why, presence.empty_by) == ("told to", 40.0)
    assert not presence.stop("told again", 12.0, grace_s=30.0)
    assert (presence.why, presence.empty_by) == ("told to", 12.0)
    assert presence.emptied() is Stage.GONE


def test_standing_down_has_the_time_of_a_handoff_and_the_next_join_ends_it() -> None:
    presence = Presence()
    assert presence.stand_down("not ready", 10.0, within_s=3.0)
    assert (presence.why, presence.empty_by) == ("not ready", 13.0)
    assert not presence.stand_down("still not ready", 11.0, within_s=3.0)
    assert (presence.why, presence.empty_by) == ("not ready", 13.0)
    assert not presence.joined()
    assert presence.emptied() is Stage.DOWN
    assert presence.joined()
    assert (presence.stage, presence.why, presence.empty_by) == (Stage.TAKING_PART, None, float("inf"))


@pytest.mark.parametrize("stage", [Stage.STANDING_DOWN, Stage.DOWN])
def test_who_stands_down_and_is_told_to_leave_does_not_come_back(stage: Stage) -> None:
    presence = at(stage)
    by = presence.empty_by
    assert not presence.stop("told to", 1.0, grace_s=30.0)
    assert (presence.why, presence.empty_by) == ("told to", by)
    assert not presence.joined()
    assert presence.emptied() is Stage.GONE


@given(st.lists(st.sampled_from(Input), max_size=30))
def test_in_any_history_leaving_is_for_good_and_why_says_whether_it_takes_part(inputs: list[Input]) -> None:
    presence, has_left = Presence(), False
    for input_ in inputs:
        if input_ is Input.EMPTY and not presence.is_handing_over:
            continue
        give(presence, input_)
        has_left = has_left or input_ is Input.STOP
        assert (presence.stage in (Stage.LEAVING, Stage.GONE)) == has_left
        assert (presence.why is None) == (presence.stage is Stage.TAKING_PART)


def test_a_leave_waits_for_confirms_until_what_its_publishers_and_listeners_need_is_left() -> None:
    leaving = LeavingTime(grace_s=20.0)
    leaving.begin(0.0)
    now = 20.0 + MEMBER_MARGIN_S - 1.0
    left_s = 20.0 + MARGIN_S - (now + leaving.confirms_s(now))
    assert left_s == pytest.approx(PUBLISHERS_S + LISTENERS_S)
