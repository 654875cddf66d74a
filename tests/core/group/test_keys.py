"""The key of a message: its canonical text, and its header in encoded tables compared with full decoding."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lbg_broker.core.arguments import PartitionedArguments
from lbg_broker.core.queue_types.partition_routes import placing
from lbg_core.amqp import BasicProperties
from lbg_core.group import (
    HASH_FUNCTIONS,
    HEADER_KEY,
    KEY_HEADERS,
    SpecError,
    hash_of,
    key_in,
    key_of,
    key_reader,
    key_text,
)
from lbg_core.publisher.stamper import HeaderEncoder, MessageOptions, StampedMessage
from testing.exploration import example_count

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.floats(),
    st.booleans(),
    st.decimals(min_value=-1000, max_value=1000, places=3),
    st.sampled_from(
        [None, datetime(2026, 1, 1, tzinfo=UTC), {"lbg-key": "in"}, ["lbg-key", {"x-group-id": 1}]]
    ),
)
TABLES = st.dictionaries(st.sampled_from([*KEY_HEADERS, "a", "lbg-key2", ""]), VALUES, max_size=6)
TEXTS = st.none() | st.sampled_from(["", "\x07lbg-keyS", "text/plain"])


@settings(max_examples=example_count(400))
@given(headers=st.none() | TABLES, content_type=TEXTS, encoding=TEXTS, priority=st.none() | st.integers(0, 9))
def test_the_key_of_encoded_headers_is_that_of_decoded_ones(
    headers: dict[str, Any] | None, content_type: str | None, encoding: str | None, priority: int | None
) -> None:
    header = BasicProperties(
        content_type=content_type,
        content_encoding=encoding,
        headers=headers,
        priority=priority,
        message_id="\x07lbg-keyS\x00\x00\x00\x01x",
    ).encode()
    assert key_in(header) == key_of(BasicProperties.decode(header).headers or {})


@settings(max_examples=example_count(300))
@given(headers=TABLES, cut=st.integers(2, 60), noise=st.binary(max_size=6))
def test_never_fails_on_what_is_cut_or_spoilt(headers: dict[str, Any], cut: int, noise: bytes) -> None:
    header = BasicProperties(content_type="text/plain", headers=headers).encode()
    for spoilt in (header[:cut], header[:cut] + noise, header[:cut] + noise + header[cut + len(noise) :]):
        assert isinstance(key_in(spoilt), str | None)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("k", "k"),
        ("007", "007"),
        (" 1", " 1"),
        ("ключ", "ключ"),
        ("", None),
        ("\ud800", None),
        (b"k", "k"),
        ("ключ".encode(), "ключ"),
        (b"\xff\x00k", "\\xff\x00k"),
        ("\ud800".encode("utf-8", "surrogatepass"), "\\xed\\xa0\\x80"),
        (b"", None),
        (1, "1"),
        (-7, "-7"),
        (1.0, "1"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (-2.50, "-2.5"),
        (1e16, "10000000000000000"),
        (1e23, "100000000000000000000000"),
        (1.5e-7, "0.00000015"),
        (float("inf"), None),
        (float("nan"), None),
        (Decimal("1.50"), "1.5"),
        (Decimal("-0.00"), "0"),
        (True, "true"),
        (False, "false"),
        (None, None),
        (datetime(2026, 1, 1, tzinfo=UTC), None),
        ({}, None),
        ([1], None),
    ],
)
def test_a_key_has_one_text_whatever_its_type(value: object, text: str | None) -> None:
    assert key_text(value) == text


@pytest.mark.parametrize("written", ["1", "1.0", "1e0", "10e-1", '"1"'])
def test_numbers_of_json_with_one_value_are_one_key(written: str) -> None:
    assert key_text(json.loads(written)) == "1"


@given(VALUES)
def test_the_text_of_a_key_is_unicode_and_its_own_text(value: object) -> None:
    text = key_text(value)
    if text is not None:
        assert key_text(text) == text == text.encode().decode()


@pytest.mark.parametrize("function", HASH_FUNCTIONS)
@given(headers=TABLES)
def test_the_broker_places_a_key_by_the_hash_of_its_text(function: str, headers: dict[str, Any]) -> None:
    header = BasicProperties(headers=headers).encode()
    key = key_of(BasicProperties.decode(header).headers or {})
    place = placing(PartitionedArguments(count=64, hash=function, hash_count=1024))
    if key is None:
        assert 0 <= place(header) < 64
    else:
        try:
            hash_ = hash_of(key, 1024, function)
        except SpecError:  # no number for `modulo`: publishers of ours refuse it
            hash_ = hash_of(key, 1024, "crc32")
        assert place(header) == hash_ % 64


def test_reads_what_our_own_publishers_write() -> None:
    heading = HeaderEncoder("publisher", "application/json")
    for key in ("k", "ключ", "x" * 300):
        for extra in (None, MessageOptions(headers={"a": "b", HEADER_KEY: "another"})):
            stamped = StampedMessage(key, 1, 0, 1, 0, "p.1.t", b"", 0, extra=extra)
            assert key_in(heading.of(stamped)) == key


def test_a_header_without_a_key_leaves_it_to_the_next() -> None:
    for nothing in ("", b"", None, {}, [], float("nan")):
        header = BasicProperties(
            headers={"lbg-key": nothing, "JMSXGroupID": b"", "partitionkey": 4711}
        ).encode()
        assert key_in(header) == "4711"


def test_of_two_headers_of_one_name_the_first_counts() -> None:
    entries = b"\x07lbg-keyS\0\0\0\x01a" + b"\x07lbg-keyS\0\0\0\x01b"
    assert key_in(b"\x20\x00" + len(entries).to_bytes(4, "big") + entries) == "a"


def test_nothing_behind_the_table_is_a_key() -> None:
    """A correlation id and a reply-to that look like the header where our publishers have it."""
    header = BasicProperties(headers={}, correlation_id="lbg-key", reply_to="\0\0\0\x05" + "k" * 79).encode()
    assert b"\x07lbg-keyS\0\0\0\x05kkkkk" in header
    assert key_in(header) is None


@pytest.mark.parametrize(
    "kind", [b"b\x05", b"B\x05", b"s\x00\x05", b"U\x00\x05", b"u\x00\x05", b"i\x00\x00\x00\x05"]
)
def test_a_whole_number_of_any_width_counts_as_its_digits(kind: bytes) -> None:
    entry = b"\x07lbg-key" + kind
    assert key_in(b"\x20\x00" + len(entry).to_bytes(4, "big") + entry) == "5"


def test_the_first_name_wins_wherever_it_stands() -> None:
    names = ("lbg-key", "group-id", "é")
    header = BasicProperties(headers={"é": "3", "group-id": "2", "lbg-key": "1"}).encode()
    assert key_reader(names)(header) == b"1"
    assert key_reader(names[1:])(header) == b"2"
