"""Jobs side by side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event

import pytest

from lbg_pipeline.spark import jobs
from lbg_pipeline.spark.jobs import AT_ONCE, run_concurrently
from testing.waiting import GUARD_S


def test_answers_come_in_order_whoever_is_first() -> None:
    assert run_concurrently([partial(pow, number, 2) for number in range(50)]) == [
        one * one for one in range(50)
    ]


def test_jobs_run_at_the_same_time() -> None:
    meeting = Barrier(AT_ONCE, timeout=GUARD_S)
    assert sorted(run_concurrently([meeting.wait] * AT_ONCE)) == list(range(AT_ONCE))


@pytest.mark.long
def test_the_first_failure_is_raised_and_what_has_not_begun_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cancelled = Event()

    class Announced(ThreadPoolExecutor):
        """Sets `cancelled` once a shutdown has cancelled what was asked of it, before it waits for the threads."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            cancelled.set()
            super().shutdown(wait=wait)

    monkeypatch.setattr(jobs, "ThreadPoolExecutor", Announced)
    done: list[int] = []

    def fail() -> None:
        raise LookupError("the first")

    every_thread = [cancelled.wait] * jobs.AT_ONCE
    with pytest.raises(LookupError, match="the first"):
        jobs.run_concurrently(
            [fail, *every_thread, *(partial(done.append, number) for number in range(1000))]
        )
    assert not done
