"""Both ends of an AMQP connection in memory, and Hypothesis strategies for what goes over it."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

from lbg_core.amqp import METHODS, Connection, Event, Method, MethodEvent, Role
from lbg_core.amqp.field_table import FieldType
from lbg_core.amqp.methods import (
    ChannelOpen,
    ChannelOpenOk,
    ConnectionOpen,
    ConnectionOpenOk,
    ConnectionStart,
    ConnectionStartOk,
    ConnectionTune,
)


def deliver_bytes(sender: Connection, receiver: Connection) -> list[Event]:
    """Carry everything one end has to say to the other."""
    return receiver.receive_data(sender.take_output())


def connected_pair(
    *,
    frame_max_bytes: int = 131072,
    channel_max: int = 2047,
    channels: int = 1,
    max_body_bytes: int = 128 * 1024 * 1024,
) -> tuple[Connection, Connection]:
    """A client and a server, open, with channels 1 to `channels` open."""
    wanted = max(frame_max_bytes, 131072)
    client = Connection(Role.CLIENT, heartbeat_s=10, frame_max_bytes=wanted, max_body_bytes=max_body_bytes)
    server = Connection(Role.SERVER, max_body_bytes=max_body_bytes)
    client.initiate()
    deliver_bytes(client, server)
    server.send(0, ConnectionStart())
    deliver_bytes(server, client)
    client.send(0, ConnectionStartOk(response=b"\0guest\0guest"))
    deliver_bytes(client, server)
    server.send(0, ConnectionTune(channel_max, frame_max_bytes, 10))
    (tune,) = deliver_bytes(server, client)
    assert isinstance(tune, MethodEvent)
    assert isinstance(tune.method, ConnectionTune)
    client.send(0, client.tune_ok(tune.method))
    client.send(0, ConnectionOpen())
    deliver_bytes(client, server)
    server.send(0, ConnectionOpenOk())
    deliver_bytes(server, client)
    for number in range(1, channels + 1):
        client.send(number, ChannelOpen())
        deliver_bytes(client, server)
        server.send(number, ChannelOpenOk())
        deliver_bytes(server, client)
    return client, server


def fits(text: str) -> bool:
    return len(text.encode()) <= 255


short_strings = st.text(st.characters(exclude_categories=["Cs"]), max_size=255).filter(fits)

scalars: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=300),
    st.binary(max_size=300),
    st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31)).map(
        lambda time: time.replace(microsecond=0, tzinfo=UTC)
    ),
    st.builds(
        lambda number, scale: Decimal(number).scaleb(-scale),
        st.integers(-(2**31), 2**31 - 1),
        st.integers(0, 20),
    ),
)


def tables_of(
    values: st.SearchStrategy[Any], keys: st.SearchStrategy[str] = short_strings
) -> st.SearchStrategy[dict[str, Any]]:
    nested = st.recursive(
        values,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
        max_leaves=10,
    )
    return st.dictionaries(keys, nested, max_size=5)


tables = tables_of(scalars)

_WIRE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "octet": st.integers(0, 2**8 - 1),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**64 - 1),
    "shortstr": short_strings,
    "longstr": st.binary(max_size=400),
    "bit": st.booleans(),
    "table": tables,
    "tags": st.lists(st.integers(0, 2**64 - 1), max_size=40).map(tuple),
}


def values_of(kind: FieldType) -> st.SearchStrategy[Any]:
    return _WIRE_VALUES[kind.name]


def methods_of(cls: type[Method], **replaced: st.SearchStrategy[Any]) -> st.SearchStrategy[Method]:
    """Any method of a class. `replaced` are strategies by wire type, in place of the usual ones."""
    wire = {**_WIRE_VALUES, **replaced}
    # mypy sees a dataclass field's type as an opaque object; here it is always Annotated[python type, FieldType]
    arguments = {item.name: wire[item.type.__metadata__[0].name] for item in fields(cls)}
    return st.builds(cls, **arguments)


ALL_METHODS = sorted(METHODS.values(), key=lambda cls: (cls.class_id, cls.method_id))
any_method = st.sampled_from(ALL_METHODS).flatmap(methods_of)
