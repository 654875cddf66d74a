"""Metrics, probes and logs of the operator."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lbg_operator.kube.kinds import BROKER, GROUP
from lbg_operator.reconcile.object_cache import ObjectCache
from lbg_operator.reconcile.survey_cache import SurveyCache
from lbg_operator.runtime.metrics import Metrics, health_server
from testing.operator.operated import ORDERS, Place
from testing.virtual_time import in_virtual_time
from testing.waiting import GUARD_S

LABELS = (("group", "orders"), ("namespace", "shop"))


async def test_health_says_what_is_wrong_in_one_line() -> None:
    wrong = {"dead": "", "unready": "the watches have not begun yet"}
    registry = CollectorRegistry()
    async with (
        health_server(
            registry, dead=lambda: wrong["dead"], unready=lambda: wrong["unready"], host="127.0.0.1", port=0
        ) as port,
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def get(path: str) -> tuple[int, str]:
            async with session.get(path) as response:
                return response.status, await response.text()

        assert await get("/healthz") == (200, "ok")
        assert await get("/readyz") == (503, "the watches have not begun yet")
        wrong.update(dead="a reconciliation has been running for 301 s", unready="")
        assert await get("/healthz") == (503, "a reconciliation has been running for 301 s")
        assert await get("/readyz") == (200, "ok")
        assert (await get("/metrics"))[0] == 200
        assert (await get("/"))[0] == 404


def samples(metrics: Metrics) -> dict[Any, float]:
    text = generate_latest(metrics.registry).decode()
    judged = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=GUARD_S
    )
    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")
    return {
        (one.name, *sorted(one.labels.items())): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


def metrics_of(place: Place) -> Metrics:
    assert place.operator is not None
    world = place.operator.world
    return Metrics(world.store, world.surveys, lambda kind: 0.0)


def the_lag(place: Place) -> float | None:
    return samples(metrics_of(place)).get(("lbg_operator_group_lag_messages", *LABELS))


@pytest.mark.process
@in_virtual_time
async def test_each_group_is_shown_as_its_status_and_last_look_have_it() -> None:
    async with Place() as place:
        place.apply_broker()
        await place.start()
        place.apply_group()
        await asyncio.sleep(10)
        place.broker.waiting["lbg.shop-orders.q.0"] = 7
        await asyncio.sleep(40)
        shown = samples(metrics_of(place))
        condition = "lbg_operator_group_condition"
        ready = ("type", "Ready")
        assert shown[condition, *LABELS, ("status", "True"), ready] == 1
        assert shown[condition, *LABELS, ("status", "False"), ready] == 0
        assert shown[condition, *LABELS, ("status", "Unknown"), ready] == 0
        main = (("broker", "main"), ("namespace", "shop"))
        assert shown["lbg_operator_broker_condition", *main, ("status", "True"), ready] == 1
        assert shown["lbg_operator_group_lag_messages", *LABELS] == 7
        assert shown["lbg_operator_group_members", *LABELS] == 2
        assert shown["lbg_operator_group_dead_letters", *LABELS] == 0
        assert shown["lbg_operator_group_unrouted_messages", *LABELS] == 0
        partitions = "lbg_operator_group_partitions"
        assert shown[partitions, *LABELS, ("status", "Ready")] == 8
        assert shown[partitions, *LABELS, ("status", "Unbound")] == 0
        assert ("lbg_operator_group_stranded_sessions", *LABELS) not in shown, "this group has no sessions"
        assert ("lbg_operator_group_scheduled_replicas", *LABELS) not in shown, "and no schedule"


@pytest.mark.process
@in_virtual_time
async def test_what_is_unknown_is_absent_and_not_0() -> None:
    async with Place() as place:
        place.apply_broker()
        await place.start()
        place.apply_group()
        await asyncio.sleep(10)
        assert the_lag(place) == 0
        place.broker.is_deaf = True
        await asyncio.sleep(40)
        assert the_lag(place) is None
        place.broker.is_deaf = False
        await asyncio.sleep(40)
        assert the_lag(place) == 0
        place.cluster.take_away(BROKER, "shop", "main")
        await asyncio.sleep(10)
        assert the_lag(place) is None, "nobody looks any more"


@pytest.mark.process
@in_virtual_time
async def test_a_condition_that_nobody_asks_for_has_no_sample() -> None:
    async with Place() as place:
        await place.ready()
        types = {dict(one[1:])["type"] for one in samples(metrics_of(place)) if "group_condition" in one[0]}
        assert "ScalingActive" in place.conditions()
        assert types == {"Accepted", "Provisioned", "Ready", "Degraded"}


@pytest.mark.process
@in_virtual_time
async def test_a_group_that_is_gone_is_shown_no_more() -> None:
    async with Place() as place:
        place.apply_broker()
        await place.start()
        place.apply_group()
        await asyncio.sleep(10)
        place.delete_group()
        await asyncio.sleep(10)
        assert not place.has(GROUP)
        assert not any(LABELS[0] in one for one in samples(metrics_of(place)))
        assert place.operator is not None
        assert place.operator.world.surveys.latest(ORDERS) is None


@pytest.mark.process
def test_rounds_are_counted_by_outcome_from_zero() -> None:
    looks = SurveyCache(lambda key: None, now=lambda: 0.0, timestamp=lambda: "")
    metrics = Metrics(ObjectCache(), looks, lambda kind: 4.0)
    done = metrics.done(GROUP)
    done("ok", 0.01)
    done("ok", 0.3)
    done("error", 7.0)
    shown = samples(metrics)
    group = ("kind", "LoadBalancedGroup")
    assert shown["lbg_operator_reconciles_total", group, ("outcome", "ok")] == 2
    assert shown["lbg_operator_reconciles_total", group, ("outcome", "error")] == 1
    assert shown["lbg_operator_reconciles_total", group, ("outcome", "retry")] == 0
    assert shown["lbg_operator_reconciles_total", ("kind", "Broker"), ("outcome", "ok")] == 0
    assert shown["lbg_operator_reconcile_seconds_count", group] == 3
    assert shown["lbg_operator_watch_silence_seconds", ("kind", "Broker")] == 4.0


@pytest.mark.process
@in_virtual_time
async def test_what_the_schedule_asks_for_is_shown() -> None:
    async with Place() as place:
        entry = {"minReplicas": 3, "from": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z"}
        await place.ready(scaling={"maxReplicas": 6, "schedule": [entry]})
        assert samples(metrics_of(place))["lbg_operator_group_scheduled_replicas", *LABELS] == 3
