"""The modes in which the broker itself shares the messages out, on a cluster."""

from __future__ import annotations

from e2e import stage
from e2e.kubectl import Kubectl, until
from e2e.test_life import begun, is_served, status

PODS = "lbg.dev/group=flights"
SESSIONS = "flights-lbg"


def live(shop: Kubectl) -> list[str]:
    return [one["session"] for one in status(shop).get("sessions", ()) if one["state"] == "live"]


def has_sessions(shop: Kubectl, count: int) -> bool:
    """All of them live, and nobody else's."""
    named = [f"{SESSIONS}-{ordinal}" for ordinal in range(count)]
    return live(shop) == named and len(status(shop)["sessions"]) == count


def shares(shop: Kubectl) -> list[int]:
    """Number of partitions of each member."""
    return [len(one["queues"]) for one in status(shop).get("members", ())]


def volumes(shop: Kubectl) -> int:
    return len(shop.select("pvc", PODS))


def test_sessions_come_live_through_a_rollout_and_end_before_their_consumers_go(shop: Kubectl) -> None:
    """Order in this mode is per session, not per key: messages of a key are in several."""
    begun(shop, stage.group("flights", mode="Sessions", queues=1, delay_ms=5, replicas=2), members=2)
    stage.judging(shop, "flights", idle_s=40)
    shop.apply(stage.publisher("flights", rows=15_000, rate_hz=150))
    shop("scale", "lbg/flights", "--replicas=4")
    until(lambda: has_sessions(shop, 4), what="four sessions")
    assert volumes(shop) == 4

    before = {one["metadata"]["uid"] for one in shop.select("pod", PODS)}
    shop.apply(stage.group("flights", mode="Sessions", queues=1, delay_ms=6, replicas=4))
    until(
        lambda: not before & {one["metadata"]["uid"] for one in shop.select("pod", PODS)},
        what="a new crew",
        timeout_s=240,
    )
    until(lambda: has_sessions(shop, 4), what="the same sessions again")

    shop("scale", "lbg/flights", "--replicas=1")
    until(lambda: len(shop.select("pod", PODS)) == 1, what="one consumer", timeout_s=180)
    until(lambda: has_sessions(shop, 1), what="one session")
    until(lambda: volumes(shop) == 1, what="the volumes of the others to be gone")
    assert stage.is_condition(shop, "lbg", "flights", "Scaled")
    shop("scale", "lbg/flights", "--replicas=2")
    until(lambda: has_sessions(shop, 2), what="a new session of a name that was there before")
    stage.published(shop)
    said = stage.verdict(shop, timeout_s=180)
    assert (said["distinct"], said["lost"], said["duplicated"]) == (15_000, 0, 0), said


def test_partitions_move_with_their_consumers_and_nothing_is_lost_repeated_or_out_of_order(
    shop: Kubectl,
) -> None:
    begun(shop, stage.group("flights", mode="Partitioned", queues=6, delay_ms=5, replicas=2), members=2)
    stage.judging(shop, "flights", idle_s=40)
    shop.apply(stage.publisher("flights", rows=9000, rate_hz=150))
    shop("scale", "lbg/flights", "--replicas=3")
    until(lambda: shares(shop) == [2, 2, 2], what="three members with two partitions each")
    assert {one["status"] for one in status(shop)["queues"]} == {"Ready"}
    shop("scale", "lbg/flights", "--replicas=2")
    until(lambda: is_served(shop, 2), what="two members that serve all partitions")
    stage.published(shop)
    said = stage.verdict(shop, timeout_s=180)
    assert (said["distinct"], said["lost"], said["order_errors"], said["duplicated"]) == (9000, 0, 0, 0), said


def test_message_groups_go_to_whoever_is_there_and_nothing_is_lost_repeated_or_out_of_order(
    shop: Kubectl,
) -> None:
    begun(shop, stage.group("flights", mode="MessageGroups", queues=1, delay_ms=5, replicas=2), members=2)
    stage.judging(shop, "flights", idle_s=40)
    shop.apply(stage.publisher("flights", rows=6000, rate_hz=150))
    for replicas in (4, 2):
        shop("scale", "lbg/flights", f"--replicas={replicas}")
        until(lambda count=replicas: is_served(shop, count), what=f"{replicas} members")
    stage.published(shop)
    said = stage.verdict(shop, timeout_s=180)
    assert (said["distinct"], said["lost"], said["order_errors"], said["duplicated"]) == (6000, 0, 0, 0), said
