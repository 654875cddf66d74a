"""Keys whose messages fail are parked, and given back when the application is repaired."""

from __future__ import annotations

import gzip

from e2e import stage
from e2e.kubectl import Kubectl, Object, until
from e2e.test_broker_away import reason
from e2e.test_life import begun, is_served, status
from e2e.test_publisher_users import is_applied

ROWS = 500


def group(*, fails: str, when_exhausted: str) -> Object:
    made = stage.group("flights", fails=fails, replicas=2, republish=False)
    made["spec"]["consumer"]["app"] |= {"whenExhausted": when_exhausted, "maxAttempts": 2}
    return made


def first_key() -> tuple[str, int]:
    """Aircraft of the first row of the sample, and how many of the rows that are published are of it."""
    with gzip.open(stage.SAMPLE, "rt") as file:
        column = file.readline().rstrip().split(",").index("tailnum")
        keys = [file.readline().rstrip().split(",")[column] for _ in range(ROWS)]
    return keys[0], keys.count(keys[0])


def test_a_group_that_ran_gets_parking_at_zero_replicas_parks_a_key_and_gives_it_back(shop: Kubectl) -> None:
    key, messages = first_key()
    begun(shop, group(fails=key, when_exhausted="Block"), members=2)
    shop.apply(group(fails=key, when_exhausted="Park"))
    until(
        lambda: reason(shop, "lbg", "flights", "Provisioned") == "MembersRunning",
        what="the members in the way",
    )
    shop("scale", "lbg/flights", "--replicas=0")
    until(lambda: reason(shop, "lbg", "flights", "KeysParked") == "NoKeysParked", what="the parking queue")
    shop("wait", "--for=condition=Provisioned", "lbg/flights", "--timeout=60s")
    shop("scale", "lbg/flights", "--replicas=2")
    until(lambda: is_applied(shop), what="the consumers to be back")

    shop.apply(stage.publisher("flights", rows=ROWS))
    stage.published(shop)
    until(lambda: reason(shop, "lbg", "flights", "KeysParked") == "AwaitingRelease", what="a parked key")
    until(lambda: status(shop).get("lag") == 0, what="all others to be consumed")
    said = f"1 parked key with {messages} message"
    until(
        lambda: said in stage.condition(shop.get("lbg", "flights"), "KeysParked")["message"],
        what="all messages of the key to be parked",
    )

    before = {one["name"] for one in status(shop)["members"]}
    shop.apply(group(fails="", when_exhausted="Park"))
    until(lambda: not before & {one["name"] for one in status(shop).get("members", ())}, what="a new crew")
    until(lambda: is_served(shop, 2), what="the repaired application")
    shop.apply(stage.release(shop.namespace, "flights"))
    stage.succeeded(shop, "release")
    until(lambda: reason(shop, "lbg", "flights", "KeysParked") == "NoKeysParked", what="no parked key")
    assert not status(shop).get("lag")
