"""A paused group on a cluster: nothing is processed meanwhile, and no consumer is replaced."""

from __future__ import annotations

import time

from e2e import stage
from e2e.kubectl import Kubectl, until
from e2e.test_broker_away import workloads
from e2e.test_life import begun
from e2e.test_publisher_users import ROWS, is_applied, published_by

STILL_S = 8.0


def test_a_paused_group_processes_nothing_until_it_is_resumed(shop: Kubectl) -> None:
    begun(shop, stage.group("flights", replicas=2, republish=False), members=2)
    before = workloads(shop)
    change = ("patch", "loadbalancedgroup", "flights", "--type=merge", "-p")

    shop(*change, '{"spec": {"paused": true}}')
    until(lambda: shop.get("lbg", "flights")["status"].get("paused") is True, what="the pause")
    assert published_by(shop, apart=False)
    end = time.monotonic() + STILL_S
    while time.monotonic() < end:
        assert stage.waiting(shop, "flights") == ROWS

    shop(*change, '{"spec": {"paused": false}}')
    until(lambda: is_applied(shop), what="the manifest to be applied")
    until(lambda: stage.waiting(shop, "flights") == 0, what="everything to be consumed")
    assert not shop.get("lbg", "flights")["status"].get("paused")
    assert {**workloads(shop), "generations": None} == {**before, "generations": None}
