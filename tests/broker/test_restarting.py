"""State after a restart: everything confirmed, in order, and marked as redelivered."""

import pytest

from lbg_broker.core.effects import Definition, StoredState
from lbg_broker.core.errors import RestoreError
from lbg_broker.core.spool import LEAD_MIN
from lbg_core.amqp.methods import (
    BasicAck,
    ExchangeBind,
    ExchangeBindOk,
    ExchangeDeclare,
    ExchangeDeclareOk,
    QueueBind,
    QueueBindOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
    QueueUnbind,
    QueueUnbindOk,
)
from testing.broker_core.world import World, numbered


def test_a_confirmed_message_is_there_after_a_crash_and_an_unwritten_one_is_not() -> None:
    world = World()
    client = world.client().confirms()
    client.queue()
    client.publish(b"confirmed")
    world.commit()
    client.publish(b"only sent")
    world.crash()
    client = world.client()
    client.consume()
    world.commit()
    assert client.bodies() == [b"confirmed"]


def test_a_batch_that_reached_the_disk_counts_even_if_nobody_heard() -> None:
    world = World()
    client = world.client().confirms()
    client.queue()
    client.publish(b"written")
    world.seal()
    world.crash(written=True)
    assert world.queue().messages_ready == 1


def test_the_answer_to_a_durable_declare_waits_for_the_disk() -> None:
    world = World()
    client = world.client()
    client.say(QueueDeclare("q", durable=True))
    assert client.said(QueueDeclareOk) == []
    world.commit()
    assert client.said(QueueDeclareOk) == [QueueDeclareOk("q", 0, 0)]
    client.say(QueueDeclare("q", durable=True))
    assert len(client.said(QueueDeclareOk)) == 2


def test_durable_definitions_come_back_and_others_do_not() -> None:
    world = World()
    client = world.client()
    arguments = {"x-single-active-consumer": True, "x-max-length": 7, "anything": [1, {"deep": b"\xff"}]}
    client.queue("kept", arguments=arguments)
    client.queue("fleeting", durable=False)
    client.queue("mine", exclusive=True)
    client.queue("deleted")
    for name, durable in (("e", True), ("f", False), ("inner", True)):
        client.ask(
            ExchangeDeclare(name, "topic", durable=durable, arguments={"alternate-exchange": "inner"}),
            ExchangeDeclareOk,
        )
    for queue, exchange, key in (
        ("kept", "e", "a.#"),
        ("kept", "e", "unbound"),
        ("kept", "f", "b"),
        ("fleeting", "e", "c"),
        ("deleted", "e", "d"),
    ):
        client.ask(QueueBind(queue, exchange, key), QueueBindOk)
    client.ask(ExchangeBind("inner", "e", "x"), ExchangeBindOk)
    client.ask(QueueUnbind("kept", "e", "unbound"), QueueUnbindOk)
    client.ask(QueueDelete("deleted"), QueueDeleteOk)
    world.crash()
    vhost = world.broker.state.vhosts["/"]
    assert set(vhost.queues) == {"kept"}
    assert vhost.queues["kept"].arguments == arguments
    assert vhost.queues["kept"].rules.max_length == 7
    assert {name for name in vhost.exchanges if name and not name.startswith("amq.")} == {"e", "inner"}
    assert vhost.exchanges["e"].alternate == "inner"
    assert [(binding.routing_key, binding.destination) for binding in vhost.exchanges["e"].bindings] == [
        ("x", "inner"),
        ("a.#", "kept"),
    ]


def test_messages_that_were_given_out_come_back_as_redelivered() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.publish(*numbered(LEAD_MIN + 10))
    client.consume(prefetch=3)
    world.commit()
    world.crash()
    client = world.client()
    client.consume()
    world.commit()
    deliveries = client.take()
    assert [delivery.body for delivery in deliveries] == list(numbered(LEAD_MIN + 10))
    assert all(delivery.redelivered for delivery in deliveries[:3])
    assert not any(delivery.redelivered for delivery in deliveries[LEAD_MIN:])


def test_nothing_is_given_out_before_the_disk_knows_that_it_may_be() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.publish(*numbered(LEAD_MIN * 3))
    client.consume(no_ack=False)
    for _ in range(20):
        given_out = len(client.deliveries)
        assert given_out <= world.store.records[world.queue().spool.id].mark
        if not (world.finish() or world.seal()):
            break
    assert len(client.deliveries) == LEAD_MIN * 3


def test_after_an_orderly_stop_only_what_was_given_out_is_redelivered() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.publish(*numbered(6))
    client.consume(prefetch=3)
    client.ack(1)
    world.commit()
    world.stop()
    client = world.client()
    client.consume()
    world.commit()
    assert [(delivery.body, delivery.redelivered) for delivery in client.take()] == [
        (b"1", True),
        (b"2", True),
        (b"3", True),
        (b"4", False),
        (b"5", False),
    ]


def test_new_messages_after_a_crash_are_not_called_redelivered() -> None:
    world = World()
    client = world.client()
    client.queue()
    client.publish(b"old")
    client.consume()
    world.commit()
    client.say(BasicAck(1))
    world.commit()
    world.crash()
    client = world.client()
    client.publish(b"new")
    client.consume()
    world.commit()
    (delivery,) = client.take()
    assert (delivery.body, delivery.redelivered) == (b"new", False)


def test_limits_count_what_was_there_before() -> None:
    world = World()
    client = world.client()
    arguments = {"x-max-length-bytes": 10, "x-overflow": "reject-publish"}
    client.queue(arguments=arguments)
    client.publish(b"12345678")
    world.commit()
    world.crash()
    client = world.client().confirms()
    client.publish(b"123", b"12")
    world.commit()
    assert world.store.bodies(world.queue().spool.id) == [b"12345678", b"12"]


def test_a_store_that_contradicts_itself_is_refused() -> None:
    world = World()
    world.client().queue()
    stored = world.store.load()
    with pytest.raises(RestoreError, match="cannot be read"):
        world.broker.__class__(world.authority, new_token=str, stored=StoredState(stored.definitions, []))
    with pytest.raises(RestoreError):
        world.broker.__class__(
            world.authority,
            new_token=str,
            stored=StoredState([Definition("queue", '["/","q"]', "{}")], stored.spools),
        )
