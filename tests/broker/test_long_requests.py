"""A request that takes long, or would for ever: others have their confirms meanwhile."""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from urllib.parse import quote

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from lbg_core.amqp.methods import QueueDeclare, QueueDeclareOk
from testing.amqp.plain_client import PlainClient
from testing.broker.embedded import EmbeddedBroker
from testing.waiting import GUARD_S

HOSTILE = "(a+)+$"
NAME = "a" * 60 + "!"


def asked(broker: EmbeddedBroker, verb: str, path: str, body: object = None, *, user: str = "guest") -> int:
    login = base64.b64encode(f"{user}:{user}".encode()).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{broker.management_port}/api/{path}",
        method=verb,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Basic {login}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=GUARD_S) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


OPEN: list[pika.BlockingConnection] = []


@pytest.fixture(autouse=True)
def _closed_after(own_broker: EmbeddedBroker) -> Iterator[None]:
    yield
    for connection in OPEN:
        if connection.is_open:
            connection.close()
    OPEN.clear()


def channel_of(broker: EmbeddedBroker, user: str = "guest") -> BlockingChannel:
    url = broker.url.replace("guest:guest", f"{user}:{user}")
    OPEN.append(pika.BlockingConnection(pika.URLParameters(url)))
    return OPEN[-1].channel()


def confirms_beside(broker: EmbeddedBroker, hostile: Callable[[], object]) -> int:
    """Confirms that another client gets while `hostile` runs, and one after it at least."""
    over = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            hostile()
        except BaseException as error:
            failed.append(error)
        finally:
            over.set()

    confirmed = 0

    def publish() -> None:
        nonlocal confirmed
        channel = channel_of(broker)
        channel.confirm_delivery()
        channel.queue_declare("beside", arguments={"x-max-length": 10})
        begun.set()
        while not over.is_set():
            channel.basic_publish("", "beside", b"x")
            confirmed += 1
        channel.basic_publish("", "beside", b"x")
        confirmed += 1

    begun = threading.Event()
    beside, runner = threading.Thread(target=publish, daemon=True), threading.Thread(target=run, daemon=True)
    beside.start()
    assert begun.wait(GUARD_S)
    runner.start()
    beside.join(GUARD_S)
    assert not beside.is_alive(), "no confirm"
    assert not failed
    return confirmed


def test_a_filter_of_names_stops_nobody(own_broker: EmbeddedBroker) -> None:
    channel_of(own_broker).queue_declare(NAME)
    path = f"queues?page=1&use_regex=true&name={quote(HOSTILE)}"
    assert confirms_beside(own_broker, lambda: asked(own_broker, "GET", path))


def test_a_pattern_of_permissions_stops_nobody(own_broker: EmbeddedBroker) -> None:
    asked(own_broker, "PUT", "users/ada", {"password": "ada", "tags": ""})
    patterns = dict.fromkeys(("configure", "write", "read"), HOSTILE)
    assert asked(own_broker, "PUT", "permissions/%2F/ada", patterns) == 201

    def declare() -> None:
        with pytest.raises(pika.exceptions.ChannelClosedByBroker):
            channel_of(own_broker, "ada").queue_declare(NAME)

    assert confirms_beside(own_broker, declare)


def test_topic_patterns_stop_nobody(own_broker: EmbeddedBroker) -> None:
    channel = channel_of(own_broker)
    channel.exchange_declare("topics", "topic")
    channel.queue_declare("topics", arguments={"x-max-length": 1})
    channel.queue_bind("topics", "topics", ".".join(["*", "#"] * 62))

    def publish() -> None:
        for number in range(1000):
            channel.basic_publish("topics", "a." * 120 + str(number), b"")
        channel.queue_declare("topics", passive=True)

    assert confirms_beside(own_broker, publish)


def test_patterns_that_cost_a_publish_too_much_are_refused(own_broker: EmbeddedBroker) -> None:
    channel = channel_of(own_broker)
    channel.exchange_declare("searched", "topic")
    channel.queue_declare("searched")
    for number in range(9):
        channel.queue_bind("searched", "searched", "#." + "a." * 100 + str(number))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="words behind a '#'"):
        channel.queue_bind("searched", "searched", "#." + "a." * 100 + "9")


def test_messages_to_many_queues_in_one_read_leave_others_their_turn(own_broker: EmbeddedBroker) -> None:
    channel = channel_of(own_broker)
    for number in range(1000):
        channel.queue_declare(f"q{number}", arguments={"x-max-length": 1})
        channel.queue_bind(f"q{number}", "amq.fanout")

    def publish() -> None:
        with PlainClient(own_broker.port) as client:
            for _ in range(400):
                client.publish(b"", "", exchange="amq.fanout")
            client.flush()
            client.ask(QueueDeclare("q0", passive=True), QueueDeclareOk)

    assert confirms_beside(own_broker, publish) > 20
