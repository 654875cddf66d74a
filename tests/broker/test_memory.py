"""The backlog is on disk, not in memory."""

import pytest

from lbg_core.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicQos,
    BasicQosOk,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from testing.amqp.plain_client import PlainClient
from testing.broker.embedded import EmbeddedBroker

MESSAGES = 50_000
BODY = b"x" * 1024


@pytest.mark.parametrize("durable", [True, False])
def test_memory_does_not_grow_with_the_backlog(
    shared_broker: EmbeddedBroker, unique: str, durable: bool
) -> None:
    with PlainClient(shared_broker.port) as client:
        client.ask(QueueDeclare(unique, durable=durable), QueueDeclareOk)
        client.ask(ConfirmSelect(), ConfirmSelectOk)
        before = shared_broker.memory_bytes()
        for _ in range(MESSAGES // 100):
            for _ in range(100):
                client.publish(BODY, unique)
            client.flush()
        confirmed = 0
        while confirmed < MESSAGES:
            ack = client.wait(BasicAck)
            confirmed = ack.delivery_tag if ack.multiple else confirmed + 1
        assert client.ask(QueueDeclare(unique, True), QueueDeclareOk).message_count == MESSAGES
        assert shared_broker.memory_bytes() - before < 30 << 20
        client.ask(BasicQos(0, 500, False), BasicQosOk)
        client.ask(BasicConsume(unique, "c"), BasicConsumeOk)
        for _ in range(MESSAGES // 500):
            last = client.deliveries(500)[-1]
            client.wire.ack(1, last.delivery_tag, multiple=True)
        assert shared_broker.memory_bytes() - before < 30 << 20
        assert client.ask(QueueDelete(unique), QueueDeleteOk).message_count == 0


def test_a_consumer_that_takes_everything_and_acks_nothing_costs_little(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    body = b"x" * 8192
    with PlainClient(shared_broker.port) as client:
        client.ask(QueueDeclare(unique, durable=True), QueueDeclareOk)
        for _ in range(10_000):
            client.publish(body, unique)
            client.flush()
        before = shared_broker.memory_bytes()
        client.ask(BasicConsume(unique, "c"), BasicConsumeOk)
        assert len(client.deliveries(10_000)) == 10_000
        assert shared_broker.memory_bytes() - before < 50 << 20
    with PlainClient(shared_broker.port) as client:
        client.ask(BasicConsume(unique, "c", no_ack=True), BasicConsumeOk)
        assert all(delivery.body == body for delivery in client.deliveries(10_000))
        client.ask(QueueDelete(unique), QueueDeleteOk)
