"""A partitioned queue on a broker that is a process, and what pika does with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pika
import pika.exceptions
from pika.adapters.blocking_connection import BlockingChannel

from testing.broker.embedded import EmbeddedBroker
from testing.broker_core.sessions import queue_json
from testing.waiting import until

DELAY_MS = 100
ARGUMENTS = {"x-queue-type": "partitioned", "x-partition-count": 4, "x-rebalance-delay": DELAY_MS}
KEYS = [f"key-{number}" for number in range(20)]


@contextmanager
def pika_channel(broker: EmbeddedBroker) -> Iterator[BlockingChannel]:
    connection = pika.BlockingConnection(pika.URLParameters(broker.url))
    try:
        yield connection.channel()
    finally:
        with suppress(pika.exceptions.AMQPError):
            connection.close()


def eventually(condition: Callable[[], object]) -> None:
    asyncio.run(until(condition))


def declare(broker: EmbeddedBroker, name: str, **more: Any) -> None:
    with pika_channel(broker) as channel:
        channel.queue_declare(name, durable=True, arguments=ARGUMENTS | more)


def publish(
    broker: EmbeddedBroker, name: str, *, header: str = "JMSXGroupID", first: int = 0, rounds: int = 3
) -> None:
    """A message for each key in each round, confirmed."""
    with pika_channel(broker) as channel:
        channel.confirm_delivery()
        for number in range(first, first + rounds):
            for key in KEYS:
                properties = pika.BasicProperties(headers={header: key}, delivery_mode=2)
                channel.basic_publish("", name, f"{key} {number}".encode(), properties)


def statuses(broker: EmbeddedBroker, name: str) -> list[str]:
    return [partition["status"] for partition in queue_json(broker, name)["partitions"]]


def is_balanced(broker: EmbeddedBroker, name: str) -> bool:
    described = queue_json(broker, name)
    return described["rebalance_status"] == "Ready" and set(statuses(broker, name)) == {"Ready"}


def is_in_order(bodies: list[bytes]) -> bool:
    last: dict[str, int] = {}
    for body in bodies:
        key, number = body.decode().split()
        if int(number) != last.get(key, -1) + 1:
            return False
        last[key] = int(number)
    return True
