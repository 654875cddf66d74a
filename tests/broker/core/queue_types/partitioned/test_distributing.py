"""Partitions, statement by statement of «Message Distribution With Partitioned Queues», in its order."""

from __future__ import annotations

import pytest

from lbg_core.amqp.methods import ExchangeDeclare, ExchangeDeclareOk, QueueBind, QueueBindOk
from lbg_core.group import KEY_HEADERS
from testing.broker_core.partitioned_world import DELAY_S, PartitionedWorld, header
from testing.broker_core.world import numbered


class TestPublishing:
    """Keys and fan-out."""

    @pytest.mark.parametrize("name", KEY_HEADERS)
    @pytest.mark.parametrize("as_bytes", [False, True])
    def test_takes_the_key_from_the_header_that_a_protocol_has_for_it(
        self, name: str, as_bytes: bool
    ) -> None:
        world = PartitionedWorld(4)
        for partition in range(4):
            key = world.key_of(partition)
            world.publisher.publish(b"m", header=header(key.encode() if as_bytes else key, name=name))
            assert world.waiting[partition] == 1

    def test_takes_the_first_of_them_that_is_there(self) -> None:
        world = PartitionedWorld(4)
        names = dict(zip(reversed(KEY_HEADERS), [world.key_of(n % 4) for n in range(9)], strict=True))
        for _ in KEY_HEADERS:
            world.publisher.publish(b"m", header=header(**names))
            (first,) = [key for name, key in names.items() if name == KEY_HEADERS[9 - len(names)]]
            assert world.waiting[[world.key_of(n) for n in range(4)].index(first)] >= 1
            del names[KEY_HEADERS[9 - len(names)]]
        assert world.waiting == [3, 2, 2, 2]

    def test_fans_a_message_out_to_other_queues_too(self) -> None:
        world = PartitionedWorld(4)
        publisher = world.publisher
        publisher.queue("plain")
        publisher.ask(ExchangeDeclare("x", "topic", durable=True), ExchangeDeclareOk)
        for queue in ("q", "plain"):
            publisher.ask(QueueBind(queue, "x", "#"), QueueBindOk)
        publisher.publish(b"m", exchange="x", key="k", header=header(world.key_of(3)))
        assert world.waiting == [0, 0, 0, 1]
        assert world.queue("plain").messages_ready == 1

    def test_spreads_many_keys_evenly(self) -> None:
        world = PartitionedWorld(8)
        for number in range(800):
            world.publisher.publish(b"m", header=header(f"order-{number}"))
        assert min(world.waiting) > 60


class TestConsuming:
    """One consumer for each partition, one or more partitions for each consumer."""

    def test_gives_each_partition_to_one_consumer_only(self) -> None:
        world = PartitionedWorld(4)
        a, b = world.start("a", "b")
        for number in range(40):
            world.send(number % 4, b"%d" % (number % 4))
        assert len(a.deliveries) == len(b.deliveries) == 20
        assert not set(a.bodies()) & set(b.bodies())

    def test_a_slow_consumer_does_not_hold_up_the_partitions_of_another(self) -> None:
        world = PartitionedWorld(2)
        slow, quick = world.start("slow", "quick", prefetch=1)
        world.send_each(*numbered(5))
        for _ in range(4):
            quick.ack(quick.deliveries[-1].delivery_tag)
            world.commit()
        assert slow.bodies() == [b"0"]
        assert quick.bodies() == list(numbered(5))

    def test_a_consumers_partitions_share_its_prefetch(self) -> None:
        world = PartitionedWorld(4)
        (consumer,) = world.start("a", prefetch=4)
        world.send_each(*numbered(10))
        for _ in range(9):
            consumer.ack(0, multiple=True)
            world.commit()
        assert all(waiting <= 1 for waiting in world.waiting)

    def test_shows_the_key_and_no_partition(self) -> None:
        world = PartitionedWorld(4)
        (consumer,) = world.start("a")
        world.send(3, b"m")
        (delivery,) = consumer.take()
        assert delivery.headers == {"lbg-key": world.key_of(3)}
        assert (delivery.exchange, delivery.routing_key) == ("", "q")

    def test_gives_no_partition_to_who_asks_for_it(self) -> None:
        world = PartitionedWorld(4)
        world.start("a", "b")
        before = world.tags
        world.join("c", claim=[0, 1, 2, 3])
        assert world.tags == before

    @pytest.mark.parametrize("claim", ["0,1", [-1], [True], ["0"], {"partition": 0}])
    def test_refuses_a_mapping_that_is_none(self, claim: object) -> None:
        world = PartitionedWorld(4)
        client = world.client()
        client.consume(arguments={"x-partitions": claim})
        assert client.refusal is not None
        assert client.refusal[0] == 406
        assert "x-partitions" in client.refusal[1]
        assert not world.queue().policy.consumers

    def test_rebalances_when_a_consumer_joins_and_there_were_fewer_than_partitions(self) -> None:
        world = PartitionedWorld(4)
        world.start("a", "b", "c")
        world.join("d")
        assert world.status == "HoldDown"
        world.pass_time(DELAY_S)
        assert world.loads == {"a": 1, "b": 1, "c": 1, "d": 1}
        assert world.handoffs["total"] == 1

    def test_does_not_rebalance_when_a_consumer_joins_beside_excess_ones(self) -> None:
        world = PartitionedWorld(2)
        world.start("a", "b")
        for name in ("c", "d"):
            world.join(name)
            assert world.status == "Ready"
        world.pass_time(60)
        assert world.loads == {"a": 1, "b": 1, "c": 0, "d": 0}

    def test_rebalances_when_an_active_consumer_leaves_after_the_delay(self) -> None:
        world = PartitionedWorld(4)
        world.start("a", "b")
        world.lose("a")
        assert world.status == "HoldDown"
        world.pass_time(DELAY_S - 0.01)
        assert sorted(world.statuses) == ["Ready", "Ready", "Unbound", "Unbound"]
        world.pass_time(0.01)
        assert world.loads == {"b": 4}

    def test_reassigns_what_a_consumer_had_to_one_or_more_others(self) -> None:
        world = PartitionedWorld(6)
        world.start("a", "b", "c")
        kept = {name: world.partitions_of(name) for name in ("a", "b")}
        world.lose("c")
        world.pass_time(DELAY_S)
        assert world.loads == {"a": 3, "b": 3}
        for name, partitions in kept.items():
            assert set(partitions) < set(world.partitions_of(name))

    def test_excess_consumers_stand_by_without_load(self) -> None:
        world = PartitionedWorld(2)
        clients = world.start("a", "b", "c")
        for _ in range(10):
            world.send_each(b"m")
        assert [len(client.deliveries) for client in clients] == [10, 10, 0]

    def test_an_excess_consumer_takes_over_from_an_active_one_that_fails(self) -> None:
        world = PartitionedWorld(2)
        _, _, standby = world.start("a", "b", "c")
        world.lose("a")
        world.pass_time(DELAY_S)
        world.send_each(b"m")
        assert world.loads == {"b": 1, "c": 1}
        assert standby.bodies() == [b"m"]

    def test_an_excess_consumer_leaves_without_a_rebalance(self) -> None:
        world = PartitionedWorld(2)
        world.start("a", "b", "c")
        world.lose("c")
        assert world.status == "Ready"


class TestPartitionStatus:
    """The four statuses."""

    def test_is_unassigned_while_it_has_no_flow(self) -> None:
        world = PartitionedWorld(2)
        assert world.statuses == ["Unassigned", "Unassigned"]
        assert world.tags == [None, None]

    def test_is_ready_while_it_delivers(self) -> None:
        world = PartitionedWorld(2)
        (consumer,) = world.start("a")
        assert world.statuses == ["Ready", "Ready"]
        world.send(1, b"m")
        assert consumer.bodies() == [b"m"]

    def test_is_paused_while_it_has_a_flow_and_delivers_nothing_new(self) -> None:
        world = PartitionedWorld(2)
        (consumer,) = world.start("a")
        world.send_each(b"1")
        other = world.join("b")
        world.pass_time(DELAY_S)
        assert world.statuses == ["Ready", "Paused"]
        assert world.status == "Rebalancing"
        assert world.tags == ["a", "a"]
        world.send_each(b"2")
        assert consumer.bodies() == [b"1", b"1", b"2"]
        assert other.bodies() == []

    def test_is_unbound_while_the_flow_that_has_it_is_not_there(self) -> None:
        world = PartitionedWorld(2)
        world.start("a", "b")
        world.lose("a")
        assert world.statuses == ["Unbound", "Ready"]
        assert world.tags == ["a", "b"]
        world.send(0, b"m")
        assert world.waiting == [1, 0]
