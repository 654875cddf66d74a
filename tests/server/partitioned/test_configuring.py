"""What «Configuring Partitioned Queues» says, statement by statement, in the document's order."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

import pytest

from lbg_broker.amqp.methods import (
    BasicAck,
    BasicNack,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
)
from lbg_broker.group import hash_of
from lbg_broker.server.core.errors import ChannelRefusal
from support.broker_world import World, numbered
from support.partitioned_world import DELAY_S, HANDOFF_S, PartitionedWorld, header


def refused(**arguments: Any) -> str:
    world = World()
    client = world.client()
    client.say_declare({"x-queue-type": "partitioned", **arguments})
    code, text = client.refusal or (0, "")
    assert code == 406
    assert "q" not in world.broker.state.vhosts["/"].queues
    return text


class TestTheQueue:
    """A parent with one child for each partition; a key that is hashed; consumers that bind to the parent."""

    def test_has_a_line_of_its_own_for_each_partition(self) -> None:
        assert len(PartitionedWorld(7).queue().lines) == 7

    def test_has_one_limit_for_all_its_partitions_together(self) -> None:
        world = PartitionedWorld(3, **{"x-max-length": 4, "x-overflow": "reject-publish"})
        for partition in (0, 1, 1, 2, 0, 1):
            world.send(partition, b"m")
        world.commit()
        assert world.waiting == [1, 2, 1]
        assert [nack.delivery_tag for nack in world.publisher.said(BasicNack)] == [5, 6]

    def test_has_one_limit_in_bytes_for_all_its_partitions_together(self) -> None:
        world = PartitionedWorld(3, **{"x-max-length-bytes": 10, "x-overflow": "reject-publish"})
        for partition in range(3):
            world.send(partition, b"....")
        assert world.waiting == [1, 1, 0]

    @pytest.mark.parametrize(("count", "most"), [(64, 2048), (65, 128)])
    def test_keeps_less_of_each_partition_in_memory_where_they_are_many(self, count: int, most: int) -> None:
        world = PartitionedWorld(count)
        world.start("a", prefetch=1)
        world.send(3, *[b"m"] * 2500)
        world.commit()
        assert world.queue().lines[3].resident <= most
        world.lose("a")
        assert not any(line.attended for line in world.queue().lines)

    def test_holds_no_message_outside_its_partitions(self) -> None:
        world = PartitionedWorld(3)
        for number in range(30):
            world.publisher.publish(b"m", header=header(f"key {number}"))
        assert world.queue().messages_ready == sum(world.waiting) == 30

    def test_has_the_bindings_and_its_partitions_have_none(self) -> None:
        world = PartitionedWorld(3)
        world.publisher.ask(ExchangeDeclare("x", "topic", durable=True), ExchangeDeclareOk)
        world.publisher.ask(QueueBind("q", "x", "orders.#"), QueueBindOk)
        world.publisher.publish(b"m", exchange="x", key="orders.7", header=header(world.key_of(2)))
        world.publisher.publish(b"m", exchange="x", key="bills.7", header=header(world.key_of(2)))
        assert world.waiting == [0, 0, 1]

    def test_puts_a_message_into_the_partition_that_its_keys_hash_modulo_the_count_names(self) -> None:
        for number in range(50):
            world = PartitionedWorld(5)
            world.publisher.publish(b"m", header=header(f"key {number}"))
            assert world.waiting.index(1) == zlib.crc32(b"key %d" % number) % 5

    @pytest.mark.parametrize("function", ["crc32", "java", "murmur2", "modulo"])
    def test_takes_the_hash_function_and_hash_count_of_a_group(self, function: str) -> None:
        world = PartitionedWorld(3, **{"x-partition-hash": function, "x-partition-hash-count": 8})
        for number in range(-20, 20):
            before = world.waiting
            world.publisher.publish(b"m", header=header(str(number)))
            grown = [now - was for now, was in zip(world.waiting, before, strict=True)]
            assert grown.index(1) == hash_of(str(number), 8, function) % 3

    def test_puts_a_key_that_is_no_number_somewhere_too_and_always_there(self) -> None:
        world = PartitionedWorld(5, **{"x-partition-hash": "modulo"})
        world.publisher.publish(*numbered(10), header=header("order-7"))
        assert sorted(world.waiting) == [0, 0, 0, 0, 10]

    def test_has_all_messages_of_a_key_in_one_partition(self) -> None:
        world = PartitionedWorld(5)
        for _ in range(20):
            world.publisher.publish(b"m", header=header("the key", other="x"))
        assert sorted(world.waiting) == [0, 0, 0, 0, 20]

    def test_puts_messages_without_a_key_into_random_partitions(self) -> None:
        world = PartitionedWorld(4)
        for number in range(400):
            world.publisher.publish(b"m", header=header(other=number) if number % 2 else b"\x00\x00")
        assert min(world.waiting) > 60

    def test_is_consumed_from_like_any_other(self) -> None:
        world = PartitionedWorld(2)
        (consumer,) = world.start("a")
        world.send(0, b"1")
        world.send(1, b"2")
        assert {delivery.routing_key for delivery in consumer.deliveries} == {"q"}
        assert sorted(consumer.bodies()) == [b"1", b"2"]

    def test_maps_one_or_more_partitions_to_each_flow(self) -> None:
        world = PartitionedWorld(5)
        world.start("a", "b", "c")
        assert sorted(world.loads.values()) == [1, 2, 2]

    def test_keeps_the_sequence_in_a_partition(self) -> None:
        world = PartitionedWorld(3)
        (consumer,) = world.start("a")
        for number in range(60):
            world.send(number % 3, b"%d" % number)
        received = [int(body) for body in consumer.bodies()]
        assert sorted(received) == list(range(60))
        for partition in range(3):
            assert [number for number in received if number % 3 == partition] == list(range(partition, 60, 3))

    def test_is_not_for_one_consumer(self) -> None:
        assert "x-single-active-consumer" in refused(
            **{"x-partition-count": 2, "x-single-active-consumer": True}
        )

    @pytest.mark.parametrize("count", [None, 0, -1, 4097, "2"])
    def test_needs_a_partition_count(self, count: Any) -> None:
        arguments = {} if count is None else {"x-partition-count": count}
        assert "x-partition-count" in refused(**arguments)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("x-rebalance-delay", -1),
            ("x-max-handoff-time", "3s"),
            ("x-partition-hash", "sha1"),
            ("x-partition-hash-count", 0),
            ("x-partition-colour", "red"),
        ],
    )
    def test_refuses_what_it_does_not_know(self, name: str, value: Any) -> None:
        assert name in refused(**{"x-partition-count": 2, name: value})

    def test_has_arguments_that_no_other_queue_has(self) -> None:
        world = World()
        client = world.client()
        client.say_declare({"x-partition-count": 4})
        assert client.refusal is not None
        assert "x-partition-count" in client.refusal[1]

    def test_drops_nothing_at_its_head(self) -> None:
        assert "reject-publish" in refused(**{"x-partition-count": 2, "x-max-length": 5})

    @pytest.mark.parametrize(
        "arguments",
        [
            {"x-partition-count": 5},
            {"x-partition-count": 4, "x-rebalance-delay": 1},
            {"x-partition-count": 4, "x-max-handoff-time": 1},
            {"x-partition-count": 4, "x-partition-hash": "java"},
        ],
    )
    def test_is_not_declared_again_as_another(self, arguments: dict[str, Any]) -> None:
        world = PartitionedWorld(4)
        other = world.client()
        other.say_declare({"x-queue-type": "partitioned", **arguments})
        assert other.refusal is not None
        assert other.refusal[0] == 406


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
        with pytest.raises(ChannelRefusal, match=r"partitions 2 to 3 hold 4 messages"):
            world.act("repartition", count=2)
        assert world.waiting == [2, 2, 2, 2]
        assert world.act("repartition", count=2, discard=True) == {"partitions": 2, "discarded": 4}
        assert world.waiting == [2, 2]

    def test_does_not_take_unacknowledged_messages_for_none(self) -> None:
        world = PartitionedWorld(2)
        world.start("a")
        world.send(1, b"m")
        world.act("ingress", open=False)
        with pytest.raises(ChannelRefusal, match="hold 1 messages"):
            world.act("repartition", count=1)

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
        world = PartitionedWorld(2)
        world.act("ingress", open=False)
        world.act("repartition", count=4, max_length_bytes=400)
        assert world.queue().rules.max_length_bytes == 400
        assert world.queue().arguments["x-max-length-bytes"] == 400
        world.act("repartition", count=3)
        assert world.queue().rules.max_length_bytes == 400
        with pytest.raises(ChannelRefusal, match="max_length_bytes is to be a number from 0 up"):
            world.act("repartition", count=3, max_length_bytes=-1)

    def test_is_done_with_ingress_off_so_that_nothing_overtakes(self) -> None:
        world = PartitionedWorld(2)
        with pytest.raises(ChannelRefusal, match="its ingress is open"):
            world.act("repartition", count=4)

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
            ("ingress", {}, "open is to be true or false"),
            ("ingress", {"open": "no"}, "open is to be true or false"),
            ("repartition", {}, "count is to be a number from 1 to 4096, not None"),
            ("repartition", {"count": 0}, "not 0"),
            ("repartition", {"count": 4097}, "not 4097"),
            ("repartition", {"count": True}, "not True"),
            ("repartition", {"count": 2, "discard": 1}, "discard is to be true or false"),
            ("explode", {}, "there is no action 'explode'"),
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
