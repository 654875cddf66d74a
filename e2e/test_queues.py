"""The number of queues changes by the manifest and by the consumers that are wanted, while messages come and go."""

from __future__ import annotations

import pytest

from e2e import stage
from e2e.kubectl import Kubectl, until
from e2e.test_broker_away import a_new_operator, reason
from e2e.test_life import begun, is_served, status

ROWS = 9000


def has_queues(shop: Kubectl, queues: int, *, members: int) -> bool:
    """True if all queues are there, each served by one of the members, and no key moves any more."""
    told = status(shop)
    served = sorted(queue for one in told.get("members", ()) for queue in one["queues"])
    is_whole = served == list(range(queues)) and told.get("queueCount", queues) == queues
    return (
        is_whole
        and reason(shop, "lbg", "flights", "Provisioned") == "Provisioned"
        and is_served(shop, members)
    )


@pytest.mark.parametrize("mode", ["Exclusive", "Partitioned"])
def test_another_number_of_queues_loses_repeats_and_reorders_nothing(shop: Kubectl, mode: str) -> None:
    """Up and down again, with an operator that is killed in the first change."""
    begun(shop, stage.group("flights", mode=mode, queues=4, delay_ms=5, replicas=2), members=2)
    stage.judging(shop, "flights", idle_s=40)
    shop.apply(stage.publisher("flights", rows=ROWS, rate_hz=120))
    pods = {one["metadata"]["uid"] for one in shop.select("pod", "lbg.dev/group=flights")}
    until(lambda: status(shop).get("activeCount") == 2, what="both at work")
    for queues in (8, 5):
        change = f'{{"spec": {{"queues": {{"count": {queues}}}}}}}'
        shop("patch", "lbg", "flights", "--type=merge", "-p", change)
        if queues == 8:
            a_new_operator()
        until(lambda count=queues: has_queues(shop, count, members=2), what=f"{queues} queues")
    stage.published(shop)
    said = stage.verdict(shop, timeout_s=180)
    assert (said["distinct"], said["lost"], said["order_errors"], said["duplicated"]) == (ROWS, 0, 0, 0), said
    assert {one["metadata"]["uid"] for one in shop.select("pod", "lbg.dev/group=flights")} == pods


def test_queues_are_doubled_for_consumers_that_are_wanted_and_nothing_is_lost_repeated_or_out_of_order(
    shop: Kubectl,
) -> None:
    group = stage.group("flights", queues=2, delay_ms=5, replicas=2)
    group["spec"]["queues"]["max"] = 8
    begun(shop, group, members=2)
    stage.judging(shop, "flights", idle_s=40)
    shop.apply(stage.publisher("flights", rows=ROWS, rate_hz=120))
    for wanted, queues in ((3, 4), (5, 8)):
        shop("scale", "lbg/flights", f"--replicas={wanted}")
        until(
            lambda count=queues, members=wanted: has_queues(shop, count, members=members),
            what=f"{queues} queues for {wanted} consumers",
        )
        assert reason(shop, "lbg", "flights", "QueuesScaled") == "QueuesRaised"
    shop("scale", "lbg/flights", "--replicas=2")
    until(lambda: has_queues(shop, 8, members=2), what="two members with as many queues")
    stage.published(shop)
    said = stage.verdict(shop, timeout_s=180)
    assert (said["distinct"], said["lost"], said["order_errors"], said["duplicated"]) == (ROWS, 0, 0, 0), said
