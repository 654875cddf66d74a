"""Consumers that are lost, by «Message Distribution With Partitioned Queues»."""

from __future__ import annotations

import pytest

from testing.broker_core.partitioned_world import DELAY_S, PartitionedWorld
from testing.broker_core.world import numbered


class TestConsumerLoss:
    """The four outcomes, and what tells them apart: whether the consumer names what it had, and when it returns."""

    @staticmethod
    def lost() -> tuple[PartitionedWorld, list[int]]:
        world = PartitionedWorld(4)
        world.start("a", "b")
        had = world.partitions_of("b")
        world.lose("b")
        for partition in had:
            world.send(partition, b"m")
        return world, had

    def test_who_reconnects_with_its_mapping_before_the_timer_expires_goes_on_at_once(self) -> None:
        world, had = self.lost()
        world.pass_time(DELAY_S - 0.1)
        returned = world.join("another tag", claim=had)
        assert returned.bodies() == [b"m", b"m"]
        assert world.partitions_of("another tag") == had
        assert world.status == "Ready"
        world.pass_time(60)
        assert world.handoffs["total"] == 0
        assert world.partitions_of("another tag") == had

    def test_who_reconnects_under_its_tag_before_the_timer_expires_goes_on_at_once(self) -> None:
        world, had = self.lost()
        assert world.join("b").bodies() == [b"m", b"m"]
        assert (world.partitions_of("b"), world.status) == (had, "Ready")

    def test_who_returns_with_a_part_of_its_mapping_is_known_by_it(self) -> None:
        world, had = self.lost()
        world.join("c", claim=had[1:])
        assert world.partitions_of("c") == had

    def test_who_restarts_and_returns_before_the_timer_expires_waits_for_it_as_a_new_one(self) -> None:
        world, had = self.lost()
        returned = world.join("c")
        assert world.status == "HoldDown"
        assert [world.statuses[partition] for partition in had] == ["Unbound", "Unbound"]
        world.pass_time(DELAY_S - 0.1)
        assert returned.bodies() == []
        world.pass_time(0.1)
        assert returned.bodies() == [b"m", b"m"]
        assert world.loads == {"a": 2, "c": 2}
        assert world.handoffs["total"] == 0

    def test_an_empty_mapping_says_that_it_has_no_history_whatever_its_tag(self) -> None:
        world, _ = self.lost()
        world.join("b", claim=[])
        assert world.status == "HoldDown"

    @pytest.mark.parametrize("names_it", [True, False])
    def test_who_returns_after_the_timer_expired_sets_off_a_second_rebalance(self, names_it: bool) -> None:
        world, had = self.lost()
        world.pass_time(DELAY_S)
        assert world.loads == {"a": 4}
        returned = world.join("b", claim=had if names_it else None)
        assert world.status == "HoldDown"
        assert returned.bodies() == []
        world.names["a"].ack(0, multiple=True)
        world.pass_time(DELAY_S)
        assert world.loads == {"a": 2, "b": 2}
        assert world.handoffs["total"] == 2

    def test_the_partitions_of_who_never_returns_go_to_those_that_are_there(self) -> None:
        world, _ = self.lost()
        world.pass_time(DELAY_S)
        assert world.names["a"].bodies() == [b"m", b"m"]
        assert (world.loads, world.status) == ({"a": 4}, "Ready")

    def test_with_nobody_there_they_are_unassigned_after_the_delay(self) -> None:
        world, _ = self.lost()
        world.lose("a")
        assert world.statuses == ["Unbound"] * 4
        world.pass_time(DELAY_S)
        assert (world.statuses, world.status) == (["Unassigned"] * 4, "Ready")

    def test_a_cancelled_consumer_is_lost_too(self) -> None:
        world = PartitionedWorld(4)
        world.start("a", "b")
        world.names["b"].cancel("b")
        assert world.statuses.count("Unbound") == 2

    def test_two_that_are_lost_together_each_get_their_own_back(self) -> None:
        world = PartitionedWorld(4)
        world.start("a", "b")
        mine = {name: world.partitions_of(name) for name in ("a", "b")}
        world.lose("a")
        world.lose("b")
        world.join("b2", claim=mine["b"])
        world.join("a2", claim=mine["a"])
        assert world.partitions_of("a2") == mine["a"]
        assert world.partitions_of("b2") == mine["b"]

    def test_what_was_given_out_comes_again_in_its_place_marked_as_redelivered(self) -> None:
        world = PartitionedWorld(1)
        world.start("a", prefetch=2)
        world.send(0, *numbered(4))
        world.lose("a")
        returned = world.join("a", claim=[0])
        assert [(d.body, d.redelivered) for d in returned.take()] == [
            (b"0", True),
            (b"1", True),
            (b"2", False),
            (b"3", False),
        ]


def test_a_partition_whose_flow_was_cancelled_waits_for_what_is_still_held_before_it_goes_on() -> None:
    world = PartitionedWorld(1)
    (former,) = world.start("a", prefetch=2)
    world.send(0, *numbered(4))
    former.cancel("a")
    returned = world.join("a2", claim=[0])
    assert (world.statuses, returned.bodies()) == (["Paused"], [])
    former.ack(1)
    assert returned.bodies() == []
    former.ack(2)
    assert returned.bodies() == [b"2", b"3"]


def test_a_partition_that_stays_after_all_waits_for_what_a_cancelled_consumer_still_holds() -> None:
    world = PartitionedWorld(2, **{"x-rebalance-delay": 100})
    (former,) = world.start("a")
    world.send(1, b"first")
    assert former.bodies() == [b"first"]
    former.cancel("a")
    returned = world.join("a2", claim=[0, 1])
    world.send(1, b"second")
    joined = world.join("b")
    world.pass_time(0.1)  # partition 1 is to go to b
    joined.cancel("b")
    assert world.tags == ["a2", "a2"]
    assert (world.statuses, returned.bodies()) == (["Ready", "Paused"], [])
    former.ack(1)
    assert returned.bodies() == [b"second"]
