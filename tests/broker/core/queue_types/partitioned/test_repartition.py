"""A change of the number of partitions with the ingress open, step by step."""

from __future__ import annotations

import pytest

from lbg_broker.core.errors import ChannelRefusal
from lbg_core.amqp.methods import QueuePurge
from testing.broker_core.partitioned_world import DELAY_S, PartitionedWorld, header
from testing.broker_core.world import Client

HASHES = {"x-partition-hash": "modulo", "x-partition-hash-count": 60}
"""Keys are the numbers below 60: key n is in partition n % count."""


@pytest.fixture
def world() -> PartitionedWorld:
    """Of four partitions. Key 7 moves from partition 3 to 1 of six and to 2 of five, and key 3 stays."""
    return PartitionedWorld(4, **HASHES)


def send(world: PartitionedWorld, key: int, *bodies: bytes) -> None:
    world.publisher.publish(*bodies, header=header(str(key)))
    world.commit()


def repartition(world: PartitionedWorld, count: int, **arguments: int | bool) -> None:
    world.act("repartition", count=count, **arguments)
    world.pass_time(DELAY_S)


def ack(world: PartitionedWorld, client: Client, *tags: int) -> None:
    for tag in tags:
        client.ack(tag)
    world.commit()


class TestMovedKeys:
    def test_wait_until_their_messages_in_the_old_partition_are_settled(
        self, world: PartitionedWorld
    ) -> None:
        (a,) = world.start("a")
        send(world, 7, b"before")
        repartition(world, 6)
        send(world, 7, b"after")
        assert a.bodies() == [b"before"]
        assert world.described["moving_keys"] == {
            "partitions": 6,
            "hashes": 10,  # 7, 11, 19, 23, ... of the fifteen of partition 3
            "messages_held": 1,
            "messages_surplus": 0,
        }
        ack(world, a, 1)
        assert a.bodies() == [b"after"]

    def test_do_not_wait_for_later_messages_of_the_old_partition(self, world: PartitionedWorld) -> None:
        (a,) = world.start("a")
        send(world, 3, b"before")
        repartition(world, 6)
        send(world, 3, b"stays")
        send(world, 7, b"moved")
        assert a.bodies() == [b"before", b"stays"]
        ack(world, a, 1)
        assert a.bodies() == [b"moved"]

    def test_do_not_wait_if_their_old_partition_is_empty(self, world: PartitionedWorld) -> None:
        (a,) = world.start("a")
        send(world, 3, b"of partition 3")
        repartition(world, 6)
        send(world, 6, b"from 2 to 0")
        assert a.bodies() == [b"of partition 3", b"from 2 to 0"]

    def test_go_behind_what_was_staged_for_them_when_it_comes_back(self, world: PartitionedWorld) -> None:
        (a,) = world.start("a")
        send(world, 7, b"1")
        repartition(world, 6)
        send(world, 7, b"2", b"3")
        ack(world, a, 1)
        send(world, 7, b"4")
        assert a.bodies() == [b"1", b"2", b"3", b"4"]
        world.lose("a")
        b = world.join("b", prefetch=1)
        world.pass_time(DELAY_S)
        for tag in (1, 2, 3):
            ack(world, b, tag)
        assert b.bodies() == [b"2", b"3", b"4"]
        assert world.described["moving_keys"] is None

    def test_wait_for_two_changes(self, world: PartitionedWorld) -> None:
        (a,) = world.start("a")
        send(world, 7, b"1")
        repartition(world, 6)
        repartition(world, 5)
        send(world, 7, b"2")
        assert a.bodies() == [b"1"]
        ack(world, a, 1)
        assert a.bodies() == [b"2"]

    def test_wait_for_delivered_messages_that_were_staged(self, world: PartitionedWorld) -> None:
        (a,) = world.start("a")
        send(world, 7, b"1")
        repartition(world, 6)
        send(world, 7, b"2")
        ack(world, a, 1)
        assert a.bodies() == [b"1", b"2"]
        repartition(world, 5)
        send(world, 7, b"3")
        assert a.bodies() == []
        ack(world, a, 2)
        assert a.bodies() == [b"3"]

    def test_come_back_in_order_when_the_change_is_taken_back(self, world: PartitionedWorld) -> None:
        (a,) = world.start("a")
        send(world, 7, b"1")
        repartition(world, 6)
        send(world, 7, b"2")
        repartition(world, 4)
        send(world, 7, b"3")
        assert a.bodies() == [b"1"]
        ack(world, a, 1)
        assert a.bodies() == [b"2"]
        ack(world, a, 2)
        assert a.bodies() == [b"3"]
        ack(world, a, 3)
        assert world.described["moving_keys"] is None

    def test_hold_up_no_key_of_the_partition_that_they_were_to_go_to(self, world: PartitionedWorld) -> None:
        (a,) = world.start("a")
        send(world, 7, b"1")
        repartition(world, 6)
        send(world, 7, b"2")  # is staged for partition 1, and not delivered
        repartition(world, 4)
        send(world, 1, b"of partition 1")
        assert a.bodies() == [b"1", b"of partition 1"]

    @pytest.mark.parametrize("durable", [True, False])
    def test_wait_for_a_message_that_a_cancelled_consumer_still_has(self, durable: bool) -> None:
        world = PartitionedWorld(4, durable=durable, **HASHES)
        world.start("a", "b")
        former, later = (world.names[str(world.tags[partition])] for partition in (3, 1))
        send(world, 7, b"1")
        assert former.bodies() == [b"1"]
        former.cancel(str(world.tags[3]))
        world.act("repartition", count=6)
        send(world, 7, b"2")
        assert later.bodies() == []
        ack(world, former, 1)
        assert later.bodies() == [b"2"]

    def test_stay_in_order_when_the_broker_dies(self, world: PartitionedWorld) -> None:
        world.start("a")
        send(world, 7, b"1")
        repartition(world, 6)
        send(world, 7, b"2")
        world.crash()
        world.names.clear()
        world.publisher = world.client().confirms()
        send(world, 7, b"3")
        a = world.join("a")
        world.pass_time(DELAY_S)
        world.commit()
        assert a.bodies() == [b"1"]
        ack(world, a, 1)
        assert a.bodies() == [b"2", b"3"]
        ack(world, a, 2, 3)
        assert world.described["moving_keys"] is None
        assert len(world.queue().lines) == 6


class TestPartitionsThatGo:
    def test_are_served_until_they_are_empty(self, world: PartitionedWorld) -> None:
        (a,) = world.start("a", prefetch=1)
        send(world, 7, b"1", b"2")
        repartition(world, 2)
        assert [one["partition"] for one in world.described["partitions"]] == [0, 1, 2, 3]
        assert world.described["moving_keys"]["messages_surplus"] == 2
        ack(world, a, 1)
        ack(world, a, 2)
        assert a.bodies() == [b"1", b"2"]
        assert [one["partition"] for one in world.described["partitions"]] == [0, 1]
        assert world.described["moving_keys"] is None

    def test_take_no_message_any_more(self, world: PartitionedWorld) -> None:
        send(world, 3, b"1")
        repartition(world, 2)
        send(world, 3, b"2")
        send(world, 2, b"3")
        (last,) = world.described["partitions"][3:]
        assert last["messages_ready"] == 1
        assert world.described["partitions"][2]["messages_ready"] == 0

    def test_are_deleted_with_their_messages_when_that_is_asked_for(self, world: PartitionedWorld) -> None:
        (a,) = world.start("a")
        send(world, 7, b"1", b"2")
        assert world.act("repartition", count=2, discard=True) == {"partitions": 2, "discarded": 2}
        send(world, 7, b"3")
        assert a.bodies() == [b"1", b"2", b"3"]
        assert world.described["moving_keys"] is None


class TestTheLimitOfWhatWaits:
    LIMITED = HASHES | {"x-overflow": "reject-publish", "x-max-length-bytes": 40}

    def test_is_the_higher_one_at_once(self) -> None:
        world = PartitionedWorld(4, **self.LIMITED)
        repartition(world, 6, max_length_bytes=60)
        assert world.queue().rules.max_length_bytes == 60

    def test_is_the_lower_one_when_the_messages_are_within_it(self) -> None:
        world = PartitionedWorld(4, **self.LIMITED)
        send(world, 3, b"." * 15, b"." * 15)
        repartition(world, 2, max_length_bytes=20)
        assert world.queue().rules.max_length_bytes == 40
        assert world.queue().arguments["x-max-length-bytes"] == 20
        world.crash()
        assert world.queue().rules.max_length_bytes == 40
        world.publisher = world.client().confirms()
        world.join("a", prefetch=1)
        world.pass_time(DELAY_S)
        world.commit()
        send(world, 0, b".")
        assert world.queue().rules.max_length_bytes == 20


def test_a_purge_of_what_nobody_consumes_ends_the_change(world: PartitionedWorld) -> None:
    send(world, 7, b"before")
    repartition(world, 6)
    assert world.described["moving_keys"] is not None
    world.publisher.say(QueuePurge("q"))
    assert world.described["moving_keys"] is None


def test_a_purge_leaves_nothing_to_wait_for(world: PartitionedWorld) -> None:
    send(world, 7, b"1")
    repartition(world, 6)
    send(world, 7, b"2")
    world.administer(QueuePurge("q"))
    (a,) = world.start("a")
    send(world, 7, b"3")
    assert a.bodies() == [b"3"]
    assert world.described["moving_keys"] is None


def test_more_parts_of_the_keys_than_the_broker_tells_apart_are_refused() -> None:
    world = PartitionedWorld(4093)
    with pytest.raises(ChannelRefusal, match="divides the keys into 16748556 parts, and 65536 is the limit"):
        world.act("repartition", count=4092)
    assert len(world.queue().lines) == 4093


def test_a_queue_without_a_number_of_hashes_is_changed_too() -> None:
    world = PartitionedWorld(4, **{"x-partition-hash": "modulo"})
    (a,) = world.start("a")
    send(world, 7, b"1")
    repartition(world, 6)
    send(world, 7, b"2")
    assert a.bodies() == [b"1"]
    ack(world, a, 1)
    assert a.bodies() == [b"2"]
