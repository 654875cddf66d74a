"""The life of a connection: tuning, heartbeats, limits, closing."""

from __future__ import annotations

import socket
import struct
import time
from functools import partial

import pika
import pytest

from testing.amqp.open_pika import OpenConnection
from testing.amqp.plain_client import PlainClient
from testing.broker.engines import Engine, read_all, refusal


def test_tuning_takes_the_smaller_of_both_wishes(engine: Engine) -> None:
    with engine.connected(heartbeat=7, frame_max=8192, channel_max=100) as connection:
        tuned = connection.raw.params
        assert (tuned.heartbeat, tuned.frame_max, tuned.channel_max) == (7, 8192, 100)


def test_the_server_says_what_it_is_and_can_do(engine: Engine) -> None:
    with engine.connected() as connection:
        properties = connection.raw.server_properties
        assert {
            "product",
            "version",
            "platform",
            "capabilities",
            "information",
            "copyright",
        } <= properties.keys()
        for capability in (
            "publisher_confirms",
            "exchange_exchange_bindings",
            "basic.nack",
            "consumer_cancel_notify",
            "connection.blocked",
            "authentication_failure_close",
            "per_consumer_qos",
        ):
            assert properties["capabilities"][capability] is True, capability


def test_more_channels_than_were_tuned_close_the_connection(engine: Engine) -> None:
    with engine.connected(channel_max=5) as connection:
        for _ in range(5):
            connection.channel()
        connection.raw.params.channel_max = 100  # pika itself counts as well
        refused = refusal(lambda: connection.channel(6))
        assert refused == ("connection", 530, "NOT_ALLOWED")


def test_a_channel_number_is_free_again_after_closing(engine: Engine) -> None:
    with engine.connected(channel_max=2) as connection:
        for _ in range(5):
            channel = connection.channel(1)
            assert channel.queue_declare("", exclusive=True).method.queue
            channel.close()


def test_a_channel_that_was_closed_for_an_error_is_free_again(engine: Engine, unique: str) -> None:
    with engine.connected() as connection:
        for _ in range(3):
            channel = connection.channel(1)
            assert refusal(partial(channel.queue_declare, unique, passive=True)) is not None


def test_a_silent_client_is_cut_and_not_before_two_heartbeats(engine: Engine) -> None:
    began = time.monotonic()
    with PlainClient(engine.amqp_port, heartbeat_s=1) as silent:
        heartbeats = read_all(silent.socket)
    assert time.monotonic() - began >= 1.5
    assert heartbeats.startswith(b"\x08\x00\x00\x00\x00\x00\x00\xce")


def test_heartbeats_keep_an_idle_connection(engine: Engine) -> None:
    with engine.connected(heartbeat=1) as connection:
        connection.sleep(3.5)
        assert connection.channel().queue_declare("", exclusive=True).method.queue


def test_a_heartbeat_of_zero_means_none(engine: Engine) -> None:
    with engine.connected(heartbeat=0) as connection:
        assert connection.raw.params.heartbeat == 0


def frame(kind: int, channel: int, payload: bytes, end: bytes = b"\xce") -> bytes:
    return struct.pack(">BHI", kind, channel, len(payload)) + payload + end


@pytest.mark.parametrize(
    "sent",
    [
        frame(1, 1, b"\x00\x00\x00\x00"),  # no such class
        frame(1, 0, b"\x00\x32\x00\x0a" + b"\x00" * 9),  # queue.declare on channel 0
        frame(1, 1, b"\x00\x32\x00\x0a\x00\x00\x05x"),  # a short string cut off
        frame(9, 1, b""),  # no such frame type
        frame(1, 7, b"\x00\x32\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00"),  # a channel never opened
        frame(3, 1, b"body without a publish"),
        frame(1, 1, b"\x00\x14\x00\x0a\x00"),  # channel.open of an open channel
        frame(1, 1, b"\x00"),
        b"\x01\x00\x01\xff\xff\xff\xff",  # longer than any frame-max
    ],
    ids=range(9),
)
def test_a_broken_frame_ends_its_connection_and_no_other(engine: Engine, sent: bytes) -> None:
    with engine.connected() as bystander:
        connection = OpenConnection(engine.parameters())
        connection.channel(1)
        connection.raw.send_bytes(sent)
        with pytest.raises(
            (pika.exceptions.ConnectionClosedByBroker, pika.exceptions.StreamLostError)
        ) as caught:
            connection.sleep(5)
        assert getattr(caught.value, "reply_code", 500) >= 500
        bystander.channel().queue_declare("", exclusive=True)


@pytest.mark.parametrize(
    ("sent", "reply_text"),
    [
        (
            frame(1, 7, b"\x00\x32\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00"),
            "CHANNEL_ERROR - expected 'channel.open'",
        ),
        (
            frame(3, 1, b"body without a publish"),
            "UNEXPECTED_FRAME - expected method frame, got non method frame instead",
        ),
        (frame(1, 1, b"\x00\x14\x00\x0a\x00"), "CHANNEL_ERROR - second 'channel.open' seen"),
        (
            frame(1, 1, b"\x00\x3c\x00\x28\x00\x00\x00\x01x\x00") + frame(3, 1, b"no header"),
            "UNEXPECTED_FRAME - expected content header for class 60, got non content header frame instead",
        ),
    ],
    ids=range(4),
)
def test_a_frame_out_of_place_has_the_same_reply_text(engine: Engine, sent: bytes, reply_text: str) -> None:
    connection = OpenConnection(engine.parameters())
    connection.channel(1)
    connection.raw.send_bytes(sent)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.sleep(5)
    assert caught.value.reply_text == reply_text


def test_a_frame_without_its_end_is_a_framing_error(engine: Engine) -> None:
    connection = OpenConnection(engine.parameters())
    connection.raw.send_bytes(frame(8, 0, b"", end=b"\x00"))
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.sleep(5)
    assert caught.value.reply_code == 501


def test_a_client_that_goes_while_it_publishes_leaves_no_half_message(engine: Engine, unique: str) -> None:
    with engine.connected() as keeper:
        channel = keeper.channel()
        channel.queue_declare(unique, exclusive=True)
        publish = b"\x00\x3c\x00\x28\x00\x00\x00" + bytes([len(unique)]) + unique.encode() + b"\x00"
        header = b"\x00\x3c\x00\x00" + struct.pack(">QH", 100, 0)
        with PlainClient(engine.amqp_port) as lost:
            lost.socket.sendall(frame(1, 1, publish) + frame(2, 1, header) + frame(3, 1, b"x" * 60))
            lost.socket.shutdown(socket.SHUT_RDWR)
        time.sleep(0.05)
        assert channel.queue_declare(unique, passive=True).method.message_count == 0
