"""Message groups, statement by statement of "Using Message Groups", and what ADR 29 adds to it."""

from __future__ import annotations

import math

import pytest

from lbg_broker.core.machine import Broker
from lbg_core.amqp.methods import (
    BasicConsume,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicQos,
    ConfirmSelect,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from lbg_core.amqp.methods import BasicNack as Refused
from testing.broker_core.grouped_queue import bodies, declare, line, properties, publish
from testing.broker_core.world import Client, World


@pytest.fixture
def world() -> World:
    return World()


def two(world: World, *, prefetch: int = 0, durable: bool = True) -> tuple[Client, Client, Client]:
    """A publisher and two consumers of a queue of message groups."""
    publisher, one, other = world.client(), world.client(), world.client()
    declare(publisher, durable=durable)
    one.consume(prefetch=prefetch)
    other.consume(prefetch=prefetch)
    return publisher, one, other


class TestGroupingMessages:
    def test_a_header_that_the_application_chooses_holds_the_group(self, world: World) -> None:
        publisher, one, other = two(world)
        for group in ("a", "b", "a", "b"):
            publisher.publish(group.encode(), header=properties(group))
        assert {bodies(one), bodies(other)} == {"a a", "b b"}

    def test_the_queue_holds_the_name_of_the_header(self, world: World) -> None:
        """So one message may be of one group here and of another there."""
        client, one, other = two(world)
        client.queue("by shop", arguments={"x-group-header": "shop"})
        third, fourth = world.client(), world.client()
        third.consume("by shop")
        fourth.consume("by shop")
        for key in ("q", "by shop"):
            for body, cart in ((b"1", "a"), (b"2", "b")):
                header = properties("same", header="shop") if key == "by shop" else properties(cart)
                client.publish(body, key=key, header=header)
        assert {bodies(one), bodies(other)} == {"1", "2"}
        assert {bodies(third), bodies(fourth)} == {"1 2", ""}

    @pytest.mark.parametrize("group", ["x" * 5000, "корзина", "\x00", "qpid", b"\xff\xfe"])
    def test_what_stands_in_it_is_the_applications_business(self, world: World, group: object) -> None:
        publisher, one, other = two(world, prefetch=1)
        for body in (b"1", b"2"):
            publisher.publish(body, header=properties(group))
        assert (bodies(one), bodies(other)) == ("1", "")

    def test_a_whole_number_is_the_group_of_its_digits(self, world: World) -> None:
        publisher, one, other = two(world)
        for group in (7, "7", 8):
            publisher.publish(str(group).encode(), header=properties(group))
        assert {bodies(one), bodies(other)} == {"7 7", "8"}

    def test_groups_need_not_be_made_known_and_are_forgotten_when_they_are_empty(self, world: World) -> None:
        publisher, one, other = two(world)
        for serial in range(1000):
            publisher.publish(b"x", header=properties(f"g{serial}"))
        world.commit()
        assert len(line(world).groups) == 1000
        for client in (one, other):
            client.ack(client.take()[-1].delivery_tag, multiple=True)
        assert len(line(world).groups) == 0


class TestTheRoleOfTheBroker:
    def test_no_group_has_unacknowledged_messages_at_two_consumers(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=1)
        publish(publisher, "a1 a2 a3")
        assert (bodies(one), bodies(other)) == ("a1", "")

    def test_when_all_are_acknowledged_the_next_may_go_to_another_consumer(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=1)
        publish(publisher, "a1 a2")
        one.take()
        one.ack(1)
        assert bodies(other) == "a2"

    def test_that_does_not_wait_for_the_disk(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=1)
        publish(publisher, "a1 a2")
        world.commit()
        world.seal()
        one.ack(1)
        assert bodies(other) == "a2"

    @pytest.mark.parametrize("durable", [True, False])
    def test_as_many_of_a_group_as_the_prefetch_go_to_one_consumer_and_the_rest_waits(
        self, world: World, durable: bool
    ) -> None:
        publisher, one, other = two(world, prefetch=3, durable=durable)
        publish(publisher, "a1 a2 a3 a4 a5 a6 a7")
        assert (bodies(one), bodies(other)) == ("a1 a2 a3", "")
        one.ack(2, multiple=True)
        world.commit()
        assert (bodies(one), bodies(other)) == ("", ""), "the first set is not acknowledged whole"
        one.ack(3)
        assert bodies(other) == "a4 a5 a6"
        world.commit()
        assert (bodies(one), bodies(other)) == ("", "")

    def test_what_comes_later_belongs_to_the_set_as_long_as_it_is_not_full(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=2)
        publish(publisher, "a1")
        publish(publisher, "a2 a3")
        assert (bodies(one), bodies(other)) == ("a1 a2", "")

    def test_the_prefetch_of_a_whole_channel_counts_too(self, world: World) -> None:
        publisher, one, other = world.client(), world.client(), world.client()
        declare(publisher)
        for client in (one, other):
            client.say(BasicQos(0, 2, True))
            client.consume()
        publish(publisher, "a1 a2 a3 b1 b2 b3")
        assert {bodies(one), bodies(other)} == {"a1 a2", "b1 b2"}

    def test_a_group_in_front_does_not_block_one_behind_it(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=1)
        publish(publisher, "a1 a2 a3 b1 b2")
        assert (bodies(one), bodies(other)) == ("a1", "b1")

    def test_consumers_take_turns_and_the_oldest_group_is_first(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=2)
        publish(publisher, "c1 b1 a1 c2 d1")
        assert (bodies(one), bodies(other)) == ("c1 a1", "b1 d1")
        one.ack(1)
        world.commit()
        assert (bodies(one), bodies(other)) == ("c2", "")

    def test_a_consumer_without_acknowledgements_holds_nothing(self, world: World) -> None:
        publisher, other = world.client(), world.client()
        declare(publisher)
        publisher.consume(no_ack=True)
        publish(publisher, "a1 a2")
        publisher.cancel()
        other.consume()
        publish(publisher, "a3")
        assert (bodies(publisher), bodies(other)) == ("a1 a2", "a3")


class TestBeAdvised:
    def test_releasing_one_and_acknowledging_the_next_changes_their_order(self, world: World) -> None:
        publisher, one = world.client(), world.client()
        declare(publisher)
        one.consume(prefetch=2)
        publish(publisher, "A1 A2")
        one.take()
        one.pause()
        other = world.client()
        other.consume(prefetch=2)
        one.nack(1)
        assert bodies(other) == "", "the group is held as long as A2 is out"
        one.ack(2)
        (again,) = other.take()
        assert (again.body, again.redelivered) == (b"A1", True)

    def test_a_release_goes_back_to_whoever_holds_the_group(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=2)
        publish(publisher, "a1 a2 a3")
        one.take()
        one.nack(1)
        assert (bodies(one), bodies(other)) == ("a1", "")

    @pytest.mark.parametrize("how", ["nack", "close", "lose"])
    def test_releasing_all_keeps_the_order(self, world: World, how: str) -> None:
        publisher, one, other = two(world, prefetch=3)
        publish(publisher, "a1 a2 a3 a4")
        one.take()
        {"nack": lambda: one.nack(3, multiple=True), "close": one.close, "lose": one.lose}[how]()
        world.commit()
        again = one.take() + other.take()
        assert [one.body for one in again] == [b"a1", b"a2", b"a3"]
        assert all(one.redelivered for one in again)

    def test_discarding_one_keeps_the_order_of_the_others(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=3)
        publish(publisher, "a1 a2 a3 a4")
        one.take()
        one.nack(2, requeue=False)
        one.lose()
        assert bodies(other) == "a1 a3 a4"

    def test_what_is_discarded_is_dead_lettered(self, world: World) -> None:
        client = world.client()
        client.queue("dead")
        declare(client, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
        client.consume()
        publish(client, "a1 a2 b1")
        client.nack(1, requeue=False)
        world.commit()
        assert world.store.bodies(world.queue("dead").spool.id) == [b"a1"]


class TestDefaultGroup:
    @pytest.mark.parametrize("group", [None, "", b"", math.nan, ["a"]])
    def test_messages_without_a_group_are_one_group(self, world: World, group: object) -> None:
        publisher, one, other = two(world, prefetch=1)
        publish(publisher, "-1")
        publisher.publish(b"-2", header=properties(group))
        assert (bodies(one), bodies(other)) == ("-1", "")

    def test_its_name_is_that_of_the_document(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=1)
        publisher.publish(b"1", header=properties("qpid.no-group"))
        publisher.publish(b"2")
        assert (bodies(one), bodies(other)) == ("1", "")

    def test_the_name_can_be_another_for_the_whole_broker(self, world: World) -> None:
        world.broker = Broker(world.authority, new_token=lambda: "t", default_group="EMPTY-GROUP")
        publisher, one, other = two(world, prefetch=1)
        for group in ("EMPTY-GROUP", "qpid.no-group", None):
            publisher.publish(str(group).encode(), header=properties(group))
        assert (bodies(one), bodies(other)) == ("EMPTY-GROUP", "qpid.no-group")


class TestConsumersThatGo:
    def test_a_cancelled_consumer_holds_its_groups_until_it_has_settled_them(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=2)
        publish(publisher, "a1 a2 a3")
        one.take()
        one.cancel()
        one.ack(1)
        publish(publisher, "b1")
        assert bodies(other) == "b1"
        one.ack(2)
        assert bodies(other) == "a3"

    def test_or_until_its_channel_is_gone(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=2)
        publish(publisher, "a1 a2 a3")
        one.take()
        one.cancel()
        one.nack(2)
        assert bodies(other) == ""
        one.lose()
        assert bodies(other) == "a1 a2"

    def test_one_that_does_not_read_is_given_nothing_and_blocks_only_what_it_holds(
        self, world: World
    ) -> None:
        publisher, one, other = two(world, prefetch=2)
        publish(publisher, "a1")
        one.pause()
        publish(publisher, "a2 b1 c1")
        assert (bodies(one), bodies(other)) == ("a1", "b1 c1")

    def test_an_exclusive_consumer_is_the_only_one(self, world: World) -> None:
        client, other = world.client(), world.client()
        declare(client)
        client.say(BasicConsume("q", "c", exclusive=True))
        other.say(BasicConsume("q", "c"))
        assert other.refusal == (403, "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use")


class TestGet:
    def test_a_fetched_message_holds_its_group_until_it_is_settled(self, world: World) -> None:
        client, other = world.client(), world.client()
        declare(client)
        publish(client, "a1 a2 b1")
        for expected in ("a1", "b1"):
            client.ask(BasicGet("q"), BasicGetOk)
            assert bodies(client) == expected
        client.ask(BasicGet("q"), BasicGetEmpty)
        other.consume()
        assert bodies(other) == ""
        client.ack(1)
        assert bodies(other) == "a2"

    def test_without_an_acknowledgement_it_holds_nothing(self, world: World) -> None:
        client = world.client()
        declare(client)
        publish(client, "a1 a2")
        for expected in ("a1", "a2"):
            client.ask(BasicGet("q", True), BasicGetOk)
            assert bodies(client) == expected

    def test_what_came_back_says_so(self, world: World) -> None:
        client = world.client()
        declare(client)
        publish(client, "a1")
        client.ask(BasicGet("q"), BasicGetOk)
        client.nack(1)
        assert client.ask(BasicGet("q"), BasicGetOk).redelivered


class TestTheQueue:
    def test_a_purge_leaves_what_is_given_out_and_its_group_held(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=1)
        publish(publisher, "a1 a2 b1 b2 c1")
        assert publisher.ask(QueuePurge("q"), QueuePurgeOk).message_count == 3
        publish(publisher, "a3")
        assert (bodies(one), bodies(other)) == ("a1", "b1")
        one.ack(1)
        world.commit()
        assert bodies(one) + bodies(other) == "a3"
        assert world.store.bodies(world.queue().spool.id) == [b"b1", b"a3"]

    def test_a_deleted_queue_takes_its_groups_along(self, world: World) -> None:
        publisher, one, _ = two(world, prefetch=1)
        publish(publisher, "a1 a2")
        assert publisher.ask(QueueDelete("q"), QueueDeleteOk).message_count == 1
        declare(publisher)
        one.ack(1)
        one.consume(tag="again")
        publish(publisher, "a3")
        assert bodies(one) == "a1 a3"

    def test_a_full_one_refuses_and_drops_nothing(self, world: World) -> None:
        client = world.client()
        declare(client, x_max_length=2, x_overflow="reject-publish")
        client.say(ConfirmSelect())
        publish(client, "a1 a2 a3")
        world.commit()
        assert [refused.delivery_tag for refused in client.said(Refused)] == [3]
        client.consume()
        assert bodies(client) == "a1 a2"

    def test_after_a_crash_all_is_in_order_and_held_by_nobody(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=2)
        publish(publisher, "a1 a2 a3 b1 a4 b2")
        world.commit()
        one.take()
        one.ack(1)
        world.commit()
        world.crash()
        one, other = world.client(), world.client()
        one.consume(prefetch=2)
        other.consume(prefetch=2)
        world.commit()
        given = one.take() + other.take()
        assert [delivery.body for delivery in given] == [b"a2", b"a3", b"b1", b"b2"]
        assert all(delivery.redelivered for delivery in given)

    def test_an_acknowledgement_that_the_disk_does_not_know_is_repeated_with_all_behind_it(
        self, world: World
    ) -> None:
        """A rewind, no inversion: a2 was processed by another consumer already, and comes again behind a1."""
        publisher, one, other = two(world, prefetch=1)
        publish(publisher, "a1 a2")
        world.commit()
        one.ack(1)
        assert bodies(other) == "a2"
        world.crash()
        heir = world.client()
        heir.consume(no_ack=True)
        world.commit()
        assert bodies(heir) == "a1 a2"

    def test_after_an_orderly_stop_the_flag_says_who_was_seen(self, world: World) -> None:
        publisher, one, _ = two(world, prefetch=1)
        publish(publisher, "a1 a2 b1 b2")
        one.ack(1)
        world.commit()
        world.stop()
        heir = world.client()
        heir.consume(no_ack=True)
        world.commit()
        assert [(delivery.body, delivery.redelivered) for delivery in heir.take()] == [
            (b"a2", True),
            (b"b1", True),
            (b"b2", False),
        ]

    def test_the_management_api_says_how_many_groups_are_known_and_busy(self, world: World) -> None:
        publisher, one, other = two(world, prefetch=1)
        publish(publisher, "a1 a2 b1 c1 d1")
        assert world.queue().policy.describe() == {"message_groups": {"known": 4, "busy": 2}}
        assert (bodies(one), bodies(other)) == ("a1", "b1")
