"""A partition moves: paused, drained or taken back, and gone on with in the same turn."""

from __future__ import annotations

from typing import Any

import pytest

from lbg_broker.core.queue_types.partitioned import described
from lbg_core.amqp.methods import BasicQos, BasicRecover, BasicReject, QueueDelete, QueuePurge, QueuePurgeOk
from testing.broker_core.partitioned_world import DELAY_S, HANDOFF_S, PartitionedWorld
from testing.broker_core.world import Client, numbered


def moving(prefetch: int = 0, **arguments: Any) -> tuple[PartitionedWorld, Client, Client]:
    """Partition 1 is on its way from a, which holds messages of both partitions, to b."""
    world = PartitionedWorld(2, **arguments)
    (former,) = world.start("a", prefetch=prefetch)
    world.send(0, b"kept")
    world.send(1, *numbered(4))
    successor = world.join("b")
    world.pass_time(DELAY_S)
    assert world.statuses == ["Ready", "Paused"]
    return world, former, successor


def forced(prefetch: int = 0) -> tuple[PartitionedWorld, Client, Client]:
    """The same after the limit was hit: b has what was a's."""
    world, former, successor = moving(prefetch)
    world.pass_time(HANDOFF_S)
    assert world.tags == ["a", "b"]
    return world, former, successor


def test_a_drained_partition_goes_on_in_the_turn_of_its_last_ack() -> None:
    world, former, successor = moving()
    world.send(1, b"next")
    former.ack(4, multiple=True)
    assert successor.bodies() == []
    former.ack(5)
    assert successor.bodies() == [b"next"]
    assert world.status == "Ready"
    assert world.handoffs == {"total": 1, "forced": 0, "messages_forced": 0}


def test_the_time_of_a_handoff_is_told_of_the_partition_that_moved() -> None:
    def times(world: PartitionedWorld) -> list[float | None]:
        return [one["last_handoff_seconds"] for one in described(world.queue().policy)["partitions"]]

    world, former, _ = moving()
    assert times(world) == [None, None]
    world.pass_time(HANDOFF_S / 4)
    assert times(world) == [None, None]
    former.ack(5, multiple=True)
    assert times(world) == [None, pytest.approx(HANDOFF_S / 4)]
    world, _, _ = forced()
    assert times(world) == [None, pytest.approx(HANDOFF_S)]


def test_messages_that_leave_a_partition_are_counted_over_handoffs_and_purges() -> None:
    def counts(world: PartitionedWorld) -> list[int]:
        return [one["messages_settled"] for one in described(world.queue().policy)["partitions"]]

    world, former, successor = moving()
    assert counts(world) == [0, 0]
    former.ack(3, multiple=True)
    assert counts(world) == [1, 2]
    former.close()
    assert counts(world) == [1, 2], "what is given back is not settled"
    world.send(1, b"more")
    successor.ack(1, multiple=True)
    assert counts(world) == [1, 3]


def test_only_the_partition_that_moves_is_waited_for() -> None:
    world, former, successor = moving()
    for tag in range(2, 6):
        former.ack(tag)
    world.send_each(b"next")
    assert successor.bodies() == [b"next"]
    assert former.bodies()[-1] == b"next"
    assert world.queue().messages_unacknowledged == 3


@pytest.mark.parametrize("how", ["nack", "reject", "recover", "close", "lose"])
def test_what_is_given_back_goes_to_the_successor_first_and_at_once(how: str) -> None:
    world, former, successor = moving()
    world.send(1, b"4")
    match how:
        case "nack":
            former.nack(5, multiple=True)
        case "reject":
            for tag in range(2, 6):
                former.say(BasicReject(tag, True))
        case "recover":
            former.say(BasicRecover(True))
        case "close":
            former.close()
        case "lose":
            world.lose("a")
    assert [(d.body, d.redelivered) for d in successor.take()] == [
        *((body, True) for body in numbered(4)),
        (b"4", False),
    ]


def test_what_is_refused_for_good_makes_way_too() -> None:
    world, former, successor = moving()
    former.nack(5, multiple=True, requeue=False)
    world.send(1, b"next")
    assert successor.bodies() == [b"next"]


def test_a_consumer_without_acks_holds_nothing() -> None:
    world = PartitionedWorld(2)
    world.start("a", no_ack=True)
    world.send_each(b"m")
    world.join("b")
    world.pass_time(DELAY_S)
    assert world.tags == ["a", "b"]


def test_a_purge_leaves_what_is_held_and_the_handoff_waits_for_that() -> None:
    world, former, _ = moving()
    world.send(1, b"purged")
    answer = world.administer(QueuePurge("q"))
    assert isinstance(answer, QueuePurgeOk)
    assert answer.message_count == 1
    assert world.statuses == ["Ready", "Paused"]
    former.ack(0, multiple=True)
    assert world.tags == ["a", "b"]


class TestForced:
    """The limit is hit: the former consumer's messages return to their places, and its word on them counts no more."""

    def test_the_successor_gets_everything_in_order(self) -> None:
        world, _, successor = forced()
        world.send(1, b"4")
        assert [(d.body, d.redelivered) for d in successor.take()] == [
            *((body, True) for body in numbered(4)),
            (b"4", False),
        ]
        assert world.handoffs == {"total": 1, "forced": 1, "messages_forced": 4}

    @pytest.mark.parametrize("multiple", [False, True])
    def test_a_late_ack_is_ignored_and_closes_nothing(self, multiple: bool) -> None:
        world, former, successor = forced()
        former.ack(5, multiple=multiple)
        assert former.refusal is None
        assert world.queue().lines[1].outstanding == 4
        assert world.queue().lines[0].outstanding == (0 if multiple else 1)
        successor.ack(0, multiple=True)
        assert world.queue().lines[1].outstanding == 0

    def test_a_late_refusal_is_ignored_too(self) -> None:
        world, former, successor = forced()
        former.nack(2, requeue=True)
        former.say(BasicReject(3, False))
        assert former.refusal is None
        assert successor.bodies() == list(numbered(4))
        assert world.queue().lines[1].outstanding == 4

    def test_a_second_late_ack_is_an_error_as_any_other(self) -> None:
        _, former, _ = forced()
        former.ack(5)
        former.ack(5)
        assert former.refusal is not None
        assert former.refusal[0] == 406

    def test_an_ack_of_everything_up_to_a_revoked_tag_settles_what_is_still_its_own(self) -> None:
        world, former, _ = forced()
        former.ack(3, multiple=True)
        assert world.queue().lines[0].outstanding == 0
        former.ack(4)
        assert former.refusal is None

    def test_what_was_revoked_takes_up_room_until_its_consumer_is_done_with_it(self) -> None:
        world, former, _ = forced(prefetch=5)
        world.send(0, b"1", b"2")
        assert former.bodies()[5:] == []
        former.ack(2)
        assert former.bodies() == [b"1"]
        former.say(BasicRecover(True))
        assert former.bodies()[-1] == b"2"
        assert former.refusal is None

    def test_that_holds_for_the_limit_of_a_channel_too(self) -> None:
        world = PartitionedWorld(2)
        former = world.client()
        former.say(BasicQos(0, 2, True))
        former.consume(tag="a")
        world.pass_time(DELAY_S)
        world.send(1, b"0", b"1")
        world.join("b")
        world.pass_time(DELAY_S + HANDOFF_S)
        world.send(0, b"2")
        assert former.bodies() == [b"0", b"1"]
        former.ack(1)
        assert former.bodies() == [b"2"]

    def test_a_closed_channel_gives_nothing_back_twice(self) -> None:
        world, former, successor = forced()
        former.close()
        assert successor.bodies() == list(numbered(4))
        assert world.queue().messages_unacknowledged == 4

    def test_what_lies_in_the_store_by_then_is_read_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("lbg_broker.core.state.UNSETTLED_BYTES", 8)
        world = PartitionedWorld(2)
        world.start("a")
        world.send(1, *numbered(4, size=20))
        world.commit()
        successor = world.join("b")
        world.pass_time(DELAY_S + HANDOFF_S)
        world.commit()
        assert successor.bodies() == list(numbered(4, size=20))


class TestOnTheWay:
    """Somebody comes or goes while partitions are paused."""

    def test_the_successor_goes_and_the_partition_stays_where_it_is(self) -> None:
        world, former, _ = moving()
        world.lose("b")
        assert (world.statuses, world.tags) == (["Ready", "Ready"], ["a", "a"])
        world.send(1, b"next")
        assert former.bodies()[-1] == b"next"
        assert world.status == "Ready"

    def test_the_former_consumer_goes_and_the_partition_moves_at_once(self) -> None:
        world, _, successor = moving()
        world.lose("a")
        assert world.tags == ["a", "b"]
        assert world.statuses == ["Unbound", "Ready"]
        assert successor.bodies() == list(numbered(4))

    def test_the_former_consumer_is_cancelled_and_what_it_holds_is_still_waited_for(self) -> None:
        world, former, successor = moving()
        former.cancel("a")
        assert world.statuses == ["Unbound", "Paused"]
        assert successor.bodies() == []
        world.send(1, b"next")
        former.ack(5, multiple=True)
        assert successor.bodies() == [b"next"]

    def test_the_limit_holds_for_a_cancelled_one_too(self) -> None:
        world, former, successor = moving()
        former.cancel("a")
        world.pass_time(HANDOFF_S)
        assert successor.bodies() == list(numbered(4))
        former.ack(5, multiple=True)
        assert former.refusal is None

    def test_a_second_rebalance_keeps_the_first_ones_limit(self) -> None:
        world, _, _ = moving(**{"x-rebalance-delay": 1000, "x-max-handoff-time": 8000})
        world.lose("b")
        world.join("c")
        world.pass_time(1)
        assert world.statuses == ["Ready", "Paused"]
        world.pass_time(8)
        assert world.tags == ["a", "c"]

    def test_both_go_and_nothing_is_lost(self) -> None:
        world, _, _ = moving()
        world.lose("a")
        world.lose("b")
        world.join("c")
        world.pass_time(DELAY_S)
        assert sorted(world.names["c"].bodies()) == [*numbered(4), b"kept"]

    def test_deleting_the_queue_ends_everything(self) -> None:
        world, former, successor = moving()
        world.administer(QueueDelete("q"))
        world.pass_time(60)
        former.ack(5, multiple=True)
        assert (former.refusal, successor.refusal) == (None, None)
