"""Consuming: who gets what, within which credit, and what happens to it when its holder goes."""

from lbg_core.amqp.methods import (
    BasicCancel,
    BasicCancelOk,
    BasicGet,
    BasicGetEmpty,
    BasicGetOk,
    BasicQos,
    BasicRecover,
    BasicRecoverOk,
    QueueDelete,
    QueueDeleteOk,
    QueuePurge,
    QueuePurgeOk,
)
from testing.broker_core.world import Client, World, numbered

SAC = {"x-single-active-consumer": True}


def tags_of(client: Client) -> list[str]:
    return [delivery.consumer_tag for delivery in client.take()]


class TestPrefetch:
    def test_bounds_what_a_consumer_holds_and_acks_make_room(self) -> None:
        world = World()
        client = world.client()
        client.queue()
        client.publish(*numbered(10))
        client.consume(prefetch=3)
        assert client.bodies() == [b"0", b"1", b"2"]
        client.ack(1)
        world.commit()
        assert client.bodies() == [b"3"]
        client.ack(4, multiple=True)
        world.commit()
        assert client.bodies() == [b"4", b"5", b"6"]

    def test_an_ack_makes_room_when_the_store_knows_of_it_so_that_a_crash_repeats_no_more_than_that(
        self,
    ) -> None:
        world = World()
        client = world.client()
        client.queue()
        client.publish(*numbered(10))
        world.commit()
        client.consume(prefetch=3)
        client.ack(3, multiple=True)
        given_out = client.bodies()
        world.seal()
        given_out += client.bodies()
        world.crash()
        client = world.client()
        client.consume()
        world.commit()
        assert [body for body in client.bodies() if body in given_out] == [b"0", b"1", b"2"]

    def test_an_ack_of_a_transient_queue_makes_room_at_once(self) -> None:
        world = World()
        client = world.client()
        client.queue(durable=False)
        client.publish(*numbered(3))
        client.consume(prefetch=1)
        client.ack(1)
        assert client.bodies() == [b"0", b"1"]

    def test_of_the_channel_bounds_all_its_consumers_together(self) -> None:
        world = World()
        client = world.client()
        client.queue("a")
        client.queue("b")
        client.say(BasicQos(0, 3, True))
        client.consume("a", tag="a")
        client.consume("b", tag="b")
        client.publish(*numbered(4), key="a")
        client.publish(*numbered(4), key="b")
        assert tags_of(client) == ["a", "a", "a"]
        client.ack(2, multiple=True)
        world.commit()
        assert len(client.take()) == 2

    def test_does_not_bind_a_consumer_without_acks(self) -> None:
        world = World()
        client = world.client()
        client.queue()
        client.consume(prefetch=1, no_ack=True)
        client.publish(*numbered(5))
        assert client.bodies() == list(numbered(5))
        world.commit()
        assert world.store.bodies(world.queue().spool.id) == []
        assert world.queue().messages_unacknowledged == 0

    def test_counts_only_for_consumers_made_later(self) -> None:
        world = World()
        client = world.client()
        client.queue()
        client.consume(tag="free")
        client.say(BasicQos(0, 1, False))
        client.publish(*numbered(5))
        assert len(client.take()) == 5


def test_consumers_take_turns() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.consume(tag="a")
    client.consume(tag="b")
    client.publish(*numbered(4))
    assert tags_of(client) == ["a", "b", "a", "b"]


def test_a_consumer_without_room_is_passed_over() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.consume(tag="small", prefetch=1)
    client.consume(tag="large", prefetch=9)
    client.publish(*numbered(5))
    assert tags_of(client) == ["small", "large", "large", "large", "large"]


def test_a_client_that_does_not_read_gets_nothing_more_until_it_does() -> None:
    world = World()
    slow, fast = world.client(), world.client()
    slow.queue()
    slow.consume()
    slow.pause()
    slow.publish(*numbered(2))
    assert slow.bodies() == []
    fast.consume()
    assert fast.bodies() == [b"0", b"1"]
    fast.lose()
    slow.pause(False)
    assert slow.bodies() == [b"0", b"1"]


class TestSingleActiveConsumer:
    def test_gets_everything_while_others_wait(self) -> None:
        world = World()
        first, second = world.client(), world.client()
        first.queue(arguments=SAC)
        first.consume()
        second.consume()
        first.publish(*numbered(5))
        assert first.bodies() == list(numbered(5))
        assert second.bodies() == []

    def test_without_credit_does_not_pass_messages_on(self) -> None:
        world = World()
        first, second = world.client(), world.client()
        first.queue(arguments=SAC)
        first.consume(prefetch=1)
        second.consume()
        first.publish(*numbered(3))
        assert (first.bodies(), second.bodies()) == ([b"0"], [])

    def test_closing_its_channel_hands_everything_unsettled_on_in_order_to_the_next_in_line(self) -> None:
        world = World()
        first, second, third = world.client(), world.client(), world.client()
        first.queue(arguments=SAC)
        for client in (first, second, third):
            client.consume(prefetch=4)
        first.publish(*numbered(6))
        first.ack(2)
        world.commit()
        first.take()
        first.close()
        handed = second.take()
        assert [delivery.body for delivery in handed] == [b"0", b"2", b"3", b"4"]
        assert [delivery.redelivered for delivery in handed] == [True, True, True, True]
        second.ack(2, multiple=True)
        world.commit()
        (fifth,) = [delivery for delivery in second.take() if not delivery.redelivered]
        assert fifth.body == b"5"
        assert third.take() == []

    def test_a_lost_connection_hands_on_even_what_other_channels_of_it_hold(self) -> None:
        world = World()
        first, second = world.client(), world.client()
        first.queue(arguments=SAC)
        first.open(2)
        first.consume(channel=1)
        first.consume(channel=2)
        second.consume()
        first.publish(*numbered(3))
        first.lose()
        assert second.bodies() == list(numbered(3))
        assert all(delivery.channel == 1 for delivery in first.deliveries)

    def test_cancelling_keeps_what_it_holds_and_the_next_starts_behind(self) -> None:
        world = World()
        first, second = world.client(), world.client()
        first.queue(arguments=SAC)
        first.consume(prefetch=2)
        second.consume()
        first.publish(*numbered(4))
        first.cancel()
        assert second.bodies() == [b"2", b"3"]
        assert world.queue().messages_unacknowledged == 4

    def test_that_comes_back_stands_at_the_end_of_the_line(self) -> None:
        world = World()
        first, second, third = world.client(), world.client(), world.client()
        first.queue(arguments=SAC)
        for client in (first, second, third):
            client.consume()
        first.close()
        first.open(1)
        first.consume()
        second.close()
        third.publish(b"x")
        assert (first.bodies(), second.bodies(), third.bodies()) == ([], [], [b"x"])


class TestGivenBack:
    def test_by_nack_stands_at_its_old_place_and_says_redelivered(self) -> None:
        world = World()
        client = world.client()
        client.queue()
        client.publish(*numbered(6))
        client.consume(prefetch=4)
        client.cancel()
        client.take()
        client.nack(2)
        client.nack(1)
        client.nack(4)
        client.consume(tag="again")
        again = client.take()
        assert [(delivery.body, delivery.redelivered) for delivery in again] == [
            (b"0", True),
            (b"1", True),
            (b"3", True),
            (b"4", False),
            (b"5", False),
        ]

    def test_by_recover_is_everything_on_the_channel(self) -> None:
        world = World()
        client = world.client()
        client.queue()
        client.publish(*numbered(3))
        client.consume()
        client.ack(1)
        client.take()
        client.ask(BasicRecover(True), BasicRecoverOk)
        assert client.bodies() == [b"1", b"2"]

    def test_goes_to_whoever_has_room(self) -> None:
        world = World()
        first, second = world.client(), world.client()
        first.queue()
        first.consume(prefetch=2)
        first.publish(*numbered(2))
        second.consume()
        first.lose()
        assert second.bodies() == [b"0", b"1"]


class TestGet:
    def test_takes_one_and_counts_the_rest(self) -> None:
        world = World()
        client = world.client()
        client.queue()
        client.publish(*numbered(3))
        got = client.ask(BasicGet("q"), BasicGetOk)
        assert (got.message_count, got.redelivered, got.delivery_tag) == (2, False, 1)
        assert client.bodies() == [b"0"]
        client.nack(1)
        assert client.ask(BasicGet("q"), BasicGetOk).redelivered

    def test_of_nothing_says_empty(self) -> None:
        world = World()
        client = world.client()
        client.queue()
        client.ask(BasicGet("q"), BasicGetEmpty)

    def test_waits_for_a_head_that_must_be_read_first(self) -> None:
        world = World()
        client = world.client().confirms()
        client.queue()
        client.publish(*numbered(3))
        world.commit()
        world.crash()
        client = world.client()
        client.ask(BasicGet("q", True), BasicGetOk)
        client.ask(BasicGet("q", True), BasicGetOk)
        assert client.bodies() == [b"0", b"1"]


class TestCancel:
    def test_is_answered_and_stops_deliveries(self) -> None:
        world = World()
        client = world.client()
        client.queue()
        client.consume()
        assert client.ask(BasicCancel("c"), BasicCancelOk).consumer_tag == "c"
        client.publish(b"x")
        assert client.bodies() == []

    def test_by_the_broker_is_told_when_the_queue_is_deleted(self) -> None:
        world = World()
        told, untold = world.client(), world.client(consumer_cancel_notify=False)
        told.queue()
        told.consume()
        untold.consume()
        world.client().ask(QueueDelete("q"), QueueDeleteOk)
        assert told.said(BasicCancel) == [BasicCancel("c", True)]
        assert untold.said(BasicCancel) == []

    def test_of_the_last_consumer_deletes_an_auto_delete_queue(self) -> None:
        world = World()
        client = world.client()
        client.queue("a", auto_delete=True)
        client.consume("a", tag="1")
        client.consume("a", tag="2")
        client.cancel("1")
        assert "a" in world.broker.state.vhosts["/"].queues
        client.cancel("2")
        assert "a" not in world.broker.state.vhosts["/"].queues


def test_deliveries_of_a_deleted_queue_can_still_be_acked() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.consume()
    client.publish(*numbered(3))
    client.ask(QueueDelete("q"), QueueDeleteOk)
    client.ack(1)
    client.nack(3, multiple=True)
    world.commit()
    assert client.refusal is None
    assert world.store.rows == {}


def test_an_ack_for_a_deleted_queue_makes_room_for_the_other_queues_of_the_channel() -> None:
    world = World()
    client = world.client()
    for name in ("deleted", "other"):
        client.queue(name)
        client.publish(b"of " + name.encode(), key=name)
    world.commit()
    client.say(BasicQos(0, 1, True))
    client.consume("deleted", tag="1")
    client.consume("other", tag="2")
    assert client.bodies() == [b"of deleted"]
    world.client().ask(QueueDelete("deleted"), QueueDeleteOk)
    client.ack(1)
    world.commit()
    assert client.bodies() == [b"of other"]


def test_purge_deletes_what_waits_and_leaves_what_is_given_out() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.publish(*numbered(6))
    client.consume(prefetch=3)
    client.cancel()
    client.take()
    client.nack(2)
    assert client.ask(QueuePurge("q"), QueuePurgeOk).message_count == 4
    world.commit()
    assert world.store.bodies(world.queue().spool.id) == [b"0", b"2"]
    client.nack(1)
    client.consume(tag="again")
    assert client.bodies() == [b"0"]
    client.publish(b"new")
    assert client.bodies() == [b"new"]
