"""Pace of members and keys: quantiles, busy shares, and who is slow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.group.pace import (
    KEY_MAX_CHARS,
    KEYS_MAX,
    SLOW_CALLS,
    Call,
    HotKey,
    KeyPace,
    Pace,
    hottest,
    pace_of,
    quantile,
    slow_members,
)

TIMES = st.lists(st.floats(0, 100), min_size=1, max_size=200)
CALLS = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c", None]), st.floats(0, 60), st.none() | st.floats(0, 60)).map(
        lambda one: (one[0], one[1], None if one[2] is None else one[1] + one[2])
    ),
    max_size=30,
)


def measured(*calls: Call, since: float = 0.0, now: float = 60.0, busy: float = 0.0) -> Pace:
    return pace_of(calls, since=since, now=now, busy=busy, finished_hz=1.0)


@given(TIMES, st.sampled_from([0.5, 0.99]))
def test_a_quantile_is_the_least_time_that_so_many_do_not_exceed(times: list[float], share: float) -> None:
    rising = sorted(times)
    found = quantile(rising, share)
    assert found is not None
    assert sum(one <= found for one in rising) >= share * len(rising)
    assert sum(one < found for one in rising) < share * len(rising)


def test_there_is_no_quantile_of_nothing() -> None:
    assert quantile([], 0.5) is None
    pace = measured()
    assert (pace.calls, pace.p50_s, pace.p99_s, pace.keys) == (0, None, None, ())


def test_of_few_calls_the_slowest_in_a_hundred_is_the_longest() -> None:
    pace = measured(*[("k", number, number + 0.01) for number in range(20)], ("k", 30.0, 31.0))
    assert (pace.calls, pace.p50_s, pace.p99_s) == (21, 0.01, 1.0)


def test_calls_of_two_keys_in_turn_are_all_timed() -> None:
    pace = measured(*[("ab"[number % 2], 0.0, (0.001, 0.01)[number % 2]) for number in range(4000)])
    assert (pace.p50_s, pace.p99_s, pace.calls) == (0.001, 0.01, 4000)


def test_long_keys_that_begin_alike_are_two() -> None:
    keys = measured(("k" * 80 + "a", 0.0, 1.0), ("k" * 80 + "b", 0.0, 1.0)).keys
    assert len({one.key for one in keys}) == 2
    assert all(len(one.key) == KEY_MAX_CHARS for one in keys)


def test_a_peer_with_one_call_makes_nobody_slow() -> None:
    paces = {"new": Pace(calls=1, p50_s=0.001), "old": Pace(calls=500, p50_s=0.2)}
    assert slow_members(paces) == {}
    assert "old" in slow_members(paces | {"new": Pace(calls=SLOW_CALLS, p50_s=0.001)})


@given(CALLS, st.floats(0, 50))
def test_shares_are_from_nothing_to_all_and_only_ended_calls_are_timed(
    calls: list[Call], since: float
) -> None:
    pace = measured(*calls, since=since, busy=1.7)
    ended = [one for one in calls if one[2] is not None and one[2] > since]
    assert pace.calls == len(ended)
    assert (pace.p50_s is None) == (pace.p99_s is None) == (not ended)
    assert pace.busy == 1.0
    assert len({one.key for one in pace.keys}) == len(pace.keys) <= KEYS_MAX
    assert [one.busy for one in pace.keys] == sorted((one.busy for one in pace.keys), reverse=True)
    for one in pace.keys:
        assert 0 <= one.busy <= 1
        assert one.calls == sum(key == one.key for key, *_ in ended)


def test_a_key_is_busy_for_the_part_of_its_calls_that_is_in_the_window() -> None:
    pace = measured(
        ("before", 0.0, 20.0), ("half", 10.0, 40.0), ("half", 40.0, 50.0), ("runs", 35.0, None), since=30.0
    )
    assert [(one.key, one.busy, one.calls, one.p50_s) for one in pace.keys] == [
        ("runs", 0.83, 0, None),
        ("half", 0.67, 2, 10.0),
    ]


def test_the_busiest_keys_are_kept_and_none_whole_that_is_long() -> None:
    calls = [(f"k{number}", 0.0, float(number)) for number in range(1, 10)]
    pace = measured(*calls, ("x" * 100, 0.0, 50.0))
    assert pace.keys[0].key.startswith("x" * 55 + "…")
    assert [one.key for one in pace.keys[1:]] == ["k9", "k8", "k7", "k6"]


def test_hot_keys_of_several_members_are_one_list_and_a_key_that_moved_is_one() -> None:
    first = Pace(keys=(KeyPace("a", 0.5, 10, 0.1, 0.2), KeyPace("b", 0.3, 9, 0.1, 0.1)))
    second = Pace(keys=(KeyPace("a", 0.4, 2, 0.9, 0.9), KeyPace("c", 0.3)))
    found = hottest([first, None, second], {"b": 2.0, "c": 3.0, "d": 99.0})
    assert [(one.key, one.rate) for one in found] == [("a", None), ("c", 3.0), ("b", 2.0), ("d", 99.0)]
    assert found[0].pace == KeyPace("a", 0.9, 12, 0.1, 0.2)
    assert found[-1].pace is None


def test_without_times_those_with_most_messages_are_the_hottest() -> None:
    assert hottest([None], {"a": 1.0, "b": 2.0}, 1) == [HotKey("b", 2.0, None)]


def pace(p50_s: float | None, calls: int = 100) -> Pace:
    return Pace(calls=0 if p50_s is None else calls, p50_s=p50_s, p99_s=p50_s)


@pytest.mark.parametrize(
    ("paces", "slow"),
    [
        ((pace(0.25), pace(0.01), pace(0.02)), {"m0"}),
        ((pace(0.25), pace(0.2)), set()),
        ((pace(0.25),), set()),
        ((pace(0.25), pace(None), None), set()),
        ((pace(0.25, SLOW_CALLS - 1), pace(0.01)), set()),
        ((pace(0.0009), pace(0.0001)), set()),
        ((None, pace(0.01), pace(0.011), pace(0.5), pace(0.4)), {"m3", "m4"}),
    ],
)
def test_a_member_far_slower_than_its_peers_is_slow(paces: tuple[Pace | None, ...], slow: set[str]) -> None:
    found = slow_members({f"m{place}": one for place, one in enumerate(paces)})
    assert found.keys() == slow


def test_how_slow_is_by_the_median_of_the_others() -> None:
    found = slow_members({"a": pace(0.3), "b": pace(0.01), "c": pace(0.02), "d": pace(0.03)})
    assert (found["a"].factor, found["a"].peers_s) == (pytest.approx(15), 0.02)
