"""Demand of groups that scale by delay, from surveys, and what an autoscaler reads of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from lbg_core.admin import ProvisioningError, Unreachable
from lbg_core.admin.describe import Description
from lbg_core.admin.rows import ObservedQueue
from lbg_core.admin.snapshot import QueueStatus
from lbg_core.group import GroupSpec
from lbg_core.group.member_state import Identity
from lbg_core.group.members_protocol import Beat
from lbg_operator.reconcile.demands import SAMPLED_EVERY_S
from lbg_operator.reconcile.object_cache import Key
from lbg_operator.reconcile.survey_cache import INTERVAL_S, SOON_S, SurveyCache
from testing.virtual_time import in_virtual_time

MAIN, ORDERS, OTHER = Key("shop", "main"), Key("shop", "orders"), Key("shop", "other")
SPEC = GroupSpec("orders", "o", hash_count=64, queue_count=8, queue_size_mb=1, client_username="o")
PER_S = 150
"""Messages that arrive each second, which need a call of 10 ms each: 1.5 members."""


@dataclass
class Broker:
    """A group whose two members keep up, as surveys see it. `is_away`: it does not answer."""

    asked_at: list[float] = field(default_factory=list)
    is_away: bool = False

    async def survey(self, specs: Mapping[str, GroupSpec]) -> dict[str, Description | ProvisioningError]:
        now = asyncio.get_running_loop().time()
        self.asked_at.append(now)
        if self.is_away:
            return {name: Unreachable("gone") for name in specs}
        calls = int(PER_S * now / 2)
        counts = {"calls": calls, "busy_us": calls * 10_000}
        members = tuple(
            Beat(Identity(index, f"pod-{index}", f"i{index}"), counts=counts, concurrency=1)
            for index in range(2)
        )
        queues = tuple(ObservedQueue(f"q{one}", one, QueueStatus(ready=0, unacked=0)) for one in range(8))
        return {name: Description(name, SPEC, queues, 0, 0, members, ()) for name in specs}


def surveyed(broker: Broker) -> SurveyCache:
    loop = asyncio.get_running_loop()
    surveys = SurveyCache(lambda key: None, now=loop.time, timestamp=lambda: "")
    surveys.begin(MAIN, broker.survey)
    return surveys


@in_virtual_time
async def test_a_group_that_scales_by_delay_is_sampled_each_ten_seconds_and_others_with_the_surveys() -> None:
    broker, other = Broker(), Broker()
    for one, target_delay_s in ((broker, 10.0), (other, None)):
        surveys = surveyed(one)
        surveys.demands.watch(ORDERS, SPEC, target_delay_s)
        surveys.watch(ORDERS, MAIN, SPEC)
        await asyncio.sleep(10 * INTERVAL_S)
        await surveys.close()
    assert len(broker.asked_at) == pytest.approx(10 * INTERVAL_S / SAMPLED_EVERY_S, rel=0.4)
    assert len(other.asked_at) == pytest.approx(11, abs=2)


@in_virtual_time
async def test_the_demand_follows_from_two_surveys_on() -> None:
    surveys = surveyed(Broker())
    surveys.demands.watch(ORDERS, SPEC, 10.0)
    surveys.watch(ORDERS, MAIN, SPEC)
    await asyncio.sleep(SOON_S + 0.1)
    first = surveys.demands.latest(ORDERS)
    assert first is not None
    assert first.wanted is None, "of one survey nothing is known, and that is not 0"
    await asyncio.sleep(6 * SAMPLED_EVERY_S)
    demand = surveys.demands.latest(ORDERS)
    assert demand is not None
    assert demand.wanted == 2
    assert demand.arrivals_hz == pytest.approx(PER_S, rel=0.02)
    assert demand.capacity_hz == pytest.approx(100, rel=0.02)
    await surveys.close()


@in_virtual_time
async def test_a_demand_is_unknown_from_the_first_survey_that_fails_and_known_from_the_next_that_does_not() -> (
    None
):
    broker = Broker()
    surveys = surveyed(broker)
    surveys.demands.watch(ORDERS, SPEC, 10.0)
    surveys.watch(ORDERS, MAIN, SPEC)
    await asyncio.sleep(3 * SAMPLED_EVERY_S)
    broker.is_away = True
    await asyncio.sleep(2 * SAMPLED_EVERY_S)
    assert surveys.demands.latest(ORDERS) is None
    broker.is_away = False
    await asyncio.sleep(2 * SAMPLED_EVERY_S)
    assert surveys.demands.latest(ORDERS) is not None
    await surveys.end(MAIN)
    assert surveys.demands.latest(ORDERS) is None, "its broker is not surveyed any more"
    await surveys.close()


@in_virtual_time
async def test_a_demand_that_cannot_be_computed_ends_no_survey(monkeypatch: pytest.MonkeyPatch) -> None:
    surveys = surveyed(Broker())
    surveys.demands.watch(ORDERS, SPEC, 10.0)
    surveys.watch(ORDERS, MAIN, SPEC)
    with monkeypatch.context() as broken:
        broken.setattr("lbg_operator.reconcile.demands.sample_of", lambda *_: 1 / 0)
        await asyncio.sleep(3 * SAMPLED_EVERY_S)
        assert surveys.demands.latest(ORDERS) is None
    assert surveys.latest(ORDERS) is not None
    await asyncio.sleep(3 * SAMPLED_EVERY_S)
    assert surveys.demands.latest(ORDERS) is not None
    await surveys.close()


@in_virtual_time
async def test_another_target_is_measured_anew_and_a_group_that_is_gone_has_none() -> None:
    surveys = surveyed(Broker())
    surveys.demands.watch(ORDERS, SPEC, 10.0)
    surveys.watch(ORDERS, MAIN, SPEC)
    await asyncio.sleep(3 * SAMPLED_EVERY_S)
    before = surveys.demands.latest(ORDERS)
    surveys.demands.watch(ORDERS, SPEC, 10.0)
    surveys.watch(ORDERS, MAIN, SPEC)
    assert surveys.demands.latest(ORDERS) is before
    surveys.demands.watch(ORDERS, SPEC, 5.0)
    surveys.watch(ORDERS, MAIN, SPEC)
    assert surveys.demands.latest(ORDERS) is None
    surveys.forget(ORDERS)
    assert not surveys.demands.scales(ORDERS)
    await surveys.close()
