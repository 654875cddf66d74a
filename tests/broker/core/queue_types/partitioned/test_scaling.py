"""Partitions added to a queue and removed from it, by «Configuring Partitioned Queues»."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

import pytest

from lbg_broker.core.errors import ChannelRefusal
from lbg_core.amqp.methods import BasicAck, BasicNack
from testing.broker_core.partitioned_world import DELAY_S, PartitionedWorld, header


class TestScaling:
    """Adding and Removing Partitions in a Queue."""

    def test_removes_the_highest_partitions_first(self) -> None:
        world = PartitionedWorld(4)
        lines = list(world.queue().lines)
        world.act("ingress", open=False)
        world.act("repartition", count=2)
        assert world.queue().lines == lines[:2]

    def test_gives_new_partitions_the_next_numbers(self) -> None:
        world = PartitionedWorld(2)
        lines = list(world.queue().lines)
        world.act("ingress", open=False)
        world.act("repartition", count=4)
        assert world.queue().lines[:2] == lines
        assert [partition["partition"] for partition in world.described["partitions"]] == [0, 1, 2, 3]

    def test_deletes_what_is_in_removed_partitions_only_when_that_is_asked_for(self) -> None:
        world = PartitionedWorld(4)
        world.send_each(b"m", b"n")
        world.act("ingress", open=False)
        assert world.act("repartition", count=3) == {"partitions": 3, "discarded": 0}
        assert world.waiting == [2, 2, 2, 2]
        assert world.act("repartition", count=2, discard=True) == {"partitions": 2, "discarded": 4}
        assert world.waiting == [2, 2]

    def test_does_not_take_unacknowledged_messages_for_none(self) -> None:
        world = PartitionedWorld(2)
        (consumer,) = world.start("a")
        world.send(1, b"m")
        world.act("repartition", count=1)
        assert len(world.described["partitions"]) == 2
        consumer.ack(1)
        world.commit()
        assert len(world.queue().lines) == 1

    def test_lets_the_holder_of_a_deleted_message_acknowledge_it(self) -> None:
        world = PartitionedWorld(2)
        (consumer,) = world.start("a", prefetch=1)
        world.send(1, b"m")
        world.act("ingress", open=False)
        world.act("repartition", count=1, discard=True)
        world.act("ingress", open=True)
        world.send(0, b"n")
        assert consumer.bodies() == [b"m"]
        consumer.ack(1)
        assert consumer.bodies() == [b"n"]
        assert consumer.refusal is None

    def test_starts_a_rebalance(self) -> None:
        world = PartitionedWorld(2)
        world.start("a", "b")
        world.act("ingress", open=False)
        world.act("repartition", count=6)
        assert (world.status, world.statuses[2:]) == ("HoldDown", ["Unassigned"] * 4)
        world.pass_time(DELAY_S)
        assert world.loads == {"a": 3, "b": 3}
        world.act("repartition", count=2)
        assert world.status == "HoldDown" or world.loads == {"a": 1, "b": 1}
        world.pass_time(DELAY_S)
        assert world.loads == {"a": 1, "b": 1}

    def test_changes_which_key_goes_where(self) -> None:
        world = PartitionedWorld(2)
        keys = [f"key {number}" for number in range(40)]
        world.act("ingress", open=False)
        world.act("repartition", count=5)
        world.act("ingress", open=True)
        for key in keys:
            world.publisher.publish(b"m", header=header(key))
        assert world.waiting == [Counter(zlib.crc32(key.encode()) % 5 for key in keys)[n] for n in range(5)]

    def test_gives_all_partitions_together_another_limit_when_asked_for(self) -> None:
        world = PartitionedWorld(2, **{"x-overflow": "reject-publish"})
        world.act("ingress", open=False)
        world.act("repartition", count=4, max_length_bytes=400)
        assert world.queue().rules.max_length_bytes == 400
        assert world.queue().arguments["x-max-length-bytes"] == 400
        world.act("repartition", count=3)
        assert world.queue().rules.max_length_bytes == 400
        for limit in (-1, 1 << 63):  # no argument of a queue has more bits, so neither could be stored
            with pytest.raises(ChannelRefusal, match="max_length_bytes must be a number from 0 to 92233"):
                world.act("repartition", count=4, max_length_bytes=limit)
        world.crash()
        assert (len(world.queue().lines), world.queue().rules.max_length_bytes) == (3, 400)

    def test_gives_no_limit_to_a_queue_that_was_not_declared_to_refuse(self) -> None:
        world = PartitionedWorld(2)
        world.act("ingress", open=False)
        with pytest.raises(ChannelRefusal, match="declared with x-overflow reject-publish"):
            world.act("repartition", count=2, max_length_bytes=400)
        world.crash()
        assert world.queue().rules.max_length_bytes is None

    def test_refuses_by_the_new_limit_at_once(self) -> None:
        world = PartitionedWorld(2, **{"x-max-length-bytes": 100, "x-overflow": "reject-publish"})
        world.send(0, b"." * 10)
        world.commit()
        world.act("ingress", open=False)
        world.act("repartition", count=2, max_length_bytes=20)
        world.act("ingress", open=True)
        world.send(0, b"." * 11)
        assert world.queue().bytes_ready == 10

    def test_ingress_off_refuses_publishes_and_delivers_what_is_there(self) -> None:
        world = PartitionedWorld(2)
        (consumer,) = world.start("a", prefetch=1)
        world.send(0, b"1", b"2")
        world.commit()
        world.act("ingress", open=False)
        assert world.described["ingress"] is False
        world.send(0, b"3")
        assert [nack.delivery_tag for nack in world.publisher.said(BasicNack)] == [3]
        consumer.ack(1)
        world.commit()
        consumer.ack(2)
        assert consumer.bodies() == [b"1", b"2"]
        world.act("ingress", open=True)
        world.send(0, b"4")
        world.commit()
        assert consumer.bodies() == [b"4"]
        assert world.publisher.said(BasicAck)[-1].delivery_tag == 4

    @pytest.mark.parametrize(
        ("action", "arguments", "reason"),
        [
            ("ingress", {}, "open must be true or false"),
            ("ingress", {"open": "no"}, "open must be true or false"),
            ("repartition", {}, "count must be a number from 1 to 4096, not None"),
            ("repartition", {"count": 0}, "not 0"),
            ("repartition", {"count": 4097}, "not 4097"),
            ("repartition", {"count": True}, "not True"),
            ("repartition", {"count": 2, "discard": 1}, "discard must be true or false"),
            ("explode", {}, "no action 'explode'"),
        ],
    )
    def test_says_what_is_wrong_with_a_request(
        self, action: str, arguments: dict[str, Any], reason: str
    ) -> None:
        world = PartitionedWorld(2)
        with pytest.raises(ChannelRefusal, match=reason):
            world.act(action, **arguments)

    def test_a_queue_is_declared_again_with_the_number_it_has_now(self) -> None:
        world = PartitionedWorld(2)
        world.act("ingress", open=False)
        world.act("repartition", count=3)
        world.client().queue(arguments={"x-queue-type": "partitioned", "x-partition-count": 3})
        other = world.client()
        other.say_declare({"x-queue-type": "partitioned", "x-partition-count": 2})
        assert other.refusal is not None
