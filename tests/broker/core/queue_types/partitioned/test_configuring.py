"""Partitioned queues, statement by statement of «Configuring Partitioned Queues», in its order."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from lbg_core.amqp.methods import BasicNack, ExchangeDeclare, ExchangeDeclareOk, QueueBind, QueueBindOk
from lbg_core.group import hash_of
from testing.broker_core.partitioned_world import PartitionedWorld, header
from testing.broker_core.world import World, numbered


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
