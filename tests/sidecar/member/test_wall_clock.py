"""A member's time of day, whatever is done to the system's clock."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar.io.delivery_journal import KEPT_STEPS, STEP_S, WallClock


class SystemClock:
    """Set `ahead_s` of the loop's time."""

    def __init__(self) -> None:
        self.now = 100.0
        self.ahead_s = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now + self.ahead_s


@given(
    st.lists(
        st.tuples(st.floats(0, 10), st.floats(-3600, 3600) | st.floats(-2 * STEP_S, 2 * STEP_S)),
        max_size=3 * KEPT_STEPS,
    ),
    st.lists(st.floats(0, 200), min_size=2),
)
def test_a_later_time_is_never_an_earlier_one(steps: list[tuple[float, float]], asked: list[float]) -> None:
    system = SystemClock()
    clock = WallClock(system.now, system)
    for passed_s, stepped_s in steps:
        system.now += passed_s
        system.ahead_s += stepped_s
        clock.adjust(system.now)
    told = [clock.us(at) for at in sorted(asked)]
    assert told == sorted(told)


def test_what_was_before_the_clock_was_set_keeps_its_time() -> None:
    system = SystemClock()
    clock = WallClock(system.now, system)
    before = clock.us(99.0)
    system.ahead_s += 3600
    clock.adjust(system.now)
    assert clock.us(99.0) == before
    assert clock.us(101.0) == (101 + 1_700_003_600) * 1_000_000


def test_it_stands_still_when_the_clock_is_set_back_until_that_has_caught_up() -> None:
    system = SystemClock()
    clock = WallClock(system.now, system)
    at_the_step = clock.us(100.0)
    system.ahead_s -= 5
    clock.adjust(system.now)
    assert [clock.us(at) - at_the_step for at in (100.0, 104.0, 106.0)] == [0, 0, 1_000_000]


def test_the_noise_of_reading_two_clocks_moves_nothing() -> None:
    system = SystemClock()
    clock = WallClock(system.now, system)
    before = clock.us(105.0)
    system.ahead_s += STEP_S / 2
    clock.adjust(system.now)
    assert clock.us(105.0) == before
