"""Random and mutated bytes in random pieces, to both roles: events or a clean protocol error, never a crash."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lbg_core.amqp import (
    PROTOCOL_HEADER,
    BasicProperties,
    ChannelFault,
    Connection,
    ConnectionFault,
    ConnectionState,
    MethodEvent,
    Role,
)
from lbg_core.amqp.frames import encode_frame
from lbg_core.amqp.methods import (
    BasicConsume,
    BasicReturn,
    ChannelCloseOk,
    ConnectionClose,
    QueueDeclare,
    QueueDeclareOk,
    decode_method,
)
from testing.amqp.wire import ALL_METHODS, connected_pair, methods_of
from testing.exploration import example_count

HEADER = BasicProperties(
    delivery_mode=2, headers={"lbg-key": "N1", "lbg-seq": 5, "deep": {"a": [1]}}
).encode()
CODES = {501, 502, 503, 504, 505, 530, 540}


def seed_for(role: Role) -> tuple[Connection, bytes]:
    """An open connection of a role, and a stretch of valid traffic for it."""
    client, server = connected_pair(frame_max_bytes=4096, channels=2, max_body_bytes=10_000)
    for index, size in enumerate([3, 0, 5000]):
        client.publish(1 + index % 2, "orders", f"orders.{index}", HEADER, b"b" * size)
        client.ack(1, index)
        server.deliver(1 + index % 2, "tag", index, False, "orders", f"orders.{index}", HEADER, b"b" * size)
        server.ack(2, index, multiple=True)
    client.send(1, QueueDeclare("q", arguments={"x-max-length": 5, "nested": {"list": [1, None]}}))
    client.send(2, BasicConsume("q", "tag"))
    server.send(1, QueueDeclareOk("q", 1, 2))
    server.send_content(1, BasicReturn(312, "NO_ROUTE", "e", "k"), HEADER, b"returned")
    from_client, from_server = client.take_output(), server.take_output()
    return (server, from_client) if role is Role.SERVER else (client, from_server)


def feed(connection: Connection, data: bytes, sizes: list[int]) -> list[object]:
    events: list[object] = []
    position = 0
    for size in sizes:
        events += connection.receive_data(data[position : position + size])
        position += size
    return events + list(connection.receive_data(data[position:]))


def check(connection: Connection, events: list[object], *, opened: bool = True) -> None:
    """The connection is in order, or reported the error and accepts nothing but close-ok."""
    faults = [event for event in events if isinstance(event, ConnectionFault)]
    assert len(faults) <= 2  # a second only when the frames fell out of step while it awaited close-ok
    for fault in faults:
        assert fault.reply_code in CODES
    output = connection.take_output()
    if faults:
        assert connection.state in (ConnectionState.CLOSING, ConnectionState.CLOSED)
        last = events.index(faults[-1])
        assert not [event for event in events[last + 1 :] if not is_close_ok(event)]
        if opened:
            assert any_close_in(output)
    for event in events:
        if isinstance(event, ChannelFault):
            assert event.reply_code == 406
        repr(event)


def is_close_ok(event: object) -> bool:
    return isinstance(event, MethodEvent) and event.method.NAME == "connection.close-ok"


def any_close_in(output: bytes) -> bool:
    while output:
        end = 8 + int.from_bytes(output[3:7], "big")
        if output[0] == 1 and isinstance(decode_method(output[7 : end - 1]), ConnectionClose):
            return True
        output = output[end:]
    return False


chunk_sizes = st.lists(st.integers(0, 400), max_size=40)
roles = st.sampled_from(list(Role))


@settings(max_examples=example_count(300))
@given(roles, st.binary(max_size=300), chunk_sizes)
def test_random_bytes(role, data, sizes):
    connection, _ = seed_for(role)
    check(connection, feed(connection, data, sizes))


@settings(max_examples=example_count(300))
@given(st.binary(max_size=100), chunk_sizes)
@example(PROTOCOL_HEADER + b"\x01", [])
@example(PROTOCOL_HEADER[:4] + b"\x00" * 8, [1] * 12)
def test_random_bytes_before_anything_else(data, sizes):
    server = Connection(Role.SERVER)
    check(server, feed(server, data, sizes), opened=False)
    client = Connection(Role.CLIENT)
    client.initiate()
    client.take_output()
    check(client, feed(client, data, sizes), opened=False)


@settings(max_examples=example_count(1000))
@given(roles, chunk_sizes, st.data())
def test_mutated_traffic(role, sizes, draws):
    connection, seed = seed_for(role)
    data = bytearray(seed)
    for _ in range(draws.draw(st.integers(1, 4))):
        place = draws.draw(st.integers(0, len(data) - 1))
        match draws.draw(st.sampled_from(["flip", "set", "insert", "delete", "repeat", "swap"])):
            case "flip":
                data[place] ^= 1 << draws.draw(st.integers(0, 7))
            case "set":
                data[place] = draws.draw(st.sampled_from([0, 1, 2, 3, 8, 0x7F, 0x80, 0xCE, 0xFF]))
            case "insert":
                data[place:place] = draws.draw(st.binary(min_size=1, max_size=20))
            case "delete":
                del data[place : place + draws.draw(st.integers(1, 20))]
            case "repeat":
                data[place:place] = data[place : place + draws.draw(st.integers(1, 60))]
            case "swap":
                other = draws.draw(st.integers(0, len(data) - 1))
                data[place], data[other] = data[other], data[place]
        if not data:
            break
    check(connection, feed(connection, bytes(data), sizes))


@pytest.mark.long
@settings(max_examples=example_count(300))
@given(roles, st.lists(st.tuples(st.integers(0, 3), st.sampled_from(ALL_METHODS)), max_size=8), st.data())
def test_any_methods_in_any_order(role, script, draws):
    connection, _ = seed_for(role)
    frames = [encode_frame(1, channel, draws.draw(methods_of(cls)).encode()) for channel, cls in script]
    check(connection, feed(connection, b"".join(frames), []))


@settings(max_examples=example_count(200))
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 3, 8]), st.integers(0, 3), st.binary(max_size=40)), max_size=8)
)
def test_well_formed_frames_of_nonsense(frames):
    for role in Role:
        connection, _ = seed_for(role)
        data = b"".join(encode_frame(kind, channel, payload) for kind, channel, payload in frames)
        check(connection, feed(connection, data, []))


@settings(max_examples=example_count(200))
@given(roles, chunk_sizes)
def test_unharmed_traffic_in_any_pieces_is_taken(role, sizes):
    connection, seed = seed_for(role)
    events = feed(connection, seed, sizes)
    assert not [event for event in events if isinstance(event, ConnectionFault | ChannelFault)]
    assert connection.state is ConnectionState.OPEN


def test_close_ok_is_heard_after_every_mutation_that_keeps_the_frames():
    for role in Role:
        connection, _ = seed_for(role)
        (fault,) = connection.receive_data(encode_frame(1, 1, b"\x00\x63\x00\x63"))
        assert isinstance(fault, ConnectionFault)
        connection.receive_data(encode_frame(1, 1, ChannelCloseOk().encode()))
        connection.receive_data(encode_frame(1, 0, b"\x00\x0a\x00\x33"))
        assert connection.state is ConnectionState.CLOSED
