"""Field tables: every type there and back, and every way they can be broken."""

import contextlib
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.amqp import DecodeError, EncodeError, decode_table, encode_table
from lbg_core.amqp.field_table import DEPTH_MAX
from testing.amqp.wire import tables


def table_with(encoded_value: bytes) -> bytes:
    body = b"\x01k" + encoded_value
    return len(body).to_bytes(4, "big") + body


@given(tables)
def test_any_table_survives_encoding_and_decoding(table):
    assert decode_table(encode_table(table)) == table


@pytest.mark.parametrize(
    ("encoded", "value"),
    [
        (b"t\x00", False),
        (b"t\x02", True),
        (b"b\xff", -1),
        (b"B\xff", 255),
        (b"s\xff\xfe", -2),
        (b"U\xff\xfe", -2),
        (b"u\xff\xfe", 65534),
        (b"I\xff\xff\xff\xfd", -3),
        (b"i\xff\xff\xff\xfd", 4294967293),
        (b"l" + b"\xff" * 8, -1),
        (b"L" + b"\xff" * 8, -1),
        (b"f\x3f\x80\x00\x00", 1.0),
        (b"d\x3f\xf0\x00\x00\x00\x00\x00\x00", 1.0),
        (b"D\x02\xff\xff\xff\xff", Decimal("-0.01")),
        (b"S\x00\x00\x00\x02\xc3\xa9", "é"),
        (b"S\x00\x00\x00\x01\xff", b"\xff"),
        (b"x\x00\x00\x00\x01\x00", b"\x00"),
        (b"A\x00\x00\x00\x03t\x01V", [True, None]),
        (b"F\x00\x00\x00\x03\x01aV", {"a": None}),
        (b"T\x00\x00\x00\x00\x00\x00\x00\x01", datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)),
        (b"T" + b"\xff" * 8, 2**64 - 1),
        (b"V", None),
    ],
)
def test_every_type_that_rabbitmq_writes_is_read_and_can_be_sent_on(encoded, value):
    assert decode_table(table_with(encoded)) == {"k": value}
    assert decode_table(encode_table(decode_table(table_with(encoded)))) == {"k": value}


def test_a_time_that_no_calendar_reaches_stays_a_time():
    # RabbitMQ's Java client writes a date before 1970 so.
    encoded = table_with(b"T" + (-86_400).to_bytes(8, "big", signed=True))
    assert encode_table(decode_table(encoded)) == encoded


def test_numbers_are_written_as_32_bits_when_they_fit_and_64_otherwise():
    assert encode_table({"k": 2**31 - 1}) == table_with(b"I\x7f\xff\xff\xff")
    assert encode_table({"k": -(2**31)}) == table_with(b"I\x80\x00\x00\x00")
    assert encode_table({"k": 2**31}) == table_with(b"l\x00\x00\x00\x00\x80\x00\x00\x00")


def test_subclasses_are_written_as_what_they_are():
    class Level(IntEnum):
        HIGH = 7

    assert decode_table(encode_table({"k": Level.HIGH, "t": (1, 2)})) == {"k": 7, "t": [1, 2]}


def test_times_are_written_in_utc_whatever_their_zone():
    east = datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    assert decode_table(encode_table({"k": east})) == {"k": datetime(2024, 1, 1, tzinfo=UTC)}


@pytest.mark.parametrize(
    "value",
    [
        2**63,
        datetime(2024, 1, 1),
        datetime(1960, 1, 1, tzinfo=UTC),
        object(),
        Decimal("NaN"),
        Decimal(2**31),
        Decimal(1).scaleb(-256),
        {1, 2},
        {1: "number as a key"},
    ],
)
def test_a_value_that_does_not_fit_is_our_error(value):
    with pytest.raises(EncodeError):
        encode_table({"k": value})


def test_a_key_over_255_bytes_is_our_error():
    with pytest.raises(EncodeError, match="255"):
        encode_table({"é" * 128: 1})
    assert decode_table(encode_table({"é" * 127: 1})) == {"é" * 127: 1}


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\x00\x00\x00",
        b"\x00\x00\x00\x01",
        b"\x00\x00\x00\x00\x00",
        b"\xff\xff\xff\xff",
        table_with(b""),
        table_with(b"I\x00\x00\x00"),
        table_with(b"S\x00\x00\x00\x05abc"),
        table_with(b"x\xff\xff\xff\xff"),
        table_with(b"A\x00\x00\x00\x02t"),
        table_with(b"A\x00\x00\x00\x02I\x00\x00\x00\x01"),
        table_with(b"F\x00\x00\x00\x01\x05"),
        table_with(b"?"),
        table_with(b"\x00"),
        b"\x00\x00\x00\x02\xffk",
        b"\x00\x00\x00\x03\x01kI" + b"\x00" * 4,
    ],
)
def test_a_broken_table_is_the_peers_error(encoded):
    with pytest.raises(DecodeError):
        decode_table(encoded)


@given(st.binary(max_size=60))
def test_random_bytes_are_a_table_or_an_error(data):
    with contextlib.suppress(DecodeError):
        table = decode_table(data)
        assert decode_table(encode_table(table)) == table


def nested(depth: int) -> dict[str, object]:
    table: dict[str, object] = {}
    for _ in range(depth - 1):
        table = {"k": table}
    return table


def test_nesting_is_limited_in_both_directions():
    deepest = encode_table(nested(DEPTH_MAX))
    assert decode_table(deepest) == nested(DEPTH_MAX)
    with pytest.raises(EncodeError, match="deep"):
        encode_table(nested(DEPTH_MAX + 1))
    with pytest.raises(DecodeError, match="deep"):
        decode_table(table_with(b"F" + deepest))


def test_arrays_count_as_nesting_too():
    arrays: list[object] = []
    for _ in range(5000):
        arrays = [arrays]
    with pytest.raises(EncodeError, match="deep"):
        encode_table({"k": arrays})
    encoded = b"A\x00\x00\x00\x00"
    for _ in range(5000):
        encoded = b"A" + (len(encoded)).to_bytes(4, "big") + encoded
    with pytest.raises(DecodeError, match="deep"):
        decode_table(table_with(encoded))


def test_text_that_is_not_utf8_survives():
    # A key may come from a client that does not write UTF-8; it must be possible to send it on.
    encoded = b"\x00\x00\x00\x04\x02\xff\xfeV"
    assert encode_table(decode_table(encoded)) == encoded
