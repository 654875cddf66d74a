"""Every (state, input) pair of the tables, in both directions and roles: legal steps step, all others are errors."""

from itertools import product

import pytest

from lbg_core.amqp import (
    PROTOCOL_HEADER,
    BasicProperties,
    ChannelState,
    Connection,
    ConnectionFault,
    ConnectionState,
    LocalProtocolError,
    MethodEvent,
    Role,
)
from lbg_core.amqp.frames import encode_frame
from lbg_core.amqp.methods import (
    BasicQos,
    BasicQosOk,
    ChannelClose,
    ChannelCloseOk,
    ChannelOpen,
    ChannelOpenOk,
    ConnectionBlocked,
    ConnectionClose,
    ConnectionCloseOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionSecure,
    ConnectionSecureOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
    ConnectionTuneOk,
    ConnectionUnblocked,
    ConnectionUpdateSecret,
    ConnectionUpdateSecretOk,
)
from lbg_core.amqp.states import (
    CHANNEL_RECEIVED,
    CHANNEL_SENT,
    CONNECTION,
    CONNECTION_CLOSABLE,
    ChannelInput,
)
from testing.amqp.wire import connected_pair

S = ConnectionState
CONNECTION_METHODS = [
    ConnectionStart(),
    ConnectionStartOk(),
    ConnectionSecure(),
    ConnectionSecureOk(),
    ConnectionTune(),
    ConnectionTuneOk(),
    ConnectionOpen(),
    ConnectionOpenOk(),
    ConnectionClose(),
    ConnectionCloseOk(),
    ConnectionBlocked(),
    ConnectionUnblocked(),
    ConnectionUpdateSecret(),
    ConnectionUpdateSecretOk(),
]
WAY_TO_OPEN = [
    ConnectionStart(),
    ConnectionStartOk(),
    ConnectionTune(),
    ConnectionTuneOk(),
    ConnectionOpen(),
    ConnectionOpenOk(),
]


def connection_in(role: Role, state: ConnectionState) -> Connection:
    """A connection brought to a state by the shortest legal conversation."""
    connection = Connection(role)
    if state is S.HEADER:
        return connection
    if role is Role.CLIENT:
        connection.initiate()
    else:
        connection.receive_data(PROTOCOL_HEADER)
    for method in [*WAY_TO_OPEN, None]:
        if connection.state is state:
            break
        if state is S.CHALLENGED and connection.state is S.AUTHENTICATING:
            method = ConnectionSecure()
        assert method is not None or state in (S.CLOSING, S.PEER_CLOSED, S.CLOSED)
        if method is not None:
            say(connection, method)
    if state in (S.CLOSING, S.CLOSED):
        connection.send(0, ConnectionClose())
    if state is S.CLOSED:
        connection.receive_data(encode_frame(1, 0, ConnectionCloseOk().encode()))
    if state is S.PEER_CLOSED:
        connection.receive_data(encode_frame(1, 0, ConnectionClose().encode()))
    assert connection.state is state
    connection.take_output()
    return connection


def say(connection, method):
    """Send or receive a method, whichever its sender makes it."""
    if method.SENDER is connection.role:
        connection.send(0, method)
    else:
        assert connection.receive_data(encode_frame(1, 0, method.encode())) == [MethodEvent(0, method)]


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    ("state", "method"),
    list(product(S, CONNECTION_METHODS)),
    ids=lambda value: value.NAME if hasattr(value, "NAME") else value.name,
)
def test_connection_method_sent(role, state, method):
    connection = connection_in(role, state)
    after = CONNECTION.get((state, type(method)))
    if isinstance(method, ConnectionClose):
        after = S.CLOSING if state in CONNECTION_CLOSABLE else None
    if isinstance(method, ConnectionCloseOk):
        after = S.CLOSED if state is S.PEER_CLOSED else None
    if method.SENDER not in (None, role):
        after = None
    if after is None:
        with pytest.raises(LocalProtocolError):
            connection.send(0, method)
        assert connection.state is state
        assert connection.take_output() == b""
    else:
        connection.send(0, method)
        assert connection.state is after
        assert connection.take_output() == encode_frame(1, 0, method.encode())


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    ("state", "method"),
    list(product([s for s in S if s is not S.HEADER], CONNECTION_METHODS)),
    ids=lambda value: value.NAME if hasattr(value, "NAME") else value.name,
)
def test_connection_method_received(role, state, method):
    connection = connection_in(role, state)
    events = connection.receive_data(encode_frame(1, 0, method.encode()))
    if state in (S.CLOSED, S.PEER_CLOSED):
        assert events == []
        assert connection.state is state
    elif state is S.CLOSING:
        if isinstance(method, ConnectionCloseOk):
            assert events == [MethodEvent(0, method)]
            assert connection.state is S.CLOSED
        else:
            assert events == []
            assert connection.state is S.CLOSING
            answer = encode_frame(1, 0, ConnectionCloseOk().encode())
            assert connection.take_output() == (answer if isinstance(method, ConnectionClose) else b"")
    elif isinstance(method, ConnectionClose):
        assert events == [MethodEvent(0, method)]
        assert connection.state is S.PEER_CLOSED
    elif method.SENDER is not role and (state, type(method)) in CONNECTION:
        assert events == [MethodEvent(0, method)]
        assert connection.state is CONNECTION[state, type(method)]
    else:
        (fault,) = events
        assert isinstance(fault, ConnectionFault)
        assert fault.reply_code == 503
        spoken_to = not (role is Role.CLIENT and state is S.STARTING)
        assert fault.await_close_ok == spoken_to
        assert connection.state is (S.CLOSING if spoken_to else S.CLOSED)
        assert (b"\x00\x0a\x00\x32" in connection.take_output()) == spoken_to


C = ChannelState
INPUTS = {
    ChannelInput.OPEN: ChannelOpen(),
    ChannelInput.OPEN_OK: ChannelOpenOk(),
    ChannelInput.CLOSE: ChannelClose(),
    ChannelInput.CLOSE_OK: ChannelCloseOk(),
}


def method_for(step: ChannelInput, sender: Role):
    other = BasicQos() if sender is Role.CLIENT else BasicQosOk()
    return INPUTS.get(step, other)


def channel_in(role: Role, state: ChannelState) -> Connection:
    """A connection with channel 1 in a state."""
    connection = connected_pair(channels=0)[0 if role is Role.CLIENT else 1]
    if state is C.CLOSED:
        return connection

    def receive(method):
        connection.receive_data(encode_frame(1, 1, method.encode()))

    if role is Role.CLIENT:
        connection.send(1, ChannelOpen())
    else:
        receive(ChannelOpen())
    if state is not C.OPENING:
        if role is Role.CLIENT:
            receive(ChannelOpenOk())
        else:
            connection.send(1, ChannelOpenOk())
    if state is C.CLOSING:
        connection.send(1, ChannelClose())
    if state is C.PEER_CLOSED:
        receive(ChannelClose())
    assert connection.channel_state(1) is state
    connection.take_output()
    return connection


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", C)
@pytest.mark.parametrize("step", ChannelInput)
def test_channel_method_sent(role, state, step):
    connection = channel_in(role, state)
    method = method_for(step, role)
    after = CHANNEL_SENT[role].get((state, step))
    if after is None or method.SENDER not in (None, role):
        with pytest.raises(LocalProtocolError):
            connection.send(1, method)
        assert connection.channel_state(1) is state
        assert connection.take_output() == b""
    else:
        connection.send(1, method)
        assert connection.channel_state(1) is after
        assert connection.take_output() == encode_frame(1, 1, method.encode())


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", C)
@pytest.mark.parametrize("step", ChannelInput)
def test_channel_method_received(role, state, step):
    connection = channel_in(role, state)
    peer = Role.SERVER if role is Role.CLIENT else Role.CLIENT
    method = method_for(step, peer)
    events = connection.receive_data(encode_frame(1, 1, method.encode()))
    after = CHANNEL_RECEIVED[role].get((state, step))
    if method.SENDER is role:
        after = None
    if state is C.CLOSING and step is not ChannelInput.CLOSE_OK:
        assert events == []
        assert connection.channel_state(1) is C.CLOSING
        answer = encode_frame(1, 1, ChannelCloseOk().encode())
        assert connection.take_output() == (answer if step is ChannelInput.CLOSE else b"")
    elif after is None:
        (fault,) = events
        assert isinstance(fault, ConnectionFault)
        assert fault.reply_code == (503 if method.SENDER is role else 504)
        assert connection.state is S.CLOSING
    else:
        assert events == [MethodEvent(1, method)]
        assert connection.channel_state(1) is after


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("state", C)
def test_messages_can_be_sent_only_on_an_open_channel(role, state):
    connection = channel_in(role, state)
    header = BasicProperties().encode()
    calls = [lambda: connection.ack(1, 1)]
    if role is Role.CLIENT:
        calls.append(lambda: connection.publish(1, "e", "k", header, b"body"))
    else:
        calls.append(lambda: connection.deliver(1, "t", 1, False, "e", "k", header, b"body"))
    assert connection.accepts(1) == (state in (C.OPEN, C.PEER_CLOSED))
    for call in calls:
        if connection.accepts(1):
            call()
            assert connection.take_output()
        else:
            with pytest.raises(LocalProtocolError, match=state.name.lower()):
                call()


@pytest.mark.parametrize("role", Role)
def test_a_closed_channel_can_be_opened_again(role):
    connection = channel_in(role, C.CLOSING)
    connection.receive_data(encode_frame(1, 1, ChannelCloseOk().encode()))
    assert connection.channel_state(1) is C.CLOSED
    if role is Role.CLIENT:
        connection.send(1, ChannelOpen())
    else:
        connection.receive_data(encode_frame(1, 1, ChannelOpen().encode()))
    assert connection.channel_state(1) is C.OPENING
