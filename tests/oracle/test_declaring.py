"""Declaring, deleting and purging queues and exchanges, and who may."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import ChannelClosedByBroker

from testing.amqp.open_pika import OpenConnection
from testing.broker.engines import Engine, Inbox, cut, drain, eventually, refusal

NOT_FOUND = ("channel", 404, "NOT_FOUND")
LOCKED = ("channel", 405, "RESOURCE_LOCKED")
DIFFERENT = ("channel", 406, "PRECONDITION_FAILED")
TEN_YEARS_MS = 10 * 365 * 24 * 3600 * 1000


def test_declaring_the_same_queue_again_counts_messages_and_consumers(
    channel: BlockingChannel, unique: str
) -> None:
    channel.queue_declare(unique, exclusive=True)
    channel.confirm_delivery()
    for _ in range(3):
        channel.basic_publish("", unique, b"")
    counted = channel.queue_declare(unique, exclusive=True).method
    assert (counted.queue, counted.message_count, counted.consumer_count) == (unique, 3, 0)
    channel.basic_qos(prefetch_count=1)
    inbox = Inbox(channel, unique)
    inbox.wait(1)
    counted = channel.queue_declare(unique, passive=True).method
    assert (counted.message_count, counted.consumer_count) == (2, 1)  # unacknowledged ones are not counted


@pytest.mark.parametrize(
    "change",
    [
        {"durable": False},
        {"auto_delete": True},
        {"arguments": {}},
        {"arguments": {"x-single-active-consumer": False}},
        {"arguments": {"x-single-active-consumer": True, "x-max-length": 5}},
    ],
)
def test_a_queue_declared_differently_is_refused(
    channel: BlockingChannel, unique: str, change: dict[str, Any]
) -> None:
    same: dict[str, Any] = {"durable": True, "arguments": {"x-single-active-consumer": True}}
    channel.queue_declare(unique, **same)
    channel.queue_declare(unique, **same)
    assert refusal(lambda: channel.queue_declare(unique, **{**same, **change})) == DIFFERENT


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        (
            {"durable": True, "arguments": {"x-single-active-consumer": False}},
            "inequivalent arg 'x-single-active-consumer' for {queue}: received 'false' but current is 'true'",
        ),
        (
            {"durable": True},
            "inequivalent arg 'x-single-active-consumer' for {queue}: received none but current is the value 'true' "
            "of type 'bool'",
        ),
        (
            {"durable": False, "arguments": {"x-single-active-consumer": True}},
            "inequivalent arg 'durable' for {queue}: received 'false' but current is 'true'",
        ),
    ],
)
def test_a_different_declaration_has_the_same_reply_text(
    channel: BlockingChannel, unique: str, settings: dict[str, Any], reason: str
) -> None:
    channel.queue_declare(unique, durable=True, arguments={"x-single-active-consumer": True})
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(unique, **settings)
    assert refused.value.reply_text == "PRECONDITION_FAILED - " + reason.format(
        queue=f"queue '{unique}' in vhost '/'"
    )


def test_an_exclusive_quorum_queue_has_the_same_reply_text(channel: BlockingChannel, unique: str) -> None:
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_declare(unique, durable=True, exclusive=True, arguments={"x-queue-type": "quorum"})
    assert refused.value.reply_text == (
        f"PRECONDITION_FAILED - invalid property 'exclusive-owner' for queue '{unique}' in vhost '/'"
    )


@pytest.mark.parametrize(
    "change", [{"exchange_type": "fanout"}, {"durable": False}, {"auto_delete": True}, {"internal": True}]
)
def test_an_exchange_declared_differently_is_refused(
    channel: BlockingChannel, unique: str, change: dict[str, Any]
) -> None:
    same: dict[str, Any] = {"exchange_type": "topic", "durable": True}
    channel.exchange_declare(unique, **same)
    channel.exchange_declare(unique, **same)
    assert refusal(lambda: channel.exchange_declare(unique, **{**same, **change})) == DIFFERENT


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-max-length": -1},
        {"x-max-length": "many"},
        {"x-max-length-bytes": -1},
        {"x-message-ttl": -1},
        {"x-message-ttl": TEN_YEARS_MS + 1},
        {"x-expires": 0},
        {"x-expires": TEN_YEARS_MS + 1},
        {"x-overflow": "explode"},
        {"x-single-active-consumer": "yes"},
        {"x-dead-letter-routing-key": "key"},  # without x-dead-letter-exchange
        {"x-queue-type": "no-such-type"},
        {"x-max-priority": 256},
    ],
)
def test_an_argument_of_the_wrong_kind_is_refused(
    channel: BlockingChannel, unique: str, arguments: dict[str, Any]
) -> None:
    assert refusal(lambda: channel.queue_declare(unique, arguments=arguments)) == DIFFERENT


@pytest.mark.parametrize(
    "same",
    [
        {"x-max-length": 10},
        {"x-max-length-bytes": 1 << 40},
        {"x-expires": TEN_YEARS_MS},
        {"x-message-ttl": 1 << 32},
    ],
)
def test_integers_of_every_width_are_the_same_argument(
    channel: BlockingChannel, unique: str, same: dict[str, Any]
) -> None:
    channel.queue_declare(unique, arguments=same)
    assert refusal(lambda: channel.queue_declare(unique, arguments=same)) is None


@pytest.mark.parametrize("kind", ["classic", "quorum"])
def test_a_queue_type_is_accepted_and_may_be_left_out_or_not_accordingly(
    channel: BlockingChannel, unique: str, kind: str
) -> None:
    arguments = {"x-queue-type": kind, "x-single-active-consumer": True, "x-overflow": "reject-publish"}
    for _ in range(2):
        assert refusal(lambda: channel.queue_declare(unique, durable=True, arguments=arguments)) is None
    channel.queue_delete(unique)


@pytest.mark.parametrize(
    "settings",
    [{"durable": False}, {"durable": True, "exclusive": True}, {"durable": True, "auto_delete": True}],
)
def test_a_quorum_queue_is_durable_and_shared(
    channel: BlockingChannel, unique: str, settings: dict[str, Any]
) -> None:
    arguments = {"x-queue-type": "quorum"}
    assert refusal(lambda: channel.queue_declare(unique, arguments=arguments, **settings)) == DIFFERENT


def test_a_passive_declare_asks_only(channel: BlockingChannel, unique: str) -> None:
    channel.queue_declare(unique, durable=True, arguments={"x-max-length": 5})
    channel.queue_declare(unique, passive=True)  # no settings are compared
    channel.exchange_declare("amq.topic", "fanout", passive=True)
    assert refusal(lambda: channel.queue_declare(unique + ".none", passive=True)) == NOT_FOUND


def test_a_passive_declare_of_a_missing_exchange_is_not_found(channel: BlockingChannel, unique: str) -> None:
    assert refusal(lambda: channel.exchange_declare(unique, passive=True)) == NOT_FOUND


def test_the_server_names_a_queue_that_has_no_name(channel: BlockingChannel) -> None:
    first = channel.queue_declare("", exclusive=True).method.queue
    second = channel.queue_declare("", exclusive=True).method.queue
    assert first.startswith("amq.gen-")
    assert first != second
    channel.confirm_delivery()
    channel.basic_publish("", second, b"to the second", mandatory=True)
    assert drain(channel, second) == [b"to the second"]
    assert drain(channel, "") == []  # an empty name means the channel's last declared queue


def test_an_empty_name_means_the_last_queue_declared_on_the_channel(
    connection: pika.BlockingConnection, unique: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(unique, exclusive=True)
    channel.queue_bind("", "amq.topic", unique)
    channel.basic_publish("amq.topic", unique, b"x")
    assert channel.queue_purge("").method.message_count == 1
    assert refusal(lambda: connection.channel().queue_purge("")) == NOT_FOUND


def claims(connection: pika.BlockingConnection, queue: str) -> bool:
    """True if the connection gets the exclusive queue."""
    return refusal(lambda: connection.channel().queue_declare(queue, exclusive=True)) is None


class TestExclusive:
    """The queue belongs to one connection: the claim that a member makes on its index."""

    ACTIONS: tuple[Callable[[BlockingChannel, str], Any], ...] = (
        lambda channel, queue: channel.queue_declare(queue, exclusive=True),
        lambda channel, queue: channel.queue_declare(queue),
        lambda channel, queue: channel.queue_declare(queue, passive=True),
        lambda channel, queue: channel.basic_consume(queue, print),
        lambda channel, queue: channel.basic_get(queue),
        lambda channel, queue: channel.queue_bind(queue, "amq.topic", "key"),
        lambda channel, queue: channel.queue_purge(queue),
        lambda channel, queue: channel.queue_delete(queue),
    )

    @pytest.mark.parametrize("action", ACTIONS, ids=range(len(ACTIONS)))
    def test_is_locked_to_every_other_connection(
        self,
        engine: Engine,
        channel: BlockingChannel,
        unique: str,
        action: Callable[[BlockingChannel, str], Any],
    ) -> None:
        channel.queue_declare(unique, exclusive=True)
        with engine.connected() as other:
            theirs = other.channel()
            assert refusal(lambda: action(theirs, unique)) == LOCKED

    def test_is_open_to_another_channel_of_the_same_connection(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        connection.channel().queue_declare(unique, exclusive=True)
        assert drain(connection.channel(), unique) == []

    def test_takes_messages_from_everyone(
        self, engine: Engine, channel: BlockingChannel, unique: str
    ) -> None:
        channel.queue_declare(unique, exclusive=True)
        with engine.connected() as other:
            theirs = other.channel()
            theirs.confirm_delivery()
            theirs.basic_publish("", unique, b"hello", mandatory=True)
        assert drain(channel, unique) == [b"hello"]

    def test_is_free_when_its_connection_is_closed(self, engine: Engine, unique: str) -> None:
        with engine.connected() as first:
            first.channel().queue_declare(unique, exclusive=True)
        with engine.connected() as second:
            # 4.3 answers the close, and deletes the queue a moment later.
            assert eventually(lambda: claims(second, unique)) if engine.is_4_3 else claims(second, unique)

    def test_is_free_soon_after_its_connection_is_cut(self, engine: Engine, unique: str) -> None:
        first = OpenConnection(engine.parameters())
        first.channel().queue_declare(unique, exclusive=True)
        with engine.connected() as second:
            cut(first)
            assert eventually(lambda: claims(second, unique))

    def test_is_deleted_with_its_messages_and_bindings(self, engine: Engine, unique: str) -> None:
        with engine.connected() as first:
            channel = first.channel()
            channel.queue_declare(unique, exclusive=True)
            channel.exchange_declare(unique, "fanout")
            channel.queue_bind(unique, unique, "")
            channel.basic_publish("", unique, b"")
        with engine.connected() as second:
            channel = second.channel()
            channel.confirm_delivery()

            def is_gone() -> bool:
                try:
                    channel.basic_publish(unique, "", b"", mandatory=True)
                except pika.exceptions.UnroutableError:
                    return True
                except pika.exceptions.NackError:  # it is on its way out
                    return False
                return False

            assert eventually(is_gone) if engine.is_4_3 else is_gone()
            channel.exchange_delete(unique, if_unused=True)

    def test_stays_when_only_its_channel_closes(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        channel = connection.channel()
        channel.queue_declare(unique, exclusive=True)
        channel.close()
        assert refusal(lambda: connection.channel().queue_declare(unique, passive=True)) is None

    def test_is_not_the_same_as_a_shared_one(
        self, engine: Engine, channel: BlockingChannel, unique: str
    ) -> None:
        channel.queue_declare(unique)
        assert refusal(lambda: channel.queue_declare(unique, exclusive=True)) == LOCKED


class TestDelete:
    def test_counts_what_it_deletes(self, channel: BlockingChannel, unique: str) -> None:
        channel.queue_declare(unique)
        channel.confirm_delivery()
        channel.basic_publish("", unique, b"")
        channel.basic_publish("", unique, b"")
        assert channel.queue_delete(unique).method.message_count == 2

    def test_of_a_missing_queue_or_exchange_succeeds(self, channel: BlockingChannel, unique: str) -> None:
        assert channel.queue_delete(unique).method.message_count == 0
        channel.exchange_delete(unique)

    def test_if_empty_refuses_while_messages_are_there(self, channel: BlockingChannel, unique: str) -> None:
        channel.queue_declare(unique)
        channel.confirm_delivery()
        channel.basic_publish("", unique, b"")
        assert refusal(lambda: channel.queue_delete(unique, if_empty=True)) == DIFFERENT

    def test_if_empty_does_not_count_unacknowledged(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        channel = connection.channel()
        channel.queue_declare(unique)
        channel.confirm_delivery()
        channel.basic_publish("", unique, b"")
        channel.basic_get(unique)
        assert connection.channel().queue_delete(unique, if_empty=True).method.message_count == 0

    def test_if_unused_refuses_while_someone_consumes(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        channel = connection.channel()
        channel.queue_declare(unique)
        inbox = Inbox(channel, unique)
        assert refusal(lambda: connection.channel().queue_delete(unique, if_unused=True)) == DIFFERENT
        channel.basic_cancel(inbox.tag)
        connection.channel().queue_delete(unique, if_unused=True)

    def test_of_an_exchange_if_unused_refuses_while_bound(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        channel = connection.channel()
        channel.exchange_declare(unique, "topic")
        channel.queue_declare(unique, exclusive=True)
        channel.queue_bind(unique, unique, "#")
        assert refusal(lambda: connection.channel().exchange_delete(unique, if_unused=True)) == DIFFERENT
        channel.queue_unbind(unique, unique, "#")
        channel.exchange_delete(unique, if_unused=True)

    def test_of_an_exchange_takes_its_bindings_along(self, channel: BlockingChannel, unique: str) -> None:
        channel.exchange_declare(unique, "topic")
        channel.queue_declare(unique, exclusive=True)
        channel.queue_bind(unique, unique, "#")
        channel.exchange_delete(unique)
        channel.exchange_declare(unique, "topic", auto_delete=True)
        channel.confirm_delivery()
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish(unique, "key", b"", mandatory=True)

    def test_tells_a_consumer(self, connection: pika.BlockingConnection, unique: str) -> None:
        channel = connection.channel()
        channel.queue_declare(unique)
        inbox = Inbox(channel, unique)
        connection.channel().queue_delete(unique)
        inbox.stays_at(0)
        assert inbox.cancelled
        assert channel.is_open

    def test_forgets_messages_that_are_out_and_their_acks_are_still_good(
        self, connection: pika.BlockingConnection, unique: str
    ) -> None:
        channel = connection.channel()
        channel.queue_declare(unique)
        channel.basic_publish("", unique, b"")
        inbox = Inbox(channel, unique)
        inbox.wait(1)
        connection.channel().queue_delete(unique)
        channel.queue_declare(unique, exclusive=True)
        channel.basic_nack(inbox.tags[0])
        assert drain(channel, unique) == []


class TestPurge:
    def test_counts_and_leaves_unacknowledged_alone(self, channel: BlockingChannel, unique: str) -> None:
        channel.queue_declare(unique, exclusive=True)
        channel.confirm_delivery()
        for number in range(5):
            channel.basic_publish("", unique, b"%d" % number)
        method, _, _ = channel.basic_get(unique)
        assert channel.queue_purge(unique).method.message_count == 4
        channel.basic_nack(method.delivery_tag)
        assert drain(channel, unique) == [b"0"]

    def test_of_a_missing_queue_is_not_found(self, channel: BlockingChannel, unique: str) -> None:
        assert refusal(lambda: channel.queue_purge(unique)) == NOT_FOUND


@pytest.mark.parametrize(
    "action",
    [
        lambda channel, name: channel.queue_bind(name, "amq.topic", "key"),
        lambda channel, name: channel.queue_bind("", name, "key"),
        lambda channel, name: channel.basic_consume(name, print),
        lambda channel, name: channel.basic_get(name),
        lambda channel, name: channel.exchange_bind(name, "amq.topic", "key"),
    ],
)
def test_what_is_missing_is_not_found(
    channel: BlockingChannel, unique: str, action: Callable[[BlockingChannel, str], Any]
) -> None:
    channel.queue_declare("", exclusive=True)
    assert refusal(lambda: action(channel, unique)) == NOT_FOUND


def test_unbinding_what_is_not_bound_or_not_even_there_succeeds(
    channel: BlockingChannel, unique: str
) -> None:
    channel.queue_declare(unique, exclusive=True)
    for queue, exchange in (
        (unique, "amq.topic"),
        (unique + ".none", "amq.topic"),
        (unique, unique + ".none"),
    ):
        assert refusal(partial(channel.queue_unbind, queue, exchange, "key")) is None


def test_an_auto_delete_queue_goes_with_its_last_consumer(
    connection: pika.BlockingConnection, unique: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(unique, auto_delete=True)
    inboxes = [Inbox(channel, unique) for _ in range(2)]
    channel.basic_cancel(inboxes[0].tag)
    connection.channel().queue_declare(unique, passive=True)
    channel.basic_cancel(inboxes[1].tag)
    assert refusal(lambda: connection.channel().queue_declare(unique, passive=True)) == NOT_FOUND


def test_an_error_closes_its_channel_only(connection: pika.BlockingConnection, unique: str) -> None:
    kept = connection.channel()
    assert refusal(lambda: connection.channel().queue_declare(unique, passive=True)) == NOT_FOUND
    kept.queue_declare(unique, exclusive=True)
    again = connection.channel()
    assert again.queue_declare(unique, passive=True).method.queue == unique


def test_a_name_of_255_bytes_is_the_longest(channel: BlockingChannel, unique: str) -> None:
    name = unique.ljust(255, "x")
    channel.queue_declare(name, exclusive=True)
    channel.queue_bind(name, "amq.topic", "k" * 255)
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "k" * 255, b"", mandatory=True)
    assert len(drain(channel, name)) == 1
