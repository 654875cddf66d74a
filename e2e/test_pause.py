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


def test_publishers_wait_while_ingress_is_paused(shop: Kubectl) -> None:
    begun(shop, stage.group("flights", replicas=2, republish=False), members=2)
    change = ("patch", "loadbalancedgroup", "flights", "--type=merge", "-p")
    shop(*change, '{"spec": {"ingress": "Paused"}}')
    until(lambda: shop.get("lbg", "flights")["status"].get("ingress") == "Paused", what="the pause")
    shop.apply(stage.publisher("flights", rows=ROWS, apart=False))
    paused = "is paused; messages wait in order"
    until(
        lambda: (
            shop.get("pod", "publisher")["status"].get("phase") == "Running"
            and paused in shop("logs", "publisher")
        ),
        what="the publisher to wait",
    )
    shop(*change, '{"spec": {"ingress": "Open"}}')
    until(lambda: shop.get("lbg", "flights")["status"].get("ingress") == "Open", what="its end")
    until(
        lambda: shop.get("pod", "publisher")["status"].get("phase") in stage.ENDED,
        what="the end of the publisher",
    )
    assert shop.get("pod", "publisher")["status"]["phase"] == "Succeeded", shop("logs", "publisher")
    until(lambda: stage.waiting(shop, "flights") == 0, what="everything to be consumed")
