from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from lbg_sidecar.app.health import HealthProbe, HealthRules, HealthTracker
from testing.waiting import until


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


async def test_a_position_that_was_on_its_way_when_a_call_had_no_reply_is_not_the_last_one() -> None:
    """The call may have committed behind it."""
    asked: list[asyncio.Future[int]] = []
    told: list[object] = []

    async def get(path: str, *, reply_max_bytes: int) -> Any:
        asked.append(asyncio.get_running_loop().create_future())
        return SimpleNamespace(status=200, is_success=True, body=json.dumps({"committed": await asked[-1]}))

    async def connect() -> None:
        pass

    calls: Any = SimpleNamespace(
        session="s",
        ready=lambda is_ready, why="": told.append(is_ready),
        processed=lambda streams: None,
        committed=lambda number, epoch: told.append(number),
    )
    client: Any = SimpleNamespace(get=get, connect=connect)
    target: Any = "app"
    probe = HealthProbe(HealthRules(positions_path="/p", interval_s=0.01), target, client)
    probe.start(calls)
    await until(lambda: asked)
    probe.unreachable("reset")
    asked[0].set_result(5)
    await until(lambda: len(asked) == 2)
    assert told[-1] == 5
    asked[1].set_result(6)
    await until(lambda: told[-1] is True)
    assert told[-2:] == [6, True]
    await probe.stop()
