"""Events of a publisher: confirms, returns, refusals; nothing is lost at any size."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from testing.amqp.open_pika import raw
from testing.broker.embedded import EmbeddedBroker
from testing.broker.engines import Engine, Inbox, drain, eventually, pump, refusal
from testing.rabbitmq.message_size import messages_of_at_most

PERSISTENT = pika.BasicProperties(delivery_mode=2)


def test_a_mandatory_return_comes_before_its_confirm(channel: BlockingChannel, unique: str) -> None:
    channel.confirm_delivery()
    with pytest.raises(
        pika.exceptions.UnroutableError
    ) as caught:  # pika looks at returns when the confirm comes
        channel.basic_publish(
            "amq.topic", unique, b"body", pika.BasicProperties(message_id="m"), mandatory=True
        )
    (returned,) = caught.value.messages
    assert (returned.method.reply_code, returned.method.reply_text) == (312, "NO_ROUTE")
    assert (returned.method.exchange, returned.method.routing_key) == ("amq.topic", unique)
    assert (returned.properties.message_id, returned.body) == ("m", b"body")


def test_without_mandatory_an_unroutable_message_is_confirmed(channel: BlockingChannel, unique: str) -> None:
    confirms: list[pika.frame.Method] = []
    select_confirms(channel, confirms.append)
    raw(channel).basic_publish("amq.topic", unique, b"")
    assert pump(channel, lambda: bool(confirms))
    assert isinstance(confirms[0].method, pika.spec.Basic.Ack)


def select_confirms(channel: BlockingChannel, note: Callable[[pika.frame.Method], None]) -> None:
    """Confirm mode below pika's blocking surface, which waits for each confirm."""
    selected: list[pika.frame.Method] = []
    raw(channel).confirm_delivery(note, callback=selected.append)
    assert pump(channel, lambda: bool(selected))


def test_confirms_cover_every_publish(channel: BlockingChannel, unique: str) -> None:
    channel.queue_declare(unique, durable=True)
    confirmed: set[int] = set()

    def note(frame: pika.frame.Method) -> None:
        tag = frame.method.delivery_tag
        confirmed.update(range(1, tag + 1) if frame.method.multiple else [tag])

    select_confirms(channel, note)
    for number in range(500):
        raw(channel).basic_publish("", unique, b"%d" % number, PERSISTENT)
    assert pump(channel, lambda: len(confirmed) == 500)
    assert confirmed == set(range(1, 501))
    assert drain(channel, unique) == [b"%d" % number for number in range(500)]
    channel.queue_delete(unique)


def test_confirm_select_may_be_said_again_and_the_numbers_go_on(
    channel: BlockingChannel, unique: str
) -> None:
    tags: list[int] = []
    for expected in (1, 2):
        select_confirms(channel, lambda frame: tags.append(frame.method.delivery_tag))
        raw(channel).basic_publish("amq.topic", unique, b"")
        assert pump(channel, lambda expected=expected: expected in tags)


@pytest.mark.parametrize("limit", [{"x-max-length": 3}, {"x-max-length-bytes": 30}])
def test_a_full_queue_that_rejects_publishes_nacks(
    channel: BlockingChannel, unique: str, limit: dict[str, int]
) -> None:
    channel.queue_declare(unique, exclusive=True, arguments={**limit, "x-overflow": "reject-publish"})
    channel.confirm_delivery()
    body = b"ten bytes!"
    accepted = 0

    def fill() -> None:
        nonlocal accepted
        while accepted < 10:
            channel.basic_publish("", unique, body)
            accepted += 1

    with pytest.raises(pika.exceptions.NackError):
        fill()
    assert accepted == 3
    assert channel.queue_declare(unique, passive=True).method.message_count == accepted
    drain(channel, unique)
    channel.basic_publish("", unique, body)


def test_a_full_queue_makes_room_when_a_message_is_acknowledged_not_when_it_is_delivered(
    channel: BlockingChannel, unique: str
) -> None:
    arguments = {"x-max-length": 2, "x-overflow": "reject-publish"}
    channel.queue_declare(unique, exclusive=True, arguments=arguments)
    channel.confirm_delivery()
    channel.basic_publish("", unique, b"1")
    channel.basic_publish("", unique, b"2")
    method, _, _ = channel.basic_get(unique)
    channel.basic_publish("", unique, b"3")  # only ready messages count
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", unique, b"4")
    channel.basic_ack(method.delivery_tag)
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish("", unique, b"5")


def test_one_full_queue_of_two_nacks_and_the_other_keeps_its_copy(
    channel: BlockingChannel, unique: str
) -> None:
    channel.exchange_declare(unique, "fanout", auto_delete=True)
    channel.queue_declare(
        f"{unique}.full", exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
    )
    channel.queue_declare(f"{unique}.free", exclusive=True)
    for queue in ("full", "free"):
        channel.queue_bind(f"{unique}.{queue}", unique, "")
    channel.confirm_delivery()
    channel.basic_publish(unique, "", b"1")
    with pytest.raises(pika.exceptions.NackError):
        channel.basic_publish(unique, "", b"2")
    assert drain(channel, f"{unique}.full") == [b"1"]
    assert drain(channel, f"{unique}.free") == [b"1", b"2"]


def test_a_full_queue_without_confirms_drops_what_it_refuses(channel: BlockingChannel, unique: str) -> None:
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    channel.queue_declare(unique, exclusive=True, arguments=arguments)
    channel.basic_publish("", unique, b"kept")
    channel.basic_publish("", unique, b"refused")
    channel.queue_declare(unique, passive=True)
    assert drain(channel, unique) == [b"kept"]


@pytest.mark.parametrize(
    ("limit", "kept"),
    [({"x-max-length": 2}, [b"bbbb", b"cccc"]), ({"x-max-length-bytes": 9}, [b"bbbb", b"cccc"])],
)
def test_a_full_queue_drops_from_its_head_by_default(
    channel: BlockingChannel, unique: str, limit: dict[str, int], kept: list[bytes]
) -> None:
    channel.queue_declare(unique, exclusive=True, arguments=limit)
    channel.confirm_delivery()
    for body in (b"aaaa", b"bbbb", b"cccc"):
        channel.basic_publish("", unique, body)
    assert drain(channel, unique) == kept


def test_what_a_full_queue_drops_is_dead_lettered(channel: BlockingChannel, unique: str) -> None:
    channel.queue_declare(f"{unique}.dead", exclusive=True)
    arguments = {
        "x-max-length": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": f"{unique}.dead",
    }
    channel.queue_declare(unique, exclusive=True, arguments=arguments)
    channel.confirm_delivery()
    channel.basic_publish("", unique, b"first")
    channel.basic_publish("", unique, b"second")
    assert eventually(lambda: channel.queue_declare(f"{unique}.dead", passive=True).method.message_count == 1)
    _, properties, body = channel.basic_get(f"{unique}.dead", auto_ack=True)
    assert body == b"first"
    assert properties.headers["x-first-death-reason"] == "maxlen"


def test_a_limit_of_zero_keeps_nothing_but_hands_to_a_waiting_consumer(
    channel: BlockingChannel, unique: str
) -> None:
    channel.queue_declare(unique, exclusive=True, arguments={"x-max-length": 0})
    channel.confirm_delivery()
    channel.basic_publish("", unique, b"gone")
    assert drain(channel, unique) == []


def test_publishing_to_a_missing_exchange_closes_the_channel_only(
    connection: pika.BlockingConnection, unique: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(unique, exclusive=True)
    channel.basic_publish(unique + ".none", "key", b"")
    assert refusal(lambda: channel.queue_declare(unique, passive=True)) == ("channel", 404, "NOT_FOUND")
    connection.channel().queue_declare(unique, passive=True)


def test_nothing_published_after_the_failed_one_on_that_channel_arrives(
    connection: pika.BlockingConnection, unique: str
) -> None:
    channel = connection.channel()
    channel.queue_declare(unique, exclusive=True)
    below = raw(channel)
    below.basic_publish("", unique, b"before")
    below.basic_publish(unique + ".none", unique, b"fails")
    below.basic_publish("", unique, b"after")
    assert pump(channel, lambda: channel.is_closed)
    other = connection.channel()
    time.sleep(0.05)
    assert drain(other, unique) == [b"before"]


def test_publishing_to_an_internal_exchange_is_refused(channel: BlockingChannel, unique: str) -> None:
    channel.exchange_declare(unique, "fanout", internal=True)
    channel.basic_publish(unique, "", b"")
    assert refusal(lambda: channel.exchange_delete(unique)) == ("channel", 403, "ACCESS_REFUSED")


def test_every_property_and_header_type_arrives_as_it_was_sent(channel: BlockingChannel, unique: str) -> None:
    channel.queue_declare(unique, exclusive=True)
    sent = pika.BasicProperties(
        content_type="application/json",
        content_encoding="utf-8",
        headers={
            "text": "żółw",
            "int": 2**31 - 1,
            "long": -(2**62),
            "true": True,
            "decimal": Decimal("-12.5"),
            "time": datetime(2024, 2, 29, 12, 0, 0, tzinfo=UTC),
            "none": None,
            "list": [1, "two", [3], {"four": 4}],
            "table": {"deep": {"deeper": b"\x00\xff"}},
            "empty": {},
        },
        delivery_mode=2,
        priority=9,
        correlation_id="c",
        reply_to="r",
        message_id="m",
        timestamp=1_700_000_000,
        type="t",
        user_id="guest",
        app_id="a",
        cluster_id="k",
    )
    channel.basic_publish("", unique, b"body", sent)
    channel.confirm_delivery()
    _, got, body = channel.basic_get(unique, auto_ack=True)
    assert body == b"body"
    assert vars(got) == vars(sent)


def test_a_user_id_that_is_not_the_publishers_is_refused(channel: BlockingChannel, unique: str) -> None:
    channel.basic_publish("amq.topic", unique, b"", pika.BasicProperties(user_id="somebody"))
    assert refusal(lambda: channel.queue_declare(unique, exclusive=True)) == (
        "channel",
        406,
        "PRECONDITION_FAILED",
    )


SINCE_4_1 = (4, 1, 0)
"""RabbitMQ hangs up on a client that wants frames of less than 8192 bytes from here on."""


def test_a_client_that_wants_small_frames_is_hung_up_on_by_rabbitmq_since_4_1(engine: Engine) -> None:
    least = 8192 if engine.version >= SINCE_4_1 else 4096
    with engine.connected(frame_max=least) as connection:
        assert connection.channel().is_open
    for too_small in {4096, least - 1} - {least, 4095}:  # pika itself asks for no less than 4096
        with pytest.raises(pika.exceptions.AMQPConnectionError), engine.connected(frame_max=too_small):
            pass


@pytest.mark.parametrize("size", [0, 1, 4087, 4088, 4089, 8183, 8184, 8185, 131064, 131065, 5_000_000])
@pytest.mark.parametrize("frame_max", ["least", 131072])
def test_bodies_of_every_size_pass_frames_of_every_size(
    engine: Engine, unique: str, size: int, frame_max: int | str
) -> None:
    if frame_max == "least":
        frame_max = 8192 if engine.version >= SINCE_4_1 else 4096
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    with engine.connected(frame_max=frame_max) as connection:
        channel = connection.channel()
        channel.queue_declare(unique, exclusive=True)
        channel.confirm_delivery()
        channel.basic_publish("", unique, body, mandatory=True)
        assert drain(channel, unique) == [body]


def test_many_channels_publish_at_once_and_each_keeps_its_order(engine: Engine, unique: str) -> None:
    with engine.connected() as connection:
        channels = [connection.channel() for _ in range(200)]
        channels[0].queue_declare(unique, exclusive=True)
        for number in range(5):
            for index, channel in enumerate(channels):
                channel.basic_publish("", unique, b"%d.%d" % (index, number))
        inbox = Inbox(channels[0], unique, auto_ack=True)
        bodies = inbox.wait(1000)
        for index in range(200):
            mine = [body for body in bodies if body.startswith(b"%d." % index)]
            assert mine == [b"%d.%d" % (index, number) for number in range(5)]


def test_who_wants_direct_replies_and_does_not_consume_them_is_refused(
    channel: BlockingChannel, unique: str
) -> None:
    """On the embedded broker nobody can consume them, and so everybody is."""
    channel.queue_declare(unique, exclusive=True)
    wants = pika.BasicProperties(reply_to="amq.rabbitmq.reply-to", correlation_id="1")
    channel.confirm_delivery()
    refused = refusal(lambda: channel.basic_publish("", unique, b"request", wants))
    assert refused == ("channel", 406, "PRECONDITION_FAILED")


LIMIT = 70_000


@pytest.fixture
def limited(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Iterator[Engine]:
    """The engine with messages of at most `LIMIT` bytes."""
    if engine.name == "embedded":
        with EmbeddedBroker(tmp_path / "data", settings={"message_max_bytes": LIMIT}) as broker:
            yield Engine("embedded", broker.port, broker.management_port, broker.start)
        return
    with messages_of_at_most(request.getfixturevalue("rabbitmq"), LIMIT):
        yield engine


def test_a_message_over_the_limit_closes_its_channel_with_the_sizes(limited: Engine, unique: str) -> None:
    with limited.connected() as connection:
        channel = connection.channel()
        channel.queue_declare(unique, exclusive=True)
        channel.confirm_delivery()
        channel.basic_publish("", unique, b"x" * LIMIT)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as refused:
            channel.basic_publish("", unique, b"x" * (LIMIT + 1))
        assert refused.value.reply_code == 406
        assert refused.value.reply_text == (
            f"PRECONDITION_FAILED - message size {LIMIT + 1} is larger than configured max size {LIMIT}"
        )
        assert connection.channel().queue_declare(unique, passive=True).method.message_count == 1
