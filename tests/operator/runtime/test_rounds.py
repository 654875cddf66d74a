"""Rounds: one at a time for each object, independent of others, repeated on request, when due and after a failure."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from lbg_operator.kube.api import ClusterError
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.runtime.work_queue import BATCH_S, FIRST_RETRY_S, LEAST_RETRY_S, LONGEST_RETRY_S, WorkQueue
from testing.virtual_time import in_virtual_time

A, B = Key("shop", "a"), Key("shop", "b")
LONG_S = 600.0


class Rounds:
    """`begun`: the times at which rounds of a key began; `done`: what was told of them."""

    def __init__(self, then: Callable[[Key], Awaitable[float | None]]) -> None:
        self.begun: list[tuple[Key, float]] = []
        self.done: list[str] = []
        self._running: Counter[Key] = Counter()
        self._then = then
        self.workers = WorkQueue(
            self._round, name="thing", done=lambda outcome, seconds: self.done.append(outcome)
        )

    def times(self, key: Key) -> list[float]:
        return [at for one, at in self.begun if one == key]

    async def _round(self, key: Key) -> float | None:
        self.begun.append((key, asyncio.get_running_loop().time()))
        self._running[key] += 1
        assert self._running[key] == 1, "one at a time"
        try:
            return await self._then(key)
        finally:
            self._running[key] -= 1


@in_virtual_time
async def test_events_of_one_cause_are_one_round() -> None:
    async def then(key: Key) -> float | None:
        return LONG_S

    rounds = Rounds(then)
    for _ in range(50):
        rounds.workers.wake(A)
        await asyncio.sleep(BATCH_S / 100)
    await asyncio.sleep(1)
    assert len(rounds.begun) == 1
    assert rounds.done == ["ok"]
    await rounds.workers.close()


@in_virtual_time
async def test_what_happens_during_a_round_has_another_one_after_it() -> None:
    async def then(key: Key) -> float | None:
        await asyncio.sleep(5)
        return LONG_S

    rounds = Rounds(then)
    rounds.workers.wake(A)
    await asyncio.sleep(1)
    for _ in range(3):
        rounds.workers.wake(A)
    await asyncio.sleep(60)
    assert rounds.times(A) == pytest.approx([BATCH_S, 5 + 2 * BATCH_S])
    await rounds.workers.close()


@in_virtual_time
async def test_a_round_that_hangs_holds_up_no_other_object_and_is_seen() -> None:
    async def then(key: Key) -> float | None:
        if key == A:
            await asyncio.Event().wait()
        return 10.0

    rounds = Rounds(then)
    rounds.workers.wake(A)
    rounds.workers.wake(B)
    await asyncio.sleep(100)
    assert len(rounds.times(A)) == 1
    assert len(rounds.times(B)) >= 9
    assert rounds.workers.longest_reconcile_s > 0
    await rounds.workers.close()
    assert rounds.workers.longest_reconcile_s == 0


@in_virtual_time
async def test_a_round_is_due_again_when_it_says() -> None:
    async def then(key: Key) -> float | None:
        return 10.0

    rounds = Rounds(then)
    rounds.workers.wake(A)
    await asyncio.sleep(35)
    assert len(rounds.begun) == 4
    await rounds.workers.close()


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(ClusterError("patch x", "away"), "retry"), (ZeroDivisionError(), "error"), (None, "retry")],
)
@in_virtual_time
async def test_what_fails_is_tried_again_less_and_less_often(error: Exception | None, outcome: str) -> None:
    is_mended = False

    async def then(key: Key) -> float | None:
        if is_mended:
            return LONG_S
        if error is not None:
            raise error
        return 0.0

    rounds = Rounds(then)
    rounds.workers.wake(A)
    await asyncio.sleep(400)
    times = rounds.times(A)
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses[0] == pytest.approx(FIRST_RETRY_S + BATCH_S)
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(LONGEST_RETRY_S + BATCH_S)
    assert set(rounds.done) == {outcome}
    is_mended = True
    await asyncio.sleep(LONGEST_RETRY_S + 1)
    assert rounds.done[-1] == "ok"
    await rounds.workers.close()


@in_virtual_time
async def test_something_that_is_cancelled_inside_a_round_does_not_end_its_worker() -> None:
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    gone.cancel()

    async def then(key: Key) -> float | None:
        if len(rounds.begun) == 1:
            await gone
        return LONG_S

    rounds = Rounds(then)
    rounds.workers.wake(A)
    await asyncio.sleep(5)
    assert rounds.done == ["error", "ok"]
    await rounds.workers.close()


@in_virtual_time
async def test_an_object_that_is_over_is_forgotten_and_begins_anew_when_it_is_woken() -> None:
    async def then(key: Key) -> float | None:
        return None

    rounds = Rounds(then)
    rounds.workers.wake(A)
    await asyncio.sleep(1)
    before = len(asyncio.all_tasks())
    rounds.workers.wake(A)
    assert len(asyncio.all_tasks()) == before + 1
    await asyncio.sleep(1)
    assert len(asyncio.all_tasks()) == before
    assert len(rounds.begun) == 2


@in_virtual_time
async def test_an_object_that_is_woken_in_its_last_round_has_another_one() -> None:
    async def then(key: Key) -> float | None:
        if len(rounds.begun) == 1:
            rounds.workers.wake(A)
        return None

    rounds = Rounds(then)
    rounds.workers.wake(A)
    await asyncio.sleep(5)
    assert len(rounds.begun) == 2


@in_virtual_time
async def test_closing_cuts_off_rounds_and_lets_none_begin() -> None:
    async def then(key: Key) -> float | None:
        await asyncio.Event().wait()
        return None

    rounds = Rounds(then)
    before = asyncio.all_tasks()
    rounds.workers.wake(A)
    rounds.workers.wake(B)
    await asyncio.sleep(1)
    await rounds.workers.close()
    rounds.workers.wake(A)
    await asyncio.sleep(1)
    assert asyncio.all_tasks() == before
    assert len(rounds.begun) == 2


@in_virtual_time
async def test_a_failure_that_is_an_event_itself_does_not_go_round_and_round() -> None:
    async def then(key: Key) -> float | None:
        rounds.workers.wake(A)
        raise ClusterError("patch x", "away")

    rounds = Rounds(then)
    rounds.workers.wake(A)
    await asyncio.sleep(60)
    assert len(rounds.begun) <= 3 + 60 / LEAST_RETRY_S
    await rounds.workers.close()


@in_virtual_time
async def test_an_event_is_taken_up_soon_although_rounds_have_failed_for_long() -> None:
    async def then(key: Key) -> float | None:
        if is_mended:
            return LONG_S
        raise ClusterError("patch x", "away")

    is_mended = False
    rounds = Rounds(then)
    rounds.workers.wake(A)
    await asyncio.sleep(600)
    is_mended = True
    rounds.workers.wake(A)
    await asyncio.sleep(LEAST_RETRY_S + 1)
    assert rounds.done[-1] == "ok"
    await rounds.workers.close()


@pytest.mark.long
@in_virtual_time
async def test_rounds_go_on_when_they_have_failed_for_two_days() -> None:
    """After 1,024 failures in a row, 17 hours at one a minute, 2 to their power is beyond a float."""

    async def then(key: Key) -> float | None:
        raise ClusterError("patch x", "away")

    rounds = Rounds(then)
    rounds.workers.wake(A)
    await asyncio.sleep(2 * 86_400)
    assert len(rounds.begun) > 2 * 86_400 / LONGEST_RETRY_S
    before = len(rounds.begun)
    rounds.workers.wake(A)
    await asyncio.sleep(LONGEST_RETRY_S + 1)
    assert len(rounds.begun) > before
    await rounds.workers.close()
