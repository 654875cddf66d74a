"""Sockets: coming in, going, and peers that do neither properly."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from lbg_core.amqp import PROTOCOL_HEADER, ChannelFault, ConnectionFault, MethodEvent
from lbg_core.amqp.methods import (
    BasicAck,
    BasicConsume,
    BasicConsumeOk,
    BasicGet,
    BasicGetOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConfirmSelect,
    ConfirmSelectOk,
    ConnectionClose,
    ConnectionCloseOk,
    QueueDeclare,
    QueueDeclareOk,
    QueueDelete,
    QueueDeleteOk,
)
from testing.amqp.plain_client import ClosedError, PlainClient
from testing.broker.embedded import EmbeddedBroker
from testing.waiting import GUARD_S

BIG = b"x" * 100_000


def test_the_broker_says_what_it_is(shared_broker: EmbeddedBroker) -> None:
    with PlainClient(shared_broker.port) as client:
        assert client.server_properties["product"] == "LBG"
        assert client.server_properties["capabilities"]["lbg.ordered_refusal"] is True


def test_a_wrong_password_is_told_to_who_understands_it(shared_broker: EmbeddedBroker) -> None:
    client = PlainClient(shared_broker.port, password="wrong", log_in=False)
    with pytest.raises(ClosedError):
        client.log_in()
    closes = [event.method for event in client.events if isinstance(event, MethodEvent)]
    assert [
        (close.reply_code, close.reply_text[:14]) for close in closes if isinstance(close, ConnectionClose)
    ] == [(403, "ACCESS_REFUSED")]
    client.close()
    client = PlainClient(shared_broker.port, password="wrong", log_in=False, capabilities=())
    with pytest.raises(ClosedError):
        client.log_in()
    assert client.events == []
    client.close()


def test_an_unknown_vhost_is_not_allowed(shared_broker: EmbeddedBroker) -> None:
    client = PlainClient(shared_broker.port, vhost="none", log_in=False)
    with pytest.raises(ClosedError):
        client.log_in()
    (close,) = [event.method for event in client.events if isinstance(event, MethodEvent)]
    assert isinstance(close, ConnectionClose)
    assert (close.reply_code, close.reply_text) == (530, "NOT_ALLOWED - vhost none not found")
    client.close()


def test_who_speaks_something_else_is_told_the_protocol_and_dropped(shared_broker: EmbeddedBroker) -> None:
    with socket.create_connection(("127.0.0.1", shared_broker.port), timeout=GUARD_S) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert peer.recv(100) == PROTOCOL_HEADER
        assert peer.recv(100) == b""


@pytest.mark.process
def test_who_says_nothing_is_dropped_after_a_while(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "data", settings={"handshake_timeout_s": 0.3}) as broker:
        started = time.monotonic()
        with socket.create_connection(("127.0.0.1", broker.port), timeout=GUARD_S) as peer:
            assert peer.recv(100) == b""
        assert time.monotonic() - started >= 0.3


def test_bytes_may_come_one_at_a_time(shared_broker: EmbeddedBroker, unique: str) -> None:
    with PlainClient(shared_broker.port) as client:
        client.wire.send(1, QueueDeclare(unique, exclusive=True))
        client.publish(b"body", unique)
        client.wire.send(1, BasicGet(unique, True))
        output = client.wire.take_output()
        for index in range(len(output)):
            client.socket.sendall(output[index : index + 1])
        assert client.wait(QueueDeclareOk).queue == unique
        assert client.wait(BasicGetOk).routing_key == unique


def test_a_client_that_dies_within_a_frame_leaves_nothing_of_it(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    with PlainClient(shared_broker.port) as client:
        client.ask(QueueDeclare(unique), QueueDeclareOk)
        client.publish(b"whole", unique)
        client.publish(b"half of it", unique)
        output = client.wire.take_output()
        client.socket.sendall(output[:-5])
    with PlainClient(shared_broker.port) as client:
        deadline = time.monotonic() + GUARD_S
        while client.ask(QueueDeclare(unique, True), QueueDeclareOk).message_count == 0:
            assert time.monotonic() < deadline
        assert client.ask(QueueDelete(unique), QueueDeleteOk).message_count == 1


def test_a_frame_that_is_none_closes_the_connection(shared_broker: EmbeddedBroker) -> None:
    with PlainClient(shared_broker.port) as client:
        client.socket.sendall(b"\x01\x00\x01\x00\x00\x00\x04\x00\x14\x00\x0a\xff")
        with pytest.raises(ClosedError):
            client.wait(ConnectionCloseOk)


def test_a_refused_command_closes_its_channel_and_the_connection_lives(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    with PlainClient(shared_broker.port) as client:
        client.ask(ChannelOpen(), ChannelOpenOk, 2)
        close = client.ask(QueueDeclare(unique, True), ChannelClose)
        assert close.reply_code == 404
        client.send(ChannelCloseOk())
        client.ask(ChannelOpen(), ChannelOpenOk)
        client.ask(QueueDeclare("", exclusive=True), QueueDeclareOk, 2)


def test_a_close_right_behind_a_refused_command_is_answered(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    with PlainClient(shared_broker.port) as client:
        client.wire.send(1, QueueDeclare(unique, True))
        client.wire.send(1, ChannelClose(200, "", 0, 0))
        client.flush()
        client.wait(ChannelCloseOk)
        client.ask(ChannelOpen(), ChannelOpenOk)
        assert not [event for event in client.events if isinstance(event, ChannelFault | ConnectionFault)]


def test_a_connection_close_right_behind_a_refused_command_is_answered(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    with PlainClient(shared_broker.port) as client:
        client.wire.send(1, BasicConsume(unique, "c"))
        client.wire.send(0, ConnectionClose(200, "", 0, 0))
        client.flush()
        client.wait(ConnectionCloseOk)
        assert client.is_closed_within(GUARD_S)


def test_closing_is_a_handshake_and_then_the_socket_goes(shared_broker: EmbeddedBroker) -> None:
    with PlainClient(shared_broker.port) as client:
        client.send(ConnectionClose(200, "bye", 0, 0), 0)
        client.wait(ConnectionCloseOk)
        assert client.is_closed_within(GUARD_S)


def test_a_close_is_answered_though_the_client_has_more_under_way(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    """AMQP 0-9-1, connection.close: what comes after it is discarded; amqplib has more there."""
    with PlainClient(shared_broker.port) as client:
        client.ask(QueueDeclare(unique), QueueDeclareOk)
        client.publish(BIG, unique)
        publish = client.wire.take_output()
        client.wire.send(0, ConnectionClose(200, "bye", 0, 0))
        client.socket.sendall(client.wire.take_output())
        for _ in range(100):  # far more than all buffers between the two hold
            client.socket.sendall(publish)
        client.wait(ConnectionCloseOk)
        assert client.socket.recv(1) == b""
    with PlainClient(shared_broker.port) as client:
        assert client.ask(QueueDelete(unique), QueueDeleteOk).message_count == 0


def test_the_reason_of_a_close_reaches_a_client_that_goes_on_sending(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    with PlainClient(shared_broker.port) as client:
        client.publish(BIG, unique)
        publish = client.wire.take_output()
        client.socket.sendall(b"\x01\x00\x01\x00\x00\x00\x04\x00\x14\x00\x0a\xff")
        for _ in range(100):
            client.socket.sendall(publish)
        assert client.wait(ConnectionClose).reply_code == 501
        assert client.socket.recv(1) == b""


def test_a_client_that_never_ends_its_side_is_dropped_after_a_while(shared_broker: EmbeddedBroker) -> None:
    with PlainClient(shared_broker.port) as client:
        client.wire.send(0, ConnectionClose(200, "bye", 0, 0))
        client.flush()
        client.wait(ConnectionCloseOk)
        with pytest.raises(ConnectionError):
            _send_for_ever(client)


def _send_for_ever(client: PlainClient) -> None:
    while True:
        client.socket.sendall(BIG)


def test_a_lost_socket_frees_exclusive_queues_and_unsettled_messages_at_once(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    with PlainClient(shared_broker.port) as other:
        client = PlainClient(shared_broker.port)
        client.ask(QueueDeclare(unique, exclusive=True), QueueDeclareOk)
        client.close()
        deadline = time.monotonic() + GUARD_S
        while True:
            assert time.monotonic() < deadline
            other.send(QueueDeclare(unique, exclusive=True))
            events = [event.method for event in other.receive() if isinstance(event, MethodEvent)]
            other.events.clear()
            if isinstance(events[0], QueueDeclareOk):
                break
            assert isinstance(events[0], ChannelClose)
            assert events[0].reply_code == 405
            other.send(ChannelCloseOk())
            other.ask(ChannelOpen(), ChannelOpenOk)


def test_a_client_that_falls_silent_is_given_up_and_its_messages_go_on(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    with PlainClient(shared_broker.port) as heir:
        arguments = {"x-single-active-consumer": True}
        heir.ask(QueueDeclare(unique, arguments=arguments), QueueDeclareOk)
        silent = PlainClient(shared_broker.port, heartbeat_s=1)
        spoke_last = time.monotonic()
        silent.ask(BasicConsume(unique, "c"), BasicConsumeOk)
        heir.ask(BasicConsume(unique, "c"), BasicConsumeOk)
        heir.publish(b"x", unique)
        heir.flush()
        assert silent.deliveries(1)[0].body == b"x"
        (delivery,) = heir.deliveries(1)
        assert time.monotonic() - spoke_last > 1.5
        assert delivery.redelivered
        silent.close()
        heir.ask(QueueDelete(unique), QueueDeleteOk)


def test_the_broker_beats_when_it_has_nothing_to_say(shared_broker: EmbeddedBroker) -> None:
    with PlainClient(shared_broker.port, heartbeat_s=1) as client:
        assert client.socket.recv(8) == b"\x08\x00\x00\x00\x00\x00\x00\xce"


def test_a_reader_too_slow_for_its_deliveries_costs_no_memory_and_nobody_elses_time(
    shared_broker: EmbeddedBroker, unique: str
) -> None:
    with PlainClient(shared_broker.port) as publisher:
        publisher.ask(QueueDeclare(unique), QueueDeclareOk)
        publisher.ask(ConfirmSelect(), ConfirmSelectOk)
        before = shared_broker.memory_bytes()
        slow = PlainClient(shared_broker.port, receive_buffer_bytes=8192)
        slow.send(BasicConsume(unique, "slow", no_ack=True))
        for _ in range(600):
            publisher.publish(BIG, unique)
            publisher.flush()
        confirmed = 0
        while confirmed < 600:
            ack = publisher.wait(BasicAck)
            confirmed = ack.delivery_tag if ack.multiple else confirmed + 1
        publisher.ask(QueueDeclare("", exclusive=True), QueueDeclareOk)
        assert shared_broker.memory_bytes() - before < 40 << 20
        for delivery in slow.deliveries(600):
            assert len(delivery.body) == len(BIG)
        slow.close()
        publisher.ask(QueueDelete(unique), QueueDeleteOk)


@pytest.mark.parametrize("size", [0, 1, 4095, 131_072 - 8, 131_072, 5_000_000])
def test_a_body_of_any_size_arrives_whole_whatever_frames_the_ends_agreed_on(
    shared_broker: EmbeddedBroker, unique: str, size: int
) -> None:
    body = bytes(index % 251 for index in range(size))
    with (
        PlainClient(shared_broker.port) as publisher,
        PlainClient(shared_broker.port, frame_max_bytes=4096) as consumer,
    ):
        publisher.ask(QueueDeclare(unique), QueueDeclareOk)
        consumer.ask(BasicConsume(unique, "c", no_ack=True), BasicConsumeOk)
        publisher.publish(body, unique)
        publisher.publish(b"next", unique)
        publisher.flush()
        assert [delivery.body for delivery in consumer.deliveries(2)] == [body, b"next"]
        publisher.ask(QueueDelete(unique), QueueDeleteOk)


def test_a_body_over_the_limit_closes_its_channel(shared_broker: EmbeddedBroker) -> None:
    with PlainClient(shared_broker.port) as client:
        client.publish(b"x" * (16 * 1024 * 1024 + 1), "q")
        assert client.wait(ChannelClose).reply_code in (311, 406)


def test_a_client_that_never_reads_what_comes_back_is_not_read_from_either(
    shared_broker: EmbeddedBroker,
) -> None:
    with PlainClient(shared_broker.port, receive_buffer_bytes=8192, timeout_s=1) as client:
        before = shared_broker.memory_bytes()
        client.wire.publish(1, "", "nowhere", b"\x00\x00", BIG, mandatory=True)
        returned = client.wire.take_output()
        with pytest.raises(TimeoutError):
            client.socket.sendall(returned * 1000)
        assert shared_broker.memory_bytes() - before < 30 << 20
