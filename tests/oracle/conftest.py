"""Every scenario runs on RabbitMQ and on the embedded broker; what RabbitMQ does is what is right."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from support.engines import Engine
from support.rabbitmq import RabbitNode


@pytest.fixture(scope="session")
def rabbit_engine(rabbitmq: RabbitNode) -> Engine:
    def crash_and_start() -> None:
        rabbitmq.kill()
        rabbitmq.start()

    return Engine("rabbitmq", rabbitmq.port, rabbitmq.management_port, crash_and_start)


@pytest.fixture(scope="session", params=["rabbitmq"])
def engine(request: pytest.FixtureRequest) -> Engine:
    fixture = {"rabbitmq": "rabbit_engine", "embedded": "embedded_engine"}[request.param]
    made: Engine = request.getfixturevalue(fixture)
    return made


@pytest.fixture
def connection(engine: Engine) -> Iterator[pika.BlockingConnection]:
    with engine.connected() as connection:
        yield connection


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    return connection.channel()
