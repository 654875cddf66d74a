"""The largest message: announced, and refused in RabbitMQ's words (tests/oracle/test_publishing.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lbg_core.amqp.methods import (
    BasicAck,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    QueueDeclare,
    QueueDeclareOk,
)
from testing.amqp.plain_client import PlainClient
from testing.broker.embedded import EmbeddedBroker

LIMIT = 300_000


@pytest.fixture(scope="module")
def limited(process: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    data_dir: Path = tmp_path_factory.mktemp("limited") / "data"
    with EmbeddedBroker(data_dir, settings={"message_max_bytes": LIMIT}) as broker:
        yield broker


def test_a_client_is_told_the_limit_when_it_connects(limited: EmbeddedBroker) -> None:
    with PlainClient(limited.port) as client:
        assert client.server_properties["max_message_size"] == LIMIT


def test_a_message_of_the_limit_is_taken_and_a_larger_one_closes_its_channel(limited: EmbeddedBroker) -> None:
    with PlainClient(limited.port) as client:
        client.ask(QueueDeclare("q"), QueueDeclareOk)
        client.ask(ConfirmSelect(), ConfirmSelectOk)
        client.publish(b"x" * LIMIT, "q")
        client.flush()
        client.wait(BasicAck)
        client.publish(b"x" * (LIMIT + 1), "q")
        close = client.wait(ChannelClose)
        assert (close.reply_code, close.reply_text, close.failing_class_id, close.failing_method_id) == (
            406,
            f"PRECONDITION_FAILED - message size {LIMIT + 1} is larger than configured max size {LIMIT}",
            60,
            40,
        )
        client.send(ChannelCloseOk())
        client.ask(ChannelOpen(), ChannelOpenOk)
        assert client.ask(QueueDeclare("q", True), QueueDeclareOk).message_count == 1
