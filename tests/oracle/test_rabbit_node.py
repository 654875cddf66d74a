"""The private RabbitMQ node that the embedded broker is measured against."""

from __future__ import annotations

import pika

from support.rabbitmq import RabbitNode


def test_a_node_keeps_durable_queues_when_it_is_killed_and_started_again() -> None:
    with RabbitNode() as node:
        with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
            connection.channel().queue_declare("kept", durable=True)
        node.kill()
        node.start()
        with pika.BlockingConnection(pika.URLParameters(node.amqp_url)) as connection:
            assert connection.channel().queue_declare("kept", passive=True).method.queue == "kept"


def test_virtual_hosts_keep_tests_apart(rabbit_vhost: str) -> None:
    with pika.BlockingConnection(pika.URLParameters(rabbit_vhost)) as connection:
        assert connection.channel().queue_declare("q", durable=True).method.message_count == 0
