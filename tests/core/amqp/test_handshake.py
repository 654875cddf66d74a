"""From the protocol header to open-ok, and what is agreed on the way."""

import pytest

from lbg_core.amqp import (
    PROTOCOL_HEADER,
    Connection,
    ConnectionFault,
    ConnectionState,
    HeaderEvent,
    LocalProtocolError,
    MethodEvent,
    Role,
)
from lbg_core.amqp.frames import encode_frame
from lbg_core.amqp.methods import (
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
)
from testing.amqp.wire import connected_pair, deliver_bytes


def test_both_ends_reach_open():
    client, server = connected_pair()
    assert client.state is server.state is ConnectionState.OPEN


def test_both_ends_agree_on_the_smaller_limits():
    client, server = connected_pair(frame_max_bytes=10000, channel_max=7)
    for end in (client, server):
        assert (end.frame_max_bytes, end.channel_max, end.heartbeat_s) == (10000, 7, 10)


def test_a_challenge_is_answered_before_tune():
    client, server = Connection(Role.CLIENT), Connection(Role.SERVER)
    client.initiate()
    deliver_bytes(client, server)
    server.send(0, ConnectionStart())
    deliver_bytes(server, client)
    client.send(0, ConnectionStartOk())
    deliver_bytes(client, server)
    server.send(0, ConnectionSecure(b"what?"))
    assert deliver_bytes(server, client) == [MethodEvent(0, ConnectionSecure(b"what?"))]
    client.send(0, ConnectionSecureOk(b"that"))
    assert deliver_bytes(client, server) == [MethodEvent(0, ConnectionSecureOk(b"that"))]
    server.send(0, ConnectionTune())
    deliver_bytes(server, client)
    client.send(0, ConnectionTuneOk())
    client.send(0, ConnectionOpen("v"))
    assert len(deliver_bytes(client, server)) == 2
    server.send(0, ConnectionOpenOk())
    deliver_bytes(server, client)
    assert client.state is ConnectionState.OPEN


@pytest.mark.parametrize(
    ("tune", "wish", "answer"),
    [
        ((0, 0, 0), (2047, 131072, 5), (2047, 131072, 5)),
        ((100, 8192, 60), (2047, 131072, 5), (100, 8192, 5)),
        ((100, 200000, 3), (50, 131072, 5), (50, 131072, 3)),
        ((100, 8192, 60), (2047, 131072, 0), (100, 8192, 0)),
    ],
)
def test_the_clients_answer_is_the_smaller_of_both_wishes_and_0_is_no_limit(tune, wish, answer):
    client = Connection(Role.CLIENT, channel_max=wish[0], frame_max_bytes=wish[1], heartbeat_s=wish[2])
    assert client.tune_ok(ConnectionTune(*tune)) == ConnectionTuneOk(*answer)


def server_awaiting_tune_ok() -> Connection:
    server = Connection(Role.SERVER)
    server.receive_data(PROTOCOL_HEADER)
    server.send(0, ConnectionStart())
    server.receive_data(encode_frame(1, 0, ConnectionStartOk().encode()))
    server.send(0, ConnectionTune(100, 8192, 60))
    server.take_output()
    return server


@pytest.mark.parametrize(
    "answer", [(101, 8192, 0), (0, 8192, 0), (100, 8193, 0), (100, 0, 0), (100, 4095, 0)]
)
def test_a_client_may_not_ask_for_more_than_was_offered(answer):
    server = server_awaiting_tune_ok()
    (fault,) = server.receive_data(encode_frame(1, 0, ConnectionTuneOk(*answer).encode()))
    assert isinstance(fault, ConnectionFault)
    assert fault.reply_code == 530


def test_the_header_may_come_in_pieces():
    server = Connection(Role.SERVER)
    assert [event for byte in PROTOCOL_HEADER for event in server.receive_data(bytes((byte,)))] == [
        HeaderEvent()
    ]
    assert server.state is ConnectionState.STARTING


@pytest.mark.parametrize(
    "greeting", [b"AMQP\x00\x01\x00\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01", b"AMQP\x01"]
)
def test_a_wrong_header_is_answered_with_the_right_one_and_the_end(greeting):
    server = Connection(Role.SERVER)
    (fault,) = server.receive_data(greeting)
    assert isinstance(fault, ConnectionFault)
    assert not fault.await_close_ok
    assert server.take_output() == PROTOCOL_HEADER
    assert server.state is ConnectionState.CLOSED
    assert server.receive_data(PROTOCOL_HEADER) == []


def test_a_server_of_another_protocol_is_an_error_that_says_so():
    client = Connection(Role.CLIENT)
    client.initiate()
    client.take_output()
    (fault,) = client.receive_data(b"AMQP\x00\x01\x00\x00")
    assert isinstance(fault, ConnectionFault)
    assert "not AMQP 0-9-1" in fault.reply_text
    assert client.take_output() == b""


@pytest.mark.parametrize("noise", [b"HTTP/1.1 400 Bad Request\r\n", b"\x15\x03\x01\x00\x02\x02\x16"])
def test_a_client_that_talks_to_no_amqp_server_gives_up_silently(noise):
    client = Connection(Role.CLIENT)
    client.initiate()
    client.take_output()
    (fault,) = client.receive_data(noise)
    assert isinstance(fault, ConnectionFault)
    assert client.state is ConnectionState.CLOSED
    assert client.take_output() == b""


def test_only_a_client_initiates_and_only_once():
    with pytest.raises(LocalProtocolError):
        Connection(Role.SERVER).initiate()
    client = Connection(Role.CLIENT)
    client.initiate()
    with pytest.raises(LocalProtocolError):
        client.initiate()


def test_a_client_that_is_spoken_to_before_it_spoke_gives_up():
    client = Connection(Role.CLIENT)
    events = client.receive_data(encode_frame(1, 0, ConnectionStart().encode()))
    assert [type(event) for event in events] == [ConnectionFault]
    assert client.state is ConnectionState.CLOSED


def test_a_frame_max_under_4096_is_our_error():
    with pytest.raises(LocalProtocolError, match="4096"):
        Connection(Role.CLIENT, frame_max_bytes=4095)


def test_a_server_takes_small_frames_only_until_the_limits_are_agreed():
    server = Connection(Role.SERVER)
    server.receive_data(PROTOCOL_HEADER)
    server.send(0, ConnectionStart())
    big = ConnectionStartOk(response=b"x" * 8192)
    (fault,) = server.receive_data(encode_frame(1, 0, big.encode()))
    assert isinstance(fault, ConnectionFault)
    assert fault.reply_code == 501
