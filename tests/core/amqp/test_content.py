"""Messages: split and put together, by the fast way and the long way alike."""

import gc
import tracemalloc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import body, commands, frame, header

from lbg_core.amqp import (
    NO_PROPERTIES,
    AckEvent,
    BasicProperties,
    ChannelFault,
    ContentEvent,
    DecodeError,
    DeliverEvent,
    EncodeError,
    LocalProtocolError,
    MethodEvent,
    PublishEvent,
)
from lbg_core.amqp.frames import encode_frame
from lbg_core.amqp.methods import (
    BasicAck,
    BasicDeliver,
    BasicGetOk,
    BasicPublish,
    BasicQos,
    BasicReturn,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
)
from testing.amqp.wire import connected_pair, deliver_bytes, short_strings
from testing.exploration import example_count
from testing.growth import growth

PERSISTENT = BasicProperties(delivery_mode=2, headers={"lbg-seq": 7}).encode()
BODY_SIZES = [0, 1, 255, 4096 - 8 - 1, 4096 - 8, 4096 - 8 + 1, 3 * (4096 - 8), 20000]


@pytest.mark.parametrize("size", BODY_SIZES)
def test_a_published_message_arrives_whole_whatever_its_size(size):
    client, server = connected_pair(frame_max_bytes=4096)
    client.publish(1, "orders", "orders.5.x", PERSISTENT, b"x" * size, mandatory=True)
    (event,) = deliver_bytes(client, server)
    assert type(event) is PublishEvent
    assert (event.exchange, event.routing_key) == ("orders", "orders.5.x")
    assert (event.mandatory, event.immediate) == (True, False)
    assert (event.header, event.body) == (PERSISTENT, b"x" * size)
    assert event.method == BasicPublish("orders", "orders.5.x", True)
    assert event.properties == BasicProperties(delivery_mode=2, headers={"lbg-seq": 7})
    assert event.headers == {"lbg-seq": 7}


@pytest.mark.parametrize("size", BODY_SIZES)
def test_a_delivered_message_arrives_whole_whatever_its_size(size):
    client, server = connected_pair(frame_max_bytes=4096)
    server.deliver(1, "tag", 2**40, True, "orders", "orders.5.x", PERSISTENT, b"x" * size)
    (event,) = deliver_bytes(server, client)
    assert type(event) is DeliverEvent
    assert event.method == BasicDeliver("tag", 2**40, True, "orders", "orders.5.x")
    assert (event.header, event.body) == (PERSISTENT, b"x" * size)


@pytest.mark.parametrize("size", BODY_SIZES)
@pytest.mark.parametrize(
    "method", [BasicReturn(312, "NO_ROUTE", "e", "k"), BasicGetOk(1, False, "e", "k", 3)]
)
def test_other_methods_with_content_arrive_whole(size, method):
    client, server = connected_pair(frame_max_bytes=4096)
    server.send_content(1, method, PERSISTENT, b"x" * size)
    (event,) = deliver_bytes(server, client)
    assert event == ContentEvent(1, method, PERSISTENT, b"x" * size)


def test_the_fast_way_writes_what_the_long_way_writes():
    client, server = connected_pair(frame_max_bytes=4096)
    for size in BODY_SIZES:
        client.publish(1, "e", "k", PERSISTENT, b"x" * size)
        fast = client.take_output()
        client.send_content(1, BasicPublish("e", "k"), PERSISTENT, b"x" * size)
        assert client.take_output() == fast
        server.deliver(1, "t", 9, True, "e", "k", PERSISTENT, b"x" * size)
        fast = server.take_output()
        server.send_content(1, BasicDeliver("t", 9, True, "e", "k"), PERSISTENT, b"x" * size)
        assert server.take_output() == fast
    client.ack(1, 2**63, multiple=True)
    fast = client.take_output()
    client.send(1, BasicAck(2**63, True))
    assert client.take_output() == fast


@settings(max_examples=example_count(50))
@given(short_strings, short_strings, short_strings, st.binary(max_size=100), st.integers(0, 2**64 - 1))
def test_names_of_any_kind_survive(tag, exchange, routing_key, content, delivery_tag):
    client, server = connected_pair()
    client.publish(1, exchange, routing_key, NO_PROPERTIES, content)
    (published,) = deliver_bytes(client, server)
    assert published.method == BasicPublish(exchange, routing_key)
    server.deliver(1, tag, delivery_tag, False, exchange, routing_key, NO_PROPERTIES, content)
    (delivered,) = deliver_bytes(server, client)
    assert delivered.method == BasicDeliver(tag, delivery_tag, False, exchange, routing_key)


def stream(role):
    """A conversation's bytes: messages of all kinds and sizes on two channels, with other methods between."""
    client, server = connected_pair(frame_max_bytes=4096, channels=2)
    end = client if role == "publishes" else server
    for index, size in enumerate([10, 0, 5000, 300, 4088, 1]):
        channel = 1 + index % 2
        if role == "publishes":
            end.publish(channel, "e", f"k{index}", PERSISTENT, bytes((index,)) * size)
            end.send(channel, BasicQos(0, index))
        else:
            end.deliver(channel, "tag", index, False, "e", f"k{index}", PERSISTENT, bytes((index,)) * size)
            end.send_content(channel, BasicReturn(312, "NO_ROUTE", "e", "k"), NO_PROPERTIES, b"r" * size)
        end.ack(channel, index)
    return (server if role == "publishes" else client), end.take_output()


@pytest.mark.long
@pytest.mark.parametrize("role", ["publishes", "deliveries"])
def test_every_place_to_cut_the_stream_gives_the_same_events(role):
    receiver, data = stream(role)
    expected = receiver.receive_data(data)
    kinds = {type(event) for event in expected}
    assert kinds >= {AckEvent, PublishEvent, MethodEvent} or kinds >= {AckEvent, DeliverEvent, ContentEvent}
    for cut in range(0, len(data), 7):
        assert receiver.receive_data(data[:cut]) + receiver.receive_data(data[cut:]) == expected


@settings(max_examples=example_count(100))
@given(st.sampled_from(["publishes", "deliveries"]), st.data())
def test_any_chunks_give_the_same_events(role, draws):
    receiver, data = stream(role)
    expected = receiver.receive_data(data)
    sizes = draws.draw(st.lists(st.integers(1, 5000), min_size=1, max_size=50))
    events, position = [], 0
    for size in sizes:
        events += receiver.receive_data(data[position : position + size])
        position += size
    events += receiver.receive_data(data[position:])
    assert events == expected


def in_reads(server, data, size_bytes):
    reads = [data[place : place + size_bytes] for place in range(0, len(data), size_bytes)]
    return [event for read in reads for event in server.receive_data(read)]


@pytest.mark.long
def test_a_large_frame_may_come_byte_by_byte():
    client, server = connected_pair()
    client.publish(1, "e", "k", NO_PROPERTIES, b"x" * 100_000)
    assert [len(event.body) for event in in_reads(server, client.take_output(), 1)] == [100_000]


@pytest.mark.long
async def test_the_time_for_a_large_frame_in_tiny_reads_grows_with_its_size_and_not_with_the_square():
    def work(size_bytes):
        client, server = connected_pair(frame_max_bytes=2 * 32 * 2**17)
        client.publish(1, "e", "k", NO_PROPERTIES, b"x" * size_bytes)
        data = client.take_output()
        assert len(frames_of(data)) == 3

        async def run():
            assert [len(event.body) for event in in_reads(server, data, 64)] == [size_bytes]

        return run

    assert await growth(work, 2**17, 32) < 1.35


def test_messages_on_different_channels_may_be_interleaved_frame_by_frame():
    client, server = connected_pair(frame_max_bytes=4096, channels=2)
    client.publish(1, "e", "one", NO_PROPERTIES, b"1" * 6000)
    one = frames_of(client.take_output())
    client.publish(2, "e", "two", NO_PROPERTIES, b"2" * 6000)
    two = frames_of(client.take_output())
    mixed = b"".join(part for pair in zip(one, two, strict=True) for part in pair)
    assert [event.routing_key for event in server.receive_data(mixed)] == ["one", "two"]


def frames_of(data):
    frames = []
    while data:
        end = 8 + int.from_bytes(data[3:7], "big")
        frames.append(data[:end])
        data = data[end:]
    return frames


def test_pamqp_reads_our_messages_and_we_read_its():
    _client, server = connected_pair()
    server.deliver(1, "t", 5, True, "e", "k", PERSISTENT, b"hello")
    data = server.take_output()
    parts = []
    while data:
        used, channel, part = frame.unmarshal(data)
        assert channel == 1
        parts.append(part)
        data = data[used:]
    deliver, content_header, content = parts
    assert (deliver.delivery_tag, deliver.redelivered, deliver.routing_key) == (5, True, "k")
    assert content_header.body_size == 5
    assert content_header.properties.headers == {"lbg-seq": 7}
    assert content.value == b"hello"

    theirs = b"".join(
        frame.marshal(part, 1)
        for part in (
            commands.Basic.Publish(exchange="e", routing_key="k", mandatory=True),
            header.ContentHeader(body_size=5, properties=commands.Basic.Properties(delivery_mode=2)),
            body.ContentBody(b"hello"),
        )
    )
    (event,) = server.receive_data(theirs)
    assert event.method == BasicPublish("e", "k", True)
    assert (event.properties, event.body) == (BasicProperties(delivery_mode=2), b"hello")


def test_a_body_over_the_limit_closes_the_channel_only_and_the_rest_of_it_is_discarded():
    client, server = connected_pair(frame_max_bytes=4096, channels=2, max_body_bytes=5000)
    client.publish(1, "e", "k", NO_PROPERTIES, b"x" * 5001)
    client.publish(1, "e", "later", NO_PROPERTIES, b"y")
    client.publish(2, "e", "fits", NO_PROPERTIES, b"z" * 5000)
    fault, other = deliver_bytes(client, server)
    assert fault == ChannelFault(1, 406, "message size 5001 is larger than configured max size 5000")
    assert other.routing_key == "fits"
    server.ack(1, 1)  # what is said on the channel from now on is dropped without a word
    close, *rest = deliver_bytes(server, client)
    assert rest == []
    assert close.method.reply_code == 406
    client.send(1, ChannelCloseOk())
    assert deliver_bytes(client, server) == [MethodEvent(1, ChannelCloseOk())]


def test_a_message_half_received_is_forgotten_when_the_channel_closes():
    client, server = connected_pair()
    server.receive_data(encode_frame(1, 1, BasicPublish("e", "k").encode()))
    server.send(1, ChannelClose(200, "bye"))
    deliver_bytes(server, client)
    client.send(1, ChannelCloseOk())
    client.send(1, ChannelOpen())
    deliver_bytes(client, server)
    server.send(1, ChannelOpenOk())
    deliver_bytes(server, client)
    client.publish(1, "e", "new", NO_PROPERTIES, b"whole")
    (event,) = deliver_bytes(client, server)
    assert event.body == b"whole"


def test_properties_are_decoded_when_first_asked_for():
    event = ContentEvent(1, BasicGetOk(), b"\xff\xff", b"")
    with pytest.raises(DecodeError):
        _ = event.properties
    event = ContentEvent(1, BasicGetOk(), PERSISTENT, b"")
    assert event.properties is event.properties


def test_a_header_or_method_over_frame_max_is_our_error_and_nothing_is_written():
    client, _ = connected_pair(frame_max_bytes=4096)
    huge = BasicProperties(headers={"k": "x" * 5000}).encode()
    for call in (
        lambda: client.publish(1, "e", "k", huge, b"x"),
        lambda: client.send_content(1, BasicPublish("e", "k"), huge, b"x"),
        lambda: client.publish(1, "e" * 256, "k", NO_PROPERTIES, b"x"),
        lambda: client.publish(1, "e", "k" * 256, NO_PROPERTIES, b"x"),
    ):
        with pytest.raises(EncodeError):
            call()
    assert client.take_output() == b""
    almost = BasicProperties(headers={"k": "x" * 4000}).encode()
    client.publish(1, "e", "k", almost, b"x")
    assert len(frames_of(client.take_output())) == 3


def test_methods_with_and_without_content_are_not_mixed_up():
    client, server = connected_pair()
    with pytest.raises(LocalProtocolError, match="send_content"):
        client.send(1, BasicPublish("e", "k"))
    with pytest.raises(LocalProtocolError):
        client.send_content(1, BasicQos(), NO_PROPERTIES, b"")
    with pytest.raises(LocalProtocolError):
        server.send_content(1, BasicPublish("e", "k"), NO_PROPERTIES, b"")
    with pytest.raises(LocalProtocolError):
        server.send(0, BasicQos())
    with pytest.raises(LocalProtocolError, match="channel 0"):
        client.send(0, ChannelCloseOk())


@pytest.mark.long
def test_names_beyond_what_is_remembered_still_arrive():
    client, server = connected_pair()
    for index in range(10_000):
        client.publish(1, "e", f"key.{index}", NO_PROPERTIES, b"x")
        server.deliver(1, f"tag.{index}", index, False, "e", f"key.{index}", NO_PROPERTIES, b"x")
    assert [event.routing_key for event in deliver_bytes(client, server)][-1] == "key.9999"
    assert [event.consumer_tag for event in deliver_bytes(server, client)][-1] == "tag.9999"


def begin_of(size: int) -> bytes:
    """A message of so many bytes of body, up to its header."""
    header_of = b"\x00\x3c\x00\x00" + size.to_bytes(8, "big") + PERSISTENT
    return encode_frame(1, 1, BasicPublish("", "q").encode()) + encode_frame(2, 1, header_of)


@pytest.mark.long
@pytest.mark.parametrize("piece", [2, 50, 1000])
def test_a_body_in_pieces_takes_the_memory_of_its_bytes(piece):
    _, server = connected_pair()
    body_of = bytes(range(250)) * 400
    pieces = [body_of[at : at + piece] for at in range(0, len(body_of), piece)]
    frames = b"".join(encode_frame(3, 1, one) for one in pieces[:-1])
    server.receive_data(begin_of(len(body_of)))
    tracemalloc.start()
    try:
        for at in range(0, len(frames), 100_000):
            server.receive_data(frames[at : at + 100_000])
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1.5 * len(body_of)
    (event,) = server.receive_data(encode_frame(3, 1, pieces[-1]))
    assert event.body == body_of


@pytest.mark.long
def test_a_frame_in_tiny_reads_takes_the_memory_of_its_bytes():
    _, server = connected_pair()
    body_of = bytes(range(250)) * 400
    server.receive_data(begin_of(len(body_of)))
    frame_of = encode_frame(3, 1, body_of)
    reads = [frame_of[at : at + 2] for at in range(0, len(frame_of), 2)]
    tracemalloc.start()
    try:
        while len(reads) > 1:
            server.receive_data(bytes(bytearray(reads.pop(0))))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 1.5 * len(body_of)
    (event,) = server.receive_data(reads[0])
    assert event.body == body_of


def test_all_bytes_of_an_incomplete_message_count():
    _, server = connected_pair()
    assert server.partial_bytes == 0
    server.receive_data(begin_of(100))
    assert server.partial_bytes == len(PERSISTENT)
    server.receive_data(encode_frame(3, 1, b"x" * 60))
    assert server.partial_bytes == len(PERSISTENT) + 60
    last = encode_frame(3, 1, b"y" * 40)
    server.receive_data(last[:-10])
    assert server.partial_bytes == len(PERSISTENT) + 60 + len(last) - 10
    server.receive_data(last[-10:])
    assert server.partial_bytes == 0


def test_a_connection_that_is_discarded_keeps_nothing_alive():
    _, server = connected_pair()
    server.receive_data(begin_of(100) + encode_frame(3, 1, b"x" * 60) + b"\x01\x00")
    server.discard()
    assert server.partial_bytes == 0
    left = weakref.ref(server)
    gc.disable()
    try:
        del server, _
        assert left() is None
    finally:
        gc.enable()
