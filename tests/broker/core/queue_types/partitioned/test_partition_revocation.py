"""A partition moves from a consumer that knows basic.revoke: it is asked for what it has not begun, and told of what is
taken."""

from __future__ import annotations

import pytest

from lbg_core.amqp.methods import BasicRevoke, BasicRevokeOk
from testing.broker_core.partitioned_world import DELAY_S, HANDOFF_S, PartitionedWorld
from testing.broker_core.world import Client, numbered

MOVING = (2, 3, 4, 5)
"""The delivery tags of partition 1 at its former consumer."""


def moving(*, prefetch: int = 0, also: int = 0, **arguments: int) -> tuple[PartitionedWorld, Client, Client]:
    """Partition 1 is on its way from a, which holds messages of both partitions, to b. `also`: messages behind those
    that a holds."""
    world = PartitionedWorld(2, **arguments)
    (former,) = world.start("a", prefetch=prefetch, revocable=True)
    world.send(0, b"kept")
    world.send(1, *numbered(4 + also))
    successor = world.join("b", revocable=True)
    assert former.said(BasicRevoke) == []
    world.pass_time(DELAY_S)
    assert world.statuses == ["Ready", "Paused"]
    return world, former, successor


def answer(client: Client, *tags: int, taken: bool = False) -> None:
    client.say(BasicRevokeOk(taken, tags))


def test_who_holds_messages_of_a_paused_partition_is_asked_for_them_once() -> None:
    world, former, successor = moving()
    assert former.said(BasicRevoke) == [BasicRevoke("a", False, MOVING)]
    former.ack(2)
    world.join("c")
    world.pass_time(HANDOFF_S / 2)
    assert len(former.said(BasicRevoke)) == 1
    assert successor.said(BasicRevoke) == []


def test_what_comes_back_goes_to_the_successor_when_the_last_of_it_is_there() -> None:
    world, former, successor = moving()
    for tag in (5, 4, 3):
        former.nack(tag)
    answer(former, *MOVING)
    assert successor.bodies() == []
    assert world.statuses == ["Ready", "Paused"]
    former.ack(2)
    assert successor.bodies() == [b"1", b"2", b"3"]
    assert world.handoffs == {"total": 1, "forced": 0, "messages_forced": 0}
    assert world.status == "Ready"


def test_what_runs_on_at_the_limit_is_taken_and_counted() -> None:
    world, former, successor = moving()
    for tag in (3, 4, 5):
        former.nack(tag)
    answer(former, *MOVING)
    world.pass_time(HANDOFF_S)
    assert former.said(BasicRevoke)[1:] == [BasicRevoke("a", True, (2,))]
    assert successor.bodies() == list(numbered(4))
    assert world.handoffs == {"total": 1, "forced": 1, "messages_forced": 1}


@pytest.mark.parametrize("how", ["ack", "nack", "multiple"])
def test_a_verdict_that_crosses_the_taking_does_nothing(how: str) -> None:
    world, former, successor = moving()
    world.pass_time(HANDOFF_S)
    successor.take()
    if how == "nack":
        former.nack(5)
    else:
        former.ack(5, multiple=how == "multiple")
    answer(former, *MOVING, taken=True)
    assert former.refusal is None
    assert successor.bodies() == []
    assert world.queue().lines[1].outstanding == 4


def test_the_answer_to_the_taking_makes_room_without_a_verdict() -> None:
    world, former, _ = moving(prefetch=5)
    world.pass_time(HANDOFF_S)
    world.send(0, b"next")
    assert former.bodies()[5:] == []
    answer(former, *MOVING, taken=True)
    assert former.bodies() == [b"next"]


def test_a_verdict_after_that_answer_is_an_error() -> None:
    world, former, _ = moving()
    world.pass_time(HANDOFF_S)
    answer(former, *MOVING, taken=True)
    former.ack(2)
    assert former.refusal is not None
    assert former.refusal[0] == 406


def test_a_partition_that_stays_after_all_waits_for_the_answer_and_no_longer() -> None:
    """Else the consumer would get what is behind before what it gives back."""
    world, former, _ = moving(prefetch=5, also=2)
    former.ack(1)
    former.take()
    world.lose("b")
    assert former.bodies() == []
    for tag in (3, 4, 5):
        former.nack(tag)
    world.commit()
    assert former.bodies() == []
    answer(former, *MOVING)
    assert former.bodies() == [b"1", b"2", b"3", b"4"]
    assert world.statuses[1] == "Ready"
    former.ack(2)
    world.commit()
    assert former.bodies() == [b"5"]


def test_it_waits_no_longer_than_a_handoff_for_an_answer_that_does_not_come() -> None:
    world, former, _ = moving()
    world.lose("b")
    world.pass_time(HANDOFF_S)
    assert former.said(BasicRevoke)[1:] == [BasicRevoke("a", True, MOVING)]
    assert former.bodies()[5:] == list(numbered(4))
    assert world.statuses[1] == "Ready"


def test_a_partition_that_was_to_stay_goes_to_the_next_who_comes() -> None:
    world, former, _ = moving(**{"x-max-handoff-time": 10_000})
    world.lose("b")
    other = world.join("c", revocable=True)
    world.pass_time(DELAY_S)
    assert world.statuses[1] == "Paused"
    former.nack(5, multiple=True)
    answer(former, *MOVING)
    world.commit()
    assert [body for body in other.bodies() if body != b"kept"] == list(numbered(4))


def test_partitions_that_are_removed_with_what_is_in_them_are_taken_at_once() -> None:
    world, former, _ = moving()
    world.act("ingress", open=False)
    world.act("repartition", count=1, discard=True)
    assert former.said(BasicRevoke)[1:] == [BasicRevoke("a", True, MOVING)]


def test_who_does_not_know_the_word_is_asked_nothing_and_loses_it_at_the_limit() -> None:
    world = PartitionedWorld(2)
    (former,) = world.start("a")
    world.send(1, *numbered(4))
    successor = world.join("b", revocable=True)
    world.pass_time(DELAY_S + HANDOFF_S)
    assert former.said(BasicRevoke) == []
    assert successor.bodies() == list(numbered(4))
    former.ack(4, multiple=True)
    assert former.refusal is None


def test_an_answer_to_nothing_means_nothing() -> None:
    world, former, _ = moving()
    answer(former, 1, 99)
    answer(former, 1, 99, taken=True)
    assert former.refusal is None
    assert world.statuses == ["Ready", "Paused"]
    assert world.queue().lines[0].outstanding == 1


# Who names its partitions (x-partitions) gets the place of a consumer that went


def test_who_claims_partitions_has_their_place_and_is_asked_for_what_moves_on_from_it() -> None:
    world = PartitionedWorld(2)
    world.start("a", revocable=True)
    world.send(0, b"kept")
    world.send(1, *numbered(4))
    world.lose("a")
    heir = world.join("heir", claim=[0, 1], revocable=True)
    assert world.partitions_of("heir") == [0, 1]
    assert len(heir.take()) == 5
    successor = world.join("b", claim=[1], revocable=True)
    assert world.partitions_of("b") == [], "a claim takes nothing from a live consumer"
    assert heir.said(BasicRevoke) == []
    world.pass_time(DELAY_S)
    (asked,) = heir.said(BasicRevoke)
    assert asked == BasicRevoke("heir", False, MOVING)
    for tag in MOVING:
        heir.nack(tag)
    answer(heir, *MOVING)
    assert successor.bodies() == list(numbered(4))
    assert world.handoffs == {"total": 1, "forced": 0, "messages_forced": 0}


def test_a_claim_of_what_a_cancelled_consumer_still_holds_waits_for_it_and_takes_it_at_the_limit() -> None:
    world = PartitionedWorld(1)
    (former,) = world.start("a", revocable=True)
    world.send(0, b"1", b"2")
    former.cancel("a")
    heir = world.join("heir", claim=[0], revocable=True)
    assert world.partitions_of("heir") == [0]
    assert heir.bodies() == []
    former.ack(1)
    assert heir.bodies() == []
    world.pass_time(HANDOFF_S)
    assert former.said(BasicRevoke)[-1] == BasicRevoke("a", True, (2,))
    assert heir.bodies() == [b"2"]
    former.ack(2)
    assert former.refusal is None
    assert world.handoffs["messages_forced"] == 1
