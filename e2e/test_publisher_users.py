"""A user of its own for the publishers of a group, on a cluster."""

from __future__ import annotations

from e2e import stage
from e2e.kubectl import Kubectl, until
from e2e.test_broker_away import workloads
from e2e.test_life import begun

ROWS = 500


def is_applied(shop: Kubectl) -> bool:
    """True if the group is ready as its latest manifest has it."""
    seen = shop.get("lbg", "flights")
    ready = stage.condition(seen, "Ready")
    is_latest = ready.get("observedGeneration") == seen["metadata"]["generation"]
    return is_latest and ready.get("status") == "True"


def published_by(shop: Kubectl, *, apart: bool) -> bool:
    """True if the publisher of one login was accepted; False if the broker refused it."""
    shop.apply(stage.publisher("flights", rows=ROWS, apart=apart))
    until(
        lambda: shop.get("pod", "publisher")["status"].get("phase") in stage.ENDED,
        what="the end of the publisher",
    )
    is_accepted = shop.get("pod", "publisher")["status"]["phase"] == "Succeeded"
    said = shop("logs", "publisher")
    shop("delete", "pod", "publisher", "--wait=true")
    assert is_accepted or "may not publish" in said, said
    return is_accepted


def test_publishers_move_to_a_user_of_their_own_and_no_consumer_is_replaced(shop: Kubectl) -> None:
    begun(shop, stage.group("flights", replicas=2, republish=False, publisherUser="Shared"), members=2)
    before = workloads(shop)
    assert published_by(shop, apart=False)

    change = ("patch", "loadbalancedgroup", "flights", "--type=merge", "-p")
    shop(*change, '{"spec": {"publisherUser": "Additional"}}')
    until(
        lambda: shop.get("lbg", "flights")["status"].get("publisherSecretName") == "flights-lbg-publisher",
        what="the Secret of the publishers",
    )
    until(lambda: is_applied(shop), what="the manifest to be applied")
    assert published_by(shop, apart=True)
    assert published_by(shop, apart=False)

    shop(*change, '{"spec": {"publisherUser": "Exclusive"}}')
    until(lambda: is_applied(shop), what="the manifest to be applied")
    assert published_by(shop, apart=True)
    assert not published_by(shop, apart=False)
    until(lambda: stage.waiting(shop, "flights") == 0, what="everything to be consumed")
    assert {**workloads(shop), "generations": None} == {**before, "generations": None}
