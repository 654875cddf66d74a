"""Jobs side by side."""

from __future__ import annotations

from functools import partial
from threading import Barrier

import pytest

from lbg_pipeline.spark.jobs import AT_ONCE, run_concurrently


def test_answers_come_in_order_whoever_is_first() -> None:
    assert run_concurrently([partial(pow, number, 2) for number in range(50)]) == [
        one * one for one in range(50)
    ]


def test_jobs_run_at_the_same_time() -> None:
    meeting = Barrier(AT_ONCE, timeout=30)
    assert sorted(run_concurrently([meeting.wait] * AT_ONCE)) == list(range(AT_ONCE))


def test_the_first_failure_is_raised_and_what_has_not_begun_is_left_out() -> None:
    done: list[int] = []

    def fail() -> None:
        raise LookupError("the first")

    with pytest.raises(LookupError, match="the first"):
        run_concurrently([fail, *(partial(done.append, number) for number in range(1000))])
    assert len(done) < 1000
