"""Protocol errors of a peer, and their reply codes."""

import pytest

from lbg_core.amqp import (
    NO_PROPERTIES,
    BasicProperties,
    ChannelState,
    ConnectionFault,
    ConnectionState,
    MethodEvent,
    ReplyCode,
    is_channel_error,
)
from lbg_core.amqp.frames import encode_frame
from lbg_core.amqp.methods import (
    BasicAck,
    BasicDeliver,
    BasicPublish,
    BasicQos,
    ChannelClose,
    ChannelOpen,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionTune,
    QueueDeclare,
    QueueDeclareOk,
    decode_method,
)
from testing.amqp.wire import connected_pair, deliver_bytes

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8


def content_header(size=5, properties=NO_PROPERTIES, class_id=60, weight=0):
    return class_id.to_bytes(2, "big") + weight.to_bytes(2, "big") + size.to_bytes(8, "big") + properties


PUBLISH = encode_frame(METHOD, 1, BasicPublish("e", "k").encode())
HEAD = encode_frame(HEADER, 1, content_header())
QOS = BasicQos().encode()
QUEUE_NOT_UTF8 = b"\x00\x32\x00\x0a\x00\x00\x01\xff\x00" + b"\x00" * 4

FAULTS = {
    "a frame that does not end in 0xCE": (encode_frame(METHOD, 1, QOS)[:-1] + b"\x00", 501, False),
    "an unknown frame type": (encode_frame(4, 1, QOS), 501, False),
    "random noise": (b"hello, is this a broker?", 501, False),
    "a frame over frame-max": (b"\x03\x00\x01\x7f\xff\xff\xff", 501, False),
    "a frame one byte over frame-max": (b"\x03\x00\x01" + (4096 - 7).to_bytes(4, "big"), 501, False),
    "a heartbeat on a channel": (encode_frame(HEARTBEAT, 1, b""), 501, True),
    "a heartbeat with something in it": (encode_frame(HEARTBEAT, 0, b"x"), 501, True),
    "a method frame too short for a method": (encode_frame(METHOD, 1, b"\x00\x3c"), 502, True),
    "an empty method frame": (encode_frame(METHOD, 1, b""), 502, True),
    "arguments cut short": (encode_frame(METHOD, 1, QOS[:-1]), 502, True),
    "bytes behind the arguments": (encode_frame(METHOD, 1, QOS + b"\x00"), 502, True),
    "a name that is not UTF-8": (encode_frame(METHOD, 1, QUEUE_NOT_UTF8), 502, True),
    "a publish to a name that is not UTF-8": (
        encode_frame(METHOD, 1, b"\x00\x3c\x00\x28\x00\x00\x01\xff\x01k\x00")
        + HEAD
        + encode_frame(BODY, 1, b"12345"),
        502,
        True,
    ),
    "a broken table": (
        encode_frame(METHOD, 1, QueueDeclare("q").encode()[:-4] + b"\x00\x00\x00\x03\x01k?"),
        502,
        True,
    ),
    "an unknown method": (encode_frame(METHOD, 1, b"\x00\x3c\x00\x63"), 540, True),
    "an unknown class": (encode_frame(METHOD, 1, b"\x00\x63\x00\x0a"), 540, True),
    "a method only we send": (encode_frame(METHOD, 1, QueueDeclareOk("q").encode()), 503, True),
    "content only we send": (encode_frame(METHOD, 1, BasicDeliver("t").encode()), 503, True),
    "tune from a client": (encode_frame(METHOD, 0, ConnectionTune().encode()), 503, True),
    "a connection method on a channel": (encode_frame(METHOD, 1, ConnectionClose().encode()), 503, True),
    "a channel method on channel 0": (encode_frame(METHOD, 0, QOS), 503, True),
    "channel.open on channel 0": (encode_frame(METHOD, 0, ChannelOpen().encode()), 503, True),
    "a channel that is not open": (encode_frame(METHOD, 9, QOS), 504, True),
    "an ack on a channel that is not open": (encode_frame(METHOD, 9, BasicAck(1).encode()), 504, True),
    "a publish on a channel that is not open": (
        encode_frame(METHOD, 9, BasicPublish("e", "k").encode()),
        504,
        True,
    ),
    "a channel that is open already": (encode_frame(METHOD, 1, ChannelOpen().encode()), 504, True),
    "a channel over channel-max": (encode_frame(METHOD, 11, ChannelOpen().encode()), 530, True),
    "close-ok without close": (encode_frame(METHOD, 1, b"\x00\x14\x00\x29"), 504, True),
    "a content header on a closed channel": (encode_frame(HEADER, 9, content_header()), 504, True),
    "a content header on channel 0": (encode_frame(HEADER, 0, content_header()), 504, True),
    "a body on channel 0": (encode_frame(BODY, 0, b"x"), 504, True),
    "a content header without a method": (HEAD, 505, True),
    "a body without a method": (encode_frame(BODY, 1, b"x"), 505, True),
    "a body before its header": (PUBLISH + encode_frame(BODY, 1, b"x"), 505, True),
    "two headers": (PUBLISH + HEAD + HEAD, 505, True),
    "a method where content is due": (PUBLISH + encode_frame(METHOD, 1, QOS), 505, True),
    "a method between header and body": (PUBLISH + HEAD + encode_frame(METHOD, 1, QOS), 505, True),
    "a second publish where content is due": (PUBLISH + PUBLISH, 505, True),
    "an ack where content is due": (
        PUBLISH + encode_frame(METHOD, 1, BasicAck(1).encode()) + HEAD,
        505,
        True,
    ),
    "a body larger than announced": (PUBLISH + HEAD + encode_frame(BODY, 1, b"123456"), 501, True),
    "a header of another class": (PUBLISH + encode_frame(HEADER, 1, content_header(class_id=50)), 501, True),
    "a header with a weight": (PUBLISH + encode_frame(HEADER, 1, content_header(weight=1)), 501, True),
    "a header too short": (PUBLISH + encode_frame(HEADER, 1, content_header()[:-1]), 502, True),
    "properties that do not exist": (
        PUBLISH + encode_frame(HEADER, 1, content_header(properties=b"\x00\x02")),
        502,
        True,
    ),
    "malformed properties": (
        PUBLISH
        + encode_frame(HEADER, 1, content_header(properties=b"\x80\x00\x05ab"))
        + encode_frame(BODY, 1, b"12345"),
        502,
        True,
    ),
    "a malformed headers table": (
        PUBLISH
        + encode_frame(HEADER, 1, content_header(properties=b"\x20\x00\x00\x00\x00\x03\x01k?"))
        + encode_frame(BODY, 1, b"12345"),
        502,
        True,
    ),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("chunk", [None, 1, 3])
def test_a_clients_error_closes_the_connection_with_its_code(name, chunk):
    data, code, in_step = FAULTS[name]
    client, server = connected_pair(frame_max_bytes=4096, channel_max=10)
    events = []
    for start in range(0, len(data), chunk or len(data)):
        events += server.receive_data(data[start : start + (chunk or len(data))])
    (fault,) = events
    assert isinstance(fault, ConnectionFault)
    assert (fault.reply_code, fault.await_close_ok) == (code, in_step)

    (close,) = deliver_bytes(server, client)
    assert isinstance(close.method, ConnectionClose)
    assert close.method.reply_code == code
    assert close.method.reply_text

    # From now on nothing is heard but close-ok, and nothing is said.
    server.send(1, ChannelClose())
    server.deliver(1, "t", 1, False, "e", "k", NO_PROPERTIES, b"x")
    assert server.take_output() == b""
    client.send(0, ConnectionCloseOk())
    end = deliver_bytes(client, server)
    assert end == ([MethodEvent(0, ConnectionCloseOk())] if in_step else [])
    assert server.state is ConnectionState.CLOSED


def test_the_close_names_the_method_that_was_wrong():
    client, server = connected_pair()
    server.receive_data(encode_frame(METHOD, 9, QOS))
    (close,) = deliver_bytes(server, client)
    assert (close.method.failing_class_id, close.method.failing_method_id) == (60, 10)


def test_events_before_the_error_are_kept():
    client, server = connected_pair()
    client.publish(1, "e", "k", NO_PROPERTIES, b"good")
    client.ack(1, 3)
    good, ack, fault = server.receive_data(client.take_output() + b"noise, more than seven bytes of it")
    assert (good.body, ack.delivery_tag) == (b"good", 3)
    assert isinstance(fault, ConnectionFault)


@pytest.mark.parametrize("frame_end", [b"\xce", b"\x00"])
def test_a_message_that_is_wrong_in_its_last_byte_is_not_taken(frame_end):
    client, server = connected_pair()
    client.publish(1, "e", "k", NO_PROPERTIES, b"whole")
    data = client.take_output()[:-1] + frame_end
    (event,) = server.receive_data(data)
    assert isinstance(event, ConnectionFault) == (frame_end == b"\x00")


def test_a_delivery_that_a_client_cannot_decode_is_delivered_all_the_same():
    # A stranger's routing key or properties must not close the connection of everybody behind it.
    client, _server = connected_pair()
    deliver = b"\x00\x3c\x00\x3c\x01t" + b"\x00" * 7 + b"\x01\x00\x01e\x02\xff\xfe"
    message = [
        encode_frame(METHOD, 1, deliver),
        encode_frame(HEADER, 1, content_header(properties=b"\x80\x00\x05ab")),
        encode_frame(BODY, 1, b"12345"),
    ]
    (whole,) = client.receive_data(b"".join(message))
    (pieces,) = [event for part in message for event in client.receive_data(part)]
    assert whole == pieces
    assert whole.routing_key.encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert whole.body == b"12345"


def test_frames_on_a_closing_channel_are_discarded_until_close_ok():
    client, server = connected_pair(channels=2)
    server.send(1, ChannelClose(404, "no such thing"))
    client.publish(1, "e", "k", BasicProperties().encode(), b"too late")
    client.send(1, QueueDeclare("q"))
    client.ack(1, 1)
    unknown_method = encode_frame(METHOD, 1, b"\x00\x3c\x00\x63")
    assert server.receive_data(client.take_output() + unknown_method) == []
    client.publish(2, "e", "k", NO_PROPERTIES, b"other channel")
    assert len(deliver_bytes(client, server)) == 1
    assert server.channel_state(1) is ChannelState.CLOSING


def test_a_channel_closed_from_both_sides_at_once_ends_closed_on_both():
    client, server = connected_pair()
    client.send(1, ChannelClose(200, "bye"))
    server.send(1, ChannelClose(404, "no such thing"))
    from_client, from_server = client.take_output(), server.take_output()
    assert server.receive_data(from_client) == []
    assert client.receive_data(from_server) == []
    assert len(deliver_bytes(client, server)) == len(deliver_bytes(server, client)) == 1
    assert client.channel_state(1) is server.channel_state(1) is ChannelState.CLOSED


def test_a_connection_closed_from_both_sides_at_once_ends_closed_on_both():
    client, server = connected_pair()
    client.send(0, ConnectionClose(200, "bye"))
    server.send(0, ConnectionClose(320, "restarting"))
    from_client, from_server = client.take_output(), server.take_output()
    assert server.receive_data(from_client) == client.receive_data(from_server) == []
    deliver_bytes(client, server)
    deliver_bytes(server, client)
    assert client.state is server.state is ConnectionState.CLOSED


def test_requests_in_the_read_that_closes_the_channel_can_still_be_answered():
    client, server = connected_pair()
    client.send(1, QueueDeclare("q"))
    client.send(1, ChannelClose())
    declare, close = deliver_bytes(client, server)
    assert (declare.method, close.method) == (QueueDeclare("q"), ChannelClose())
    server.send(1, QueueDeclareOk("q"))  # no error here: the answer was due
    assert deliver_bytes(server, client) == []  # the client has closed, so it discards it


def test_a_malformed_close_while_closing_changes_nothing():
    _client, server = connected_pair()
    server.receive_data(FAULTS["an unknown method"][0])
    server.take_output()
    assert server.receive_data(encode_frame(METHOD, 0, b"\x00\x0a\x00\x32\x00")) == []
    assert server.take_output() == b""
    assert server.receive_data(encode_frame(METHOD, 0, ConnectionCloseOk().encode()))
    assert server.state is ConnectionState.CLOSED


def test_noise_while_closing_tells_the_shell_to_drop_the_socket():
    _client, server = connected_pair()
    server.receive_data(FAULTS["an unknown method"][0])
    (fault,) = server.receive_data(b"noise, not frames")
    assert not fault.await_close_ok
    assert server.state is ConnectionState.CLOSED


def test_a_reply_text_longer_than_a_short_string_is_cut():
    _client, server = connected_pair()
    server.receive_data(encode_frame(METHOD, 1, QueueDeclareOk("q").encode()))
    close = decode_method(server.take_output()[7:-1])
    assert isinstance(close, ConnectionClose)
    assert len(close.reply_text.encode()) <= 255


def test_reply_codes_know_what_they_close():
    assert is_channel_error(ReplyCode.NOT_FOUND)
    assert is_channel_error(405)
    assert not is_channel_error(ReplyCode.CONNECTION_FORCED)
    assert not is_channel_error(ReplyCode.FRAME_ERROR)
