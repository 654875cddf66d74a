"""The 14 properties: there and back, as pamqp sees them, and the check that does not decode."""

from dataclasses import fields, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands, header

from lbg_core.amqp import BasicProperties, DecodeError, EncodeError
from lbg_core.amqp.content_fast_path import check_header, is_valid_header
from lbg_core.amqp.field_table import DEPTH_MAX
from testing.amqp.wire import short_strings, tables, tables_of, values_of
from testing.exploration import example_count

properties = st.builds(
    BasicProperties,
    **{
        item.name: st.none() | values_of(item.type.__args__[0].__metadata__[0])
        for item in fields(BasicProperties)
    },
)


@given(properties, tables)
def test_flat_headers_are_those_without_tables_and_arrays(value, headers):
    value.headers = headers
    flat = {name: None if isinstance(one, dict | list) else one for name, one in headers.items()}
    assert BasicProperties.decode(value.encode(), is_flat=True) == replace(value, headers=flat)


@given(properties)
def test_any_properties_survive_encoding_and_decoding(value):
    encoded = value.encode()
    assert BasicProperties.decode(encoded) == value
    assert is_valid_header(encoded)


words = st.text("abcdefghij", min_size=1, max_size=20)
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | words


@given(
    st.builds(
        BasicProperties,
        content_type=st.none() | words,
        headers=st.none() | tables_of(scalars, words),
        delivery_mode=st.sampled_from([None, 1, 2]),
        priority=st.none() | st.integers(1, 255),
        correlation_id=st.none() | words,
        expiration=st.none() | words,
        timestamp=st.none() | st.integers(0, 4_000_000_000),
        type=st.none() | words,
        app_id=st.none() | words,
    )
)
def test_pamqp_and_we_agree(ours):
    encoded = ours.encode()
    content = header.ContentHeader()
    content.unmarshal(b"\x00\x3c\x00\x00" + (5).to_bytes(8, "big") + encoded)
    theirs = content.properties
    for item in fields(ours):
        value = getattr(ours, item.name)
        if item.name == "timestamp" and value is not None:
            value = datetime.fromtimestamp(value, UTC)
        decoded = getattr(theirs, "message_type" if item.name == "type" else item.name)
        assert (
            None if decoded == "" else decoded
        ) == value  # pamqp's default is sometimes None, sometimes ""
    assert isinstance(theirs, commands.Basic.Properties)
    assert BasicProperties.decode(theirs.marshal()) == ours


@settings(max_examples=example_count(500))
@given(properties, st.data())
def test_the_check_takes_exactly_what_decodes(value, data):
    encoded = bytearray(value.encode())
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(encoded) - 1))
        encoded[place] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(encoded)))
    for header_bytes in (bytes(encoded), bytes(encoded[:cut])):
        assert is_valid_header(header_bytes) == decodes(header_bytes)


@settings(max_examples=example_count(500))
@given(st.binary(max_size=40))
def test_the_check_agrees_on_random_bytes(data):
    assert is_valid_header(data) == decodes(data)
    assert is_valid_header(b"\x20\x00" + data) == decodes(b"\x20\x00" + data)


@pytest.mark.parametrize("depth", [DEPTH_MAX, DEPTH_MAX + 1])
def test_the_check_has_the_same_depth_limit(depth):
    table = b"\x00\x00\x00\x00"
    for _ in range(depth - 1):
        body = b"\x01kF" + table
        table = len(body).to_bytes(4, "big") + body
    assert is_valid_header(b"\x20\x00" + table) == decodes(b"\x20\x00" + table) == (depth <= DEPTH_MAX)


def decodes(header_bytes):
    try:
        BasicProperties.decode(header_bytes)
    except DecodeError:
        return False
    return True


def test_flags_that_name_no_property_are_refused():
    for flags in (b"\x00\x01", b"\x00\x02"):
        with pytest.raises(DecodeError):
            BasicProperties.decode(flags)
        with pytest.raises(DecodeError):
            check_header(flags)


@pytest.mark.parametrize(
    "value",
    [
        BasicProperties(delivery_mode=256),
        BasicProperties(correlation_id="é" * 128),
        BasicProperties(timestamp=-1),
        BasicProperties(headers={"k": object()}),
        BasicProperties(message_id=5),
    ],
)
def test_a_value_that_does_not_fit_is_our_error_and_names_the_property(value):
    with pytest.raises(EncodeError, match="property"):
        value.encode()


@given(tables, short_strings)
def test_the_flags_stand_for_the_specifications_order(table, text):
    assert BasicProperties(content_type=text).encode()[:2] == b"\x80\x00"
    assert BasicProperties(headers=table).encode()[:2] == b"\x20\x00"
    assert BasicProperties(cluster_id=text).encode()[:2] == b"\x00\x04"
