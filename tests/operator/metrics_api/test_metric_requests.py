"""Answers to requests for a metric, without HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from lbg_operator.errors import MetricUnknown
from lbg_operator.metrics_api.metrics import Answer, metric_values
from testing.operator.metric_reader import HANGS, Lags

NOW = datetime(2026, 3, 1, 12, 30, 15, 999_999, tzinfo=UTC)


async def ask(lags: Lags, selector: str, *, metric: str = "lbg_group_lag", now: datetime = NOW) -> Answer:
    return await metric_values(lags, "shop", metric, selector, now=now, within_s=0.02)


def status(answer: Answer) -> tuple[int, Any]:
    assert (answer.body["kind"], answer.body["apiVersion"], answer.body["status"]) == (
        "Status",
        "v1",
        "Failure",
    )
    assert answer.body["code"] == answer.status
    return answer.status, answer.body["reason"]


async def test_a_lag_is_a_list_of_one_value() -> None:
    answer = await ask(Lags({("shop", "orders"): 1234567}), "group=orders")
    assert answer.status == 200
    assert answer.body == {
        "kind": "ExternalMetricValueList",
        "apiVersion": "external.metrics.k8s.io/v1beta1",
        "metadata": {},
        "items": [
            {
                "metricName": "lbg_group_lag",
                "metricLabels": {"group": "orders"},
                "timestamp": "2026-03-01T12:30:15Z",
                "value": "1234567",
            }
        ],
    }


async def test_the_time_is_told_in_utc() -> None:
    east = NOW.astimezone(timezone(timedelta(hours=9)))
    (item,) = (await ask(Lags({("shop", "orders"): 1}), "group=orders", now=east)).body["items"]
    assert item["timestamp"] == "2026-03-01T12:30:15Z"


async def test_each_metric_is_read_and_a_part_is_a_quantity() -> None:
    for told, value in ((9, "9"), (8.01, "8010m"), (0.5, "500m")):
        answer = await ask(
            Lags({("shop", "orders"): told}), "group=orders", metric="lbg_group_wanted_replicas"
        )
        (item,) = answer.body["items"]
        assert (item["metricName"], item["value"]) == ("lbg_group_wanted_replicas", value)


async def test_no_messages_are_a_lag_of_zero() -> None:
    (item,) = (await ask(Lags({("shop", "orders"): 0}), "group=orders")).body["items"]
    assert item["value"] == "0"


async def test_each_group_that_is_asked_for_has_a_value() -> None:
    answer = await ask(Lags({("shop", "a"): 1, ("shop", "b"): 2}), "group in (b,a)")
    assert [(one["metricLabels"]["group"], one["value"]) for one in answer.body["items"]] == [
        ("a", "1"),
        ("b", "2"),
    ]


@pytest.mark.parametrize("selector", ["group=orders", "group in (other,orders)"])
async def test_an_unknown_lag_is_an_error_also_beside_known_ones(selector: str) -> None:
    lags = Lags({("shop", "orders"): MetricUnknown("queue 3 could not be counted"), ("shop", "other"): 5})
    answer = await ask(lags, selector)
    assert status(answer) == (503, "ServiceUnavailable")
    assert answer.body["message"] == "queue 3 could not be counted"


async def test_a_broker_that_hangs_is_not_waited_for() -> None:
    answer = await ask(Lags({("shop", "orders"): HANGS}), "group=orders")
    assert status(answer) == (503, "ServiceUnavailable")
    assert answer.body["message"] == "the broker of group shop/orders has not returned the lag within 0.02 s"


async def test_a_group_that_is_not_there_is_not_found() -> None:
    answer = await ask(Lags({("elsewhere", "orders"): 3}), "group=orders")
    assert status(answer) == (404, "NotFound")
    assert answer.body["message"] == 'there is no LoadBalancedGroup "orders" in namespace "shop"'


async def test_a_selector_that_no_group_can_match_is_no_empty_list() -> None:
    assert status(await ask(Lags({("shop", "orders"): 3}), "group=orders,team=red")) == (404, "NotFound")


async def test_another_metric_is_not_found() -> None:
    answer = await ask(Lags({("shop", "orders"): 3}), "group=orders", metric="queue_length")
    assert status(answer) == (404, "NotFound")
    assert (
        answer.body["message"]
        == 'there is no metric "queue_length" here, only lbg_group_lag and lbg_group_wanted_replicas'
    )


@pytest.mark.parametrize("selector", ["", "group", "group=orders,", "group in orders"])
async def test_a_selector_that_cannot_be_followed_is_a_bad_request(selector: str) -> None:
    assert status(await ask(Lags({("shop", "orders"): 3}), selector)) == (400, "BadRequest")


async def test_a_fault_of_ours_is_not_taken_for_a_lag() -> None:
    with pytest.raises(ZeroDivisionError):
        await ask(Lags({("shop", "orders"): ZeroDivisionError()}), "group=orders")
