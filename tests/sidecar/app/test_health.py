from __future__ import annotations

from lbg_sidecar.app.health import HealthRules, HealthTracker


def healthy(**rules: int) -> HealthTracker:
    health = HealthTracker(HealthRules(**rules))
    assert health.succeeded()
    return health


def test_it_is_down_until_the_first_success() -> None:
    health = HealthTracker(HealthRules(up_after=3))
    assert not health.is_up
    assert health.failed("refused"), "it is down, for another reason"
    assert health.why == "refused"
    assert health.succeeded()
    assert (health.is_up, health.why) == (True, "")


def test_only_failures_in_a_row_take_it_down() -> None:
    health = healthy(down_after=2)
    assert not health.failed("refused")
    assert not health.succeeded()
    assert not health.failed("refused")
    assert health.failed("reset")
    assert (health.is_up, health.why) == (False, "reset")


def test_a_call_that_was_answered_ends_a_row_of_failures() -> None:
    health = healthy(down_after=2)
    health.failed("refused")
    health.answered()
    assert not health.failed("refused")
    assert health.is_up


def test_it_comes_back_after_successes_in_a_row_and_no_answered_call_counts() -> None:
    health = healthy(down_after=1, up_after=2)
    assert health.failed("refused")
    health.answered()
    assert not health.succeeded()
    assert health.failed("silent")
    assert health.why == "silent"
    assert not health.succeeded()
    assert health.succeeded()
