"""Rebalance delay and max handoff time, by «Configuring Partitioned Queues»."""

from __future__ import annotations

from testing.broker_core.partitioned_world import DELAY_S, HANDOFF_S, PartitionedWorld


class TestRebalanceDelay:
    """Five seconds by default, for the number of consumers to settle; if it is what it was, nothing moves."""

    def test_is_five_seconds(self) -> None:
        world = PartitionedWorld(2)
        world.join("a")
        world.pass_time(4.99)
        assert world.statuses == ["Unassigned", "Unassigned"]
        world.pass_time(0.02)
        assert world.statuses == ["Ready", "Ready"]

    def test_is_what_the_queue_says(self) -> None:
        world = PartitionedWorld(2, **{"x-rebalance-delay": 250})
        world.join("a")
        world.pass_time(0.24)
        assert world.status == "HoldDown"
        world.pass_time(0.02)
        assert world.status == "Ready"

    def test_may_be_none_at_all(self) -> None:
        world = PartitionedWorld(2, **{"x-rebalance-delay": 0})
        world.join("a")
        world.pass_time(0)
        assert world.partitions_of("a") == [0, 1]

    def test_runs_from_the_first_change_so_that_later_ones_cannot_put_it_off_for_ever(self) -> None:
        world = PartitionedWorld(4)
        world.join("a")
        world.pass_time(3)
        world.join("b")
        world.pass_time(2)
        assert world.loads == {"a": 2, "b": 2}

    def test_moves_nothing_when_a_consumer_comes_and_goes(self) -> None:
        world = PartitionedWorld(4)
        world.start("a", "b")
        before = world.tags
        world.join("c")
        assert world.status == "HoldDown"
        world.pass_time(DELAY_S - 1)
        world.lose("c")
        assert world.status == "Ready"
        world.pass_time(60)
        assert world.tags == before
        assert world.handoffs["total"] == 0

    def test_moves_nothing_when_a_consumer_goes_and_another_comes(self) -> None:
        world = PartitionedWorld(4)
        world.start("a", "b")
        kept = world.partitions_of("a")
        world.lose("b")
        world.join("c")
        world.pass_time(DELAY_S)
        assert world.partitions_of("a") == kept
        assert world.loads == {"a": 2, "c": 2}
        assert world.handoffs["total"] == 0

    def test_begins_anew_after_the_number_was_back(self) -> None:
        world = PartitionedWorld(4)
        world.start("a")
        world.join("b")
        world.pass_time(4)
        world.lose("b")
        world.join("b")
        world.pass_time(4)
        assert world.status == "HoldDown"
        world.pass_time(1)
        assert world.loads == {"a": 2, "b": 2}


class TestMaxHandoffTime:
    """Three seconds by default for outstanding acknowledgements; with none the handoff is at once."""

    def test_is_three_seconds(self) -> None:
        world = PartitionedWorld(2)
        world.start("a")
        world.send_each(b"m")
        world.join("b")
        world.pass_time(DELAY_S)
        assert world.statuses == ["Ready", "Paused"]
        world.pass_time(HANDOFF_S - 0.01)
        assert world.statuses == ["Ready", "Paused"]
        world.pass_time(0.02)
        assert world.tags == ["a", "b"]
        assert world.handoffs == {"total": 1, "forced": 1, "messages_forced": 1}

    def test_is_what_the_queue_says(self) -> None:
        world = PartitionedWorld(2, **{"x-max-handoff-time": 100})
        world.start("a")
        world.send_each(b"m")
        world.join("b")
        world.pass_time(DELAY_S)
        assert world.tags == ["a", "a"]
        world.pass_time(0.1)
        assert world.tags == ["a", "b"]

    def test_is_not_waited_for_without_outstanding_messages(self) -> None:
        world = PartitionedWorld(2)
        world.start("a")
        world.join("b")
        world.pass_time(DELAY_S)
        assert world.tags == ["a", "b"]
        assert world.handoffs == {"total": 1, "forced": 0, "messages_forced": 0}
