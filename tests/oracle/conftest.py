"""Every scenario is what RabbitMQ does: `make test` runs it on the embedded broker, `make test-all` on both."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testing.broker.embedded import EmbeddedBroker
from testing.broker.engines import Engine
from testing.rabbitmq.node import RabbitNode


@pytest.fixture(scope="session")
def rabbit_engine(rabbitmq: RabbitNode) -> Engine:
    def crash_and_start() -> None:
        rabbitmq.evaluate("catch mnesia:sync_log()")  # it writes declarations to disk up to 2 s late
        rabbitmq.kill()
        rabbitmq.start()

    return Engine("rabbitmq", rabbitmq.port, rabbitmq.management_port, crash_and_start, rabbitmq.version)


@pytest.fixture(scope="session")
def embedded_engine(process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with EmbeddedBroker(tmp_path_factory.mktemp("oracle") / "data") as broker:

        def crash_and_start() -> None:
            broker.kill()
            broker.start()

        yield Engine("embedded", broker.port, broker.management_port, crash_and_start)


@pytest.fixture(scope="session", params=["rabbitmq", "embedded"])
def engine(process: None, request: pytest.FixtureRequest) -> Engine:
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
