"""Deliveries and what a consumer says of them: order, prefetch, ack, nack, requeue, get, cancel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testing.amqp.open_pika import OpenConnection, raw
from testing.broker.engines import Engine, Inbox, close_at_once, cut, drain, eventually, pump, refusal

UNKNOWN_TAG = ("channel", 406, "PRECONDITION_FAILED")


def fill(channel: BlockingChannel, queue: str, numbers: Iterable[int], **settings: Any) -> None:
    channel.queue_declare(queue, **(settings or {"exclusive": True}))
    for number in numbers:
        channel.basic_publish("", queue, b"%d" % number)
    channel.queue_declare(queue, passive=True)


def numbered(*numbers: int) -> list[bytes]:
    return [b"%d" % number for number in numbers]


def counts(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


def test_a_consumer_gets_what_waited_and_what_comes_in_order(channel: BlockingChannel, unique: str) -> None:
    fill(channel, unique, range(3))
    inbox = Inbox(channel, unique)
    for number in range(3, 6):
        channel.basic_publish("", unique, b"%d" % number)
    assert inbox.wait(6) == numbered(0, 1, 2, 3, 4, 5)
    assert inbox.tags == [1, 2, 3, 4, 5, 6]
    assert inbox.redelivered == [False] * 6


def test_prefetch_bounds_what_is_out_unacknowledged(channel: BlockingChannel, unique: str) -> None:
    fill(channel, unique, range(10))
    channel.basic_qos(prefetch_count=3)
    inbox = Inbox(channel, unique)
    inbox.wait(3)
    assert inbox.stays_at(3)
    channel.basic_ack(1)
    inbox.wait(4)
    assert inbox.stays_at(4)
    channel.basic_ack(3, multiple=True)
    assert inbox.wait(6) == numbered(0, 1, 2, 3, 4, 5)
    assert inbox.stays_at(6)


def test_prefetch_counts_for_each_consumer_alone(channel: BlockingChannel, unique: str) -> None:
    fill(channel, unique, range(10))
    channel.basic_qos(prefetch_count=2)
    first, second = Inbox(channel, unique), Inbox(channel, unique)
    assert pump(channel, lambda: len(first.deliveries) + len(second.deliveries) == 4)
    assert first.stays_at(2)
    assert second.stays_at(2)


def test_prefetch_of_the_channel_is_shared_by_its_consumers(
    engine: Engine, channel: BlockingChannel, unique: str
) -> None:
    """RabbitMQ from 4.3 on gives it to each consumer, unless `global_qos` is permitted: it is a deprecated feature."""
    out = 6 if engine.is_4_3 else 3
    fill(channel, unique, range(10))
    channel.basic_qos(prefetch_count=3, global_qos=True)
    first, second = Inbox(channel, unique), Inbox(channel, unique)
    assert pump(channel, lambda: len(first.deliveries) + len(second.deliveries) == out)
    assert not pump(channel, lambda: len(first.deliveries) + len(second.deliveries) > out, timeout_s=0.15)


def test_prefetch_does_not_bound_a_consumer_that_needs_no_ack(channel: BlockingChannel, unique: str) -> None:
    fill(channel, unique, range(10))
    channel.basic_qos(prefetch_count=1)
    assert len(Inbox(channel, unique, auto_ack=True).wait(10)) == 10


def test_consumers_of_a_shared_queue_take_turns(connection: pika.BlockingConnection, unique: str) -> None:
    channel = connection.channel()
    channel.queue_declare(unique, exclusive=True)
    inboxes = [Inbox(connection.channel(), unique, auto_ack=True) for _ in range(3)]
    for count in range(1, 10):
        channel.basic_publish("", unique, b"%d" % count)
        assert pump(channel, lambda count=count: sum(len(inbox.deliveries) for inbox in inboxes) == count)
    assert sorted(len(inbox.deliveries) for inbox in inboxes) == [3, 3, 3]


class TestAck:
    def test_takes_one_message_out_of_the_queue(
        self, engine: Engine, channel: BlockingChannel, unique: str
    ) -> None:
        fill(channel, unique, range(3), durable=True)
        inbox = Inbox(channel, unique)
        inbox.wait(3)
        channel.basic_ack(2)
        channel.close()
        with engine.connected() as other:
            theirs = other.channel()
            assert eventually(lambda: counts(theirs, unique) == 2)
            assert drain(theirs, unique) == numbered(0, 2)
            theirs.queue_delete(unique)

    @pytest.mark.parametrize(("tag", "left"), [(2, (2, 3)), (0, ())])
    def test_multiple_takes_all_up_to_the_tag_and_zero_means_all(
        self, connection: pika.BlockingConnection, unique: str, tag: int, left: tuple[int, ...]
    ) -> None:
        channel = connection.channel()
        fill(channel, unique, range(4))
        Inbox(channel, unique).wait(4)
        channel.basic_ack(tag, multiple=True)
        channel.close()
        assert drain(connection.channel(), unique) == numbered(*left)

    def test_multiple_covers_every_consumer_of_the_channel(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        channel = connection.channel()
        fill(channel, f"{unique}.a", range(2))
        fill(channel, f"{unique}.b", range(2))
        Inbox(channel, f"{unique}.a").wait(2)
        Inbox(channel, f"{unique}.b").wait(2)
        channel.basic_ack(3, multiple=True)
        channel.close()
        after = connection.channel()
        assert drain(after, f"{unique}.a") == []
        assert drain(after, f"{unique}.b") == numbered(1)

    @pytest.mark.parametrize(
        "settle",
        [
            lambda channel, tag: channel.basic_ack(tag),
            lambda channel, tag: channel.basic_ack(tag, multiple=True),
            lambda channel, tag: channel.basic_nack(tag),
            lambda channel, tag: channel.basic_nack(tag, multiple=True),
            lambda channel, tag: channel.basic_reject(tag),
        ],
    )
    @pytest.mark.parametrize("tag", [1, 99], ids=["twice", "unknown"])
    def test_of_a_tag_that_is_not_out_closes_the_channel(
        self,
        connection: pika.BlockingConnection,
        unique: str,
        settle: Callable[[BlockingChannel, int], None],
        tag: int,
    ) -> None:
        channel = connection.channel()
        fill(channel, unique, range(3))
        Inbox(channel, unique).wait(3)
        channel.basic_ack(1)
        settle(channel, tag)
        assert refusal(lambda: counts(channel, unique)) == UNKNOWN_TAG
        assert drain(connection.channel(), unique) == numbered(1, 2)

    def test_multiple_up_to_an_old_tag_is_not_unknown_while_later_ones_are_out(
        self, channel: BlockingChannel, unique: str
    ) -> None:
        fill(channel, unique, range(3))
        Inbox(channel, unique).wait(3)
        channel.basic_ack(1)
        channel.basic_ack(2, multiple=True)
        assert counts(channel, unique) == 0

    def test_of_everything_while_nothing_is_out_is_no_error(
        self, channel: BlockingChannel, unique: str
    ) -> None:
        channel.queue_declare(unique, exclusive=True)
        channel.basic_ack(0, multiple=True)
        channel.basic_nack(0, multiple=True)
        assert counts(channel, unique) == 0

    def test_on_another_channel_than_the_delivery_is_unknown(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        channel = connection.channel()
        fill(channel, unique, range(1))
        Inbox(channel, unique).wait(1)
        other = connection.channel()
        other.basic_ack(1)
        assert refusal(lambda: other.queue_declare(unique, passive=True)) == UNKNOWN_TAG

    def test_of_a_consumer_that_needs_none_is_unknown(self, channel: BlockingChannel, unique: str) -> None:
        fill(channel, unique, range(1))
        Inbox(channel, unique, auto_ack=True).wait(1)
        channel.basic_ack(1)
        assert refusal(lambda: counts(channel, unique)) == UNKNOWN_TAG


class TestRequeue:
    def test_puts_a_message_back_where_it_was(self, channel: BlockingChannel, unique: str) -> None:
        fill(channel, unique, range(5))
        tags = [channel.basic_get(unique)[0].delivery_tag for _ in range(3)]
        channel.basic_nack(tags[1])
        assert drain(channel, unique) == numbered(1, 3, 4)
        channel.basic_nack(tags[2])
        channel.basic_nack(tags[0])
        assert drain(channel, unique) == numbered(0, 2)

    def test_of_several_at_once_keeps_their_order(self, channel: BlockingChannel, unique: str) -> None:
        fill(channel, unique, range(6))
        tags = [channel.basic_get(unique)[0].delivery_tag for _ in range(4)]
        channel.basic_ack(tags[1])
        channel.basic_nack(tags[3], multiple=True)
        assert drain(channel, unique) == numbered(0, 2, 3, 4, 5)

    def test_marks_the_message_as_redelivered_and_no_other(
        self, channel: BlockingChannel, unique: str
    ) -> None:
        fill(channel, unique, range(3))
        method, _, _ = channel.basic_get(unique)
        assert not method.redelivered
        channel.basic_nack(method.delivery_tag)
        got = [channel.basic_get(unique)[0].redelivered for _ in range(3)]
        assert got == [True, False, False]

    def test_gives_it_to_a_waiting_consumer_again(self, channel: BlockingChannel, unique: str) -> None:
        fill(channel, unique, range(2))
        channel.basic_qos(prefetch_count=1)
        inbox = Inbox(channel, unique)
        inbox.wait(1)
        channel.basic_nack(1)
        inbox.wait(2)
        channel.basic_reject(2, requeue=True)
        assert inbox.wait(3) == numbered(0, 0, 0)
        assert inbox.redelivered == [False, True, True]

    def test_without_requeue_drops_the_message(self, channel: BlockingChannel, unique: str) -> None:
        fill(channel, unique, range(3))
        tags = [channel.basic_get(unique)[0].delivery_tag for _ in range(3)]
        channel.basic_reject(tags[0], requeue=False)
        channel.basic_nack(tags[1], requeue=False)
        channel.basic_nack(tags[2], requeue=True)
        assert drain(channel, unique) == numbered(2)

    def test_happens_when_the_channel_closes(self, connection: pika.BlockingConnection, unique: str) -> None:
        channel = connection.channel()
        fill(channel, unique, range(4))
        channel.basic_qos(prefetch_count=2)
        Inbox(channel, unique).wait(2)
        close_at_once(channel)
        after = connection.channel()
        flags = [after.basic_get(unique) for _ in range(4)]
        assert [body for _, _, body in flags] == numbered(0, 1, 2, 3)
        assert [method.redelivered for method, _, _ in flags] == [True, True, False, False]

    def test_happens_when_the_connection_is_cut(
        self, engine: Engine, channel: BlockingChannel, unique: str
    ) -> None:
        fill(channel, unique, range(4), durable=True)
        lost = OpenConnection(engine.parameters())
        Inbox(lost.channel(), unique).wait(4)
        cut(lost)
        assert eventually(lambda: counts(channel, unique) == 4)
        assert drain(channel, unique) == numbered(0, 1, 2, 3)
        channel.queue_delete(unique)

    def test_happens_on_recover(self, channel: BlockingChannel, unique: str) -> None:
        fill(channel, unique, range(2))
        inbox = Inbox(channel, unique)
        inbox.wait(2)
        channel.basic_recover(requeue=True)
        assert inbox.wait(4) == numbered(0, 1, 0, 1)
        assert inbox.redelivered == [False, False, True, True]

    def test_does_not_happen_when_only_the_consumer_is_cancelled(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        channel = connection.channel()
        fill(channel, unique, range(3))
        inbox = Inbox(channel, unique)
        inbox.wait(3)
        raw(channel).basic_cancel(
            inbox.tag
        )  # below pika's blocking surface, which nacks what it has not handed out
        assert counts(connection.channel(), unique) == 0
        channel.basic_ack(inbox.tags[0])
        close_at_once(channel)
        assert drain(connection.channel(), unique) == numbered(1, 2)


class TestGet:
    def test_of_an_empty_queue_says_so(self, channel: BlockingChannel, unique: str) -> None:
        channel.queue_declare(unique, exclusive=True)
        assert channel.basic_get(unique) == (None, None, None)

    def test_counts_what_is_left(self, channel: BlockingChannel, unique: str) -> None:
        fill(channel, unique, range(3))
        assert [channel.basic_get(unique)[0].message_count for _ in range(3)] == [2, 1, 0]

    def test_tells_where_the_message_was_published(self, channel: BlockingChannel, unique: str) -> None:
        channel.queue_declare(unique, exclusive=True)
        channel.queue_bind(unique, "amq.topic", f"{unique}.#")
        channel.basic_publish("amq.topic", f"{unique}.key", b"")
        channel.confirm_delivery()
        method, _, _ = channel.basic_get(unique)
        assert (method.exchange, method.routing_key) == ("amq.topic", f"{unique}.key")

    def test_then_requeue_leaves_the_queue_as_it_was(self, channel: BlockingChannel, unique: str) -> None:
        fill(channel, unique, range(2))
        for _ in range(3):  # how the config record is read
            method, _, body = channel.basic_get(unique)
            assert body == b"0"
            channel.basic_nack(method.delivery_tag)
        assert eventually(lambda: counts(channel, unique) == 2)

    def test_is_not_bound_by_prefetch(self, channel: BlockingChannel, unique: str) -> None:
        fill(channel, unique, range(3))
        channel.basic_qos(prefetch_count=1)
        assert [channel.basic_get(unique)[2] for _ in range(3)] == numbered(0, 1, 2)


class TestConsumer:
    def test_tag_is_the_clients_or_made_up(self, channel: BlockingChannel, unique: str) -> None:
        channel.queue_declare(unique, exclusive=True)
        answers: list[Any] = []
        raw(channel).basic_consume(unique, lambda *_: None, consumer_tag="", callback=answers.append)
        assert pump(channel, lambda: bool(answers))
        assert answers[0].method.consumer_tag
        assert channel.basic_consume(unique, print, consumer_tag="mine") == "mine"

    def test_tag_used_twice_on_a_channel_closes_the_connection(
        self, channel: BlockingChannel, unique: str
    ) -> None:
        channel.queue_declare(unique, exclusive=True)
        send = raw(channel).send  # pika itself refuses to use a tag twice
        for _ in range(2):
            send(pika.spec.Basic.Consume(queue=unique, consumer_tag="mine"))
        assert refusal(lambda: counts(channel, unique)) == ("connection", 530, "NOT_ALLOWED")

    def test_tag_may_be_used_again_on_another_channel(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        first, second = connection.channel(), connection.channel()
        fill(first, unique, range(2))
        first.basic_qos(prefetch_count=1)
        second.basic_qos(prefetch_count=1)
        inboxes = [Inbox(channel, unique, consumer_tag="mine") for channel in (first, second)]
        for inbox in inboxes:
            assert len(inbox.wait(1)) == 1

    def test_cancelled_gets_nothing_more(self, channel: BlockingChannel, unique: str) -> None:
        channel.queue_declare(unique, exclusive=True)
        inbox = Inbox(channel, unique)
        channel.basic_cancel(inbox.tag)
        channel.basic_publish("", unique, b"0")
        assert inbox.stays_at(0)
        assert drain(channel, unique) == numbered(0)

    def test_cancel_of_an_unknown_tag_is_no_error(self, channel: BlockingChannel, unique: str) -> None:
        raw(channel).send(pika.spec.Basic.Cancel(consumer_tag=unique))
        assert refusal(lambda: channel.queue_declare(unique, exclusive=True)) is None

    def test_that_wants_the_queue_alone_is_refused_beside_another(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        channel = connection.channel()
        channel.queue_declare(unique, exclusive=True)
        alone = Inbox(channel, unique, exclusive=True)
        second = connection.channel()
        assert refusal(lambda: Inbox(second, unique)) == ("channel", 403, "ACCESS_REFUSED")
        channel.basic_cancel(alone.tag)
        Inbox(channel, unique)
        third = connection.channel()
        assert refusal(lambda: Inbox(third, unique, exclusive=True)) == ("channel", 403, "ACCESS_REFUSED")

    def test_paused_by_channel_flow_is_not_a_thing_the_broker_grants(
        self, channel: BlockingChannel, unique: str
    ) -> None:
        raw(channel).send(pika.spec.Channel.Flow(active=False))
        assert refusal(lambda: channel.queue_declare(unique, exclusive=True)) == (
            "connection",
            540,
            "NOT_IMPLEMENTED",
        )
