"""Queues of refused and expired messages, and their x-death headers."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testing.broker.engines import Engine, Inbox, drain, eventually


@pytest.fixture
def names(channel: BlockingChannel, unique: str) -> tuple[str, str]:
    """A queue, and the queue where its dead letters go by way of a fanout exchange."""
    queue, dead = f"{unique}.q", f"{unique}.dead"
    channel.exchange_declare(f"{unique}.dlx", "fanout", auto_delete=True)
    channel.queue_declare(dead, exclusive=True)
    channel.queue_bind(dead, f"{unique}.dlx", "")
    channel.queue_declare(queue, exclusive=True, arguments={"x-dead-letter-exchange": f"{unique}.dlx"})
    return queue, dead


def get_dead(channel: BlockingChannel, dead: str) -> tuple[Any, Any, bytes]:
    assert eventually(lambda: channel.queue_declare(dead, passive=True).method.message_count > 0)
    method, properties, body = channel.basic_get(dead, auto_ack=True)
    return method, properties, body


@pytest.mark.parametrize("how", ["reject", "nack"])
def test_a_refused_message_is_dead_lettered_with_its_history(
    channel: BlockingChannel, names: tuple[str, str], unique: str, how: str
) -> None:
    queue, dead = names
    channel.queue_bind(queue, "amq.topic", f"{unique}.#")
    sent = pika.BasicProperties(
        headers={"mine": 1}, message_id="m", delivery_mode=2, content_type="text/plain"
    )
    channel.basic_publish("amq.topic", f"{unique}.key", b"body", sent)
    channel.confirm_delivery()
    method, _, _ = channel.basic_get(queue)
    settle = channel.basic_reject if how == "reject" else channel.basic_nack
    settle(method.delivery_tag, requeue=False)
    method, properties, body = get_dead(channel, dead)
    assert body == b"body"
    assert (method.exchange, method.routing_key) == (f"{unique}.dlx", f"{unique}.key")
    assert (properties.message_id, properties.delivery_mode, properties.content_type) == (
        "m",
        2,
        "text/plain",
    )
    headers = properties.headers
    (death,) = headers["x-death"]
    assert death.pop("time") is not None
    assert death == {
        "count": 1,
        "exchange": "amq.topic",
        "queue": queue,
        "reason": "rejected",
        "routing-keys": [f"{unique}.key"],
    }
    assert headers["x-first-death-exchange"] == "amq.topic"
    assert headers["x-first-death-queue"] == queue
    assert headers["x-first-death-reason"] == "rejected"
    assert headers["mine"] == 1


def test_a_dead_letter_is_new_to_who_gets_it_but_on_rabbitmq_from_4_3_on_if_it_was_delivered_before_it_died(
    engine: Engine, channel: BlockingChannel, names: tuple[str, str]
) -> None:
    queue, dead = names
    channel.basic_publish("", queue, b"body")
    assert eventually(lambda: channel.queue_declare(queue, passive=True).method.message_count > 0)
    method, _, _ = channel.basic_get(queue)
    channel.basic_reject(method.delivery_tag, requeue=False)
    method, _, _ = get_dead(channel, dead)
    assert method.redelivered is engine.is_4_3


def test_order_is_kept_when_several_are_refused_at_once(
    channel: BlockingChannel, names: tuple[str, str]
) -> None:
    queue, dead = names
    for number in range(10):
        channel.basic_publish("", queue, b"%d" % number)
    inbox = Inbox(channel, queue)
    inbox.wait(10)
    channel.basic_nack(0, multiple=True, requeue=False)
    assert Inbox(channel, dead, auto_ack=True).wait(10) == [b"%d" % number for number in range(10)]


def test_a_second_death_for_the_same_reason_is_counted_unless_a_client_published_in_between(
    engine: Engine, channel: BlockingChannel, names: tuple[str, str]
) -> None:
    """4.0 does not believe the x-death that a client publishes; before, and on the embedded broker, it goes on."""
    queue, dead = names
    channel.basic_publish("", queue, b"")
    channel.confirm_delivery()
    for count in (1, 2):
        method, _, _ = channel.basic_get(queue)
        channel.basic_reject(method.delivery_tag, requeue=False)
        _, properties, body = get_dead(channel, dead)
        (death,) = properties.headers["x-death"]
        assert death["count"] == (1 if engine.is_4 else count)
        channel.basic_publish("", queue, body, properties)


def test_deaths_in_several_queues_are_listed_latest_first(channel: BlockingChannel, unique: str) -> None:
    for name, target in (("a", "b"), ("b", "end")):
        arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"{unique}.{target}"}
        channel.queue_declare(f"{unique}.{name}", exclusive=True, arguments=arguments)
    channel.queue_declare(f"{unique}.end", exclusive=True)
    channel.basic_publish("", f"{unique}.a", b"")
    for name in ("a", "b"):
        method, _, _ = get_live(channel, f"{unique}.{name}")
        channel.basic_reject(method.delivery_tag, requeue=False)
    method, properties, _ = get_dead(channel, f"{unique}.end")
    assert [death["queue"] for death in properties.headers["x-death"]] == [f"{unique}.b", f"{unique}.a"]
    assert properties.headers["x-first-death-queue"] == f"{unique}.a"
    assert method.routing_key == f"{unique}.end"


def get_live(channel: BlockingChannel, queue: str) -> tuple[Any, Any, bytes]:
    assert eventually(lambda: channel.queue_declare(queue, passive=True).method.message_count > 0)
    method, properties, body = channel.basic_get(queue)
    return method, properties, body


def test_a_missing_dead_letter_exchange_means_the_message_is_dropped(
    channel: BlockingChannel, unique: str
) -> None:
    channel.queue_declare(unique, exclusive=True, arguments={"x-dead-letter-exchange": f"{unique}.none"})
    channel.basic_publish("", unique, b"")
    method, _, _ = get_live(channel, unique)
    channel.basic_reject(method.delivery_tag, requeue=False)
    assert drain(channel, unique) == []


def test_a_rejected_message_may_go_round_to_its_own_queue(channel: BlockingChannel, unique: str) -> None:
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": unique}
    channel.queue_declare(unique, exclusive=True, arguments=arguments)
    channel.basic_publish("", unique, b"again")
    method, _, _ = get_live(channel, unique)
    channel.basic_reject(method.delivery_tag, requeue=False)
    _, properties, body = get_live(channel, unique)
    assert body == b"again"
    assert properties.headers["x-death"][0]["count"] == 1


def test_requeueing_never_dead_letters(channel: BlockingChannel, names: tuple[str, str]) -> None:
    queue, dead = names
    channel.basic_publish("", queue, b"")
    for _ in range(3):
        method, _, _ = get_live(channel, queue)
        channel.basic_nack(method.delivery_tag, requeue=True)
    assert drain(channel, dead) == []
    assert len(drain(channel, queue)) == 1


def test_purging_and_deleting_never_dead_letter(channel: BlockingChannel, names: tuple[str, str]) -> None:
    queue, dead = names
    channel.basic_publish("", queue, b"")
    channel.queue_purge(queue)
    channel.basic_publish("", queue, b"")
    channel.queue_delete(queue)
    assert drain(channel, dead) == []


@pytest.fixture
def by_key(channel: BlockingChannel, unique: str) -> tuple[str, dict[str, str]]:
    """A direct dead-letter exchange, and the queues `own`, `copy`, `hidden` and `given` bound to it by those keys."""
    exchange = f"{unique}.dlx"
    channel.exchange_declare(exchange, "direct", auto_delete=True)
    queues = {}
    for key in ("own", "copy", "hidden", "given"):
        queues[key] = f"{unique}.dead.{key}"
        channel.queue_declare(queues[key], exclusive=True)
        channel.queue_bind(queues[key], exchange, key)
    return exchange, queues


@pytest.mark.parametrize("given", [None, "given"])
@pytest.mark.parametrize("kind", ["classic", "quorum"])
@pytest.mark.parametrize("reason", ["rejected", "maxlen"])
def test_the_keys_in_cc_and_bcc_count_for_a_letter_whose_queue_gives_it_no_key(
    engine: Engine,
    channel: BlockingChannel,
    by_key: tuple[str, dict[str, str]],
    unique: str,
    given: str | None,
    kind: str,
    reason: str,
) -> None:
    """«Sender-Selected Distribution», «Dead Letter Exchanges»: a letter has the keys that it was published with,
    those of CC and BCC too; a key of the queue's own takes the place of all of them. RabbitMQ from 4.0 on leaves the
    header CC in the letter all the same."""
    exchange, dead = by_key
    queue = f"{unique}.q"
    arguments: dict[str, Any] = {"x-dead-letter-exchange": exchange, "x-queue-type": kind}
    if given is not None:
        arguments["x-dead-letter-routing-key"] = given
    if reason == "maxlen":
        arguments["x-max-length"] = 1
    channel.queue_declare(queue, durable=kind == "quorum", exclusive=kind == "classic", arguments=arguments)
    try:
        channel.queue_bind(queue, "amq.direct", "own")
        sent = pika.BasicProperties(headers={"CC": ["copy"], "BCC": ["hidden"], "mine": 1}, delivery_mode=2)
        channel.confirm_delivery()
        channel.basic_publish("amq.direct", "own", b"first", sent)
        if reason == "maxlen":
            channel.basic_publish("amq.direct", "own", b"second", pika.BasicProperties(delivery_mode=2))
        else:
            method, properties, _ = channel.basic_get(queue)
            headers = {
                name: value for name, value in properties.headers.items() if name != "x-delivery-count"
            }
            assert headers == {"CC": ["copy"], "mine": 1}
            channel.basic_reject(method.delivery_tag, requeue=False)
        keys = ["own", "copy", "hidden"] if given is None else ["given"]
        for key in keys:
            method, properties, body = get_dead(channel, dead[key])
            assert (body, method.routing_key) == (b"first", "own" if given is None else "given")
            (death,) = properties.headers["x-death"]
            assert death["routing-keys"] == ["own", "copy"]
            is_kept = given is None or engine.is_4
            assert properties.headers.get("CC") == (["copy"] if is_kept else None)
            assert "BCC" not in properties.headers
            assert properties.headers["mine"] == 1
        for key in dead.keys() - set(keys):
            assert channel.queue_declare(dead[key], passive=True).method.message_count == 0
    finally:
        channel.queue_delete(queue)
