"""Lookup of the key header in encoded tables, compared with full decoding."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lbg_broker.amqp import BasicProperties
from lbg_broker.group import HEADER_KEY
from lbg_broker.publisher.stamper import HeaderEncoder, MessageOptions, StampedMessage
from lbg_broker.server.core.message import text_reader
from support.exploration import example_count

NAMES = ("lbg-key", "group-id", "é")
READ = text_reader(NAMES)

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.sampled_from(
        [
            None,
            True,
            1.5,
            datetime(2026, 1, 1, tzinfo=UTC),
            Decimal("1.5"),
            {"lbg-key": "in"},
            ["lbg-key", {"é": 1}],
        ]
    ),
)
TABLES = st.dictionaries(st.sampled_from([*NAMES, "a", "lbg-key2", ""]), VALUES, max_size=6)
TEXTS = st.none() | st.sampled_from(["", "\x07lbg-keyS", "text/plain"])


def decoded(header: bytes) -> bytes | None:
    headers = BasicProperties.decode(header).headers or {}
    for name in NAMES:
        value = headers.get(name)
        if isinstance(value, bool):
            continue
        if isinstance(value, int):
            return str(value).encode()
        if isinstance(value, str | bytes):
            return value.encode() if isinstance(value, str) else value
    return None


@settings(max_examples=example_count(400))
@given(headers=st.none() | TABLES, content_type=TEXTS, encoding=TEXTS, priority=st.none() | st.integers(0, 9))
def test_finds_what_decoding_everything_finds(
    headers: dict[str, Any] | None, content_type: str | None, encoding: str | None, priority: int | None
) -> None:
    header = BasicProperties(
        content_type=content_type,
        content_encoding=encoding,
        headers=headers,
        priority=priority,
        message_id="\x07lbg-keyS\x00\x00\x00\x01x",
    ).encode()
    assert READ(header) == decoded(header)


@settings(max_examples=example_count(300))
@given(headers=TABLES, cut=st.integers(2, 60), noise=st.binary(max_size=6))
def test_never_fails_on_what_is_cut_or_spoilt(headers: dict[str, Any], cut: int, noise: bytes) -> None:
    header = BasicProperties(content_type="text/plain", headers=headers).encode()
    for spoilt in (header[:cut], header[:cut] + noise, header[:cut] + noise + header[cut + len(noise) :]):
        assert isinstance(READ(spoilt), bytes | None)


def test_reads_what_our_own_publishers_write() -> None:
    heading = HeaderEncoder("publisher", "application/json")
    for key in ("k", "", "ключ", "x" * 300):
        for extra in (None, MessageOptions(headers={"a": "b", HEADER_KEY: "another"})):
            stamped = StampedMessage(key, 1, 0, 1, 0, "p.1.t", b"", 0, extra=extra)
            assert READ(heading.of(stamped)) == key.encode()


@pytest.mark.parametrize(
    "kind", [b"b\x05", b"B\x05", b"s\x00\x05", b"U\x00\x05", b"u\x00\x05", b"i\x00\x00\x00\x05"]
)
def test_a_whole_number_of_any_width_counts_as_its_digits(kind: bytes) -> None:
    entry = b"\x07lbg-key" + kind
    assert READ(b"\x20\x00" + len(entry).to_bytes(4, "big") + entry) == b"5"


def test_the_first_name_wins_wherever_it_stands() -> None:
    header = BasicProperties(headers={"é": "3", "group-id": "2", "lbg-key": "1"}).encode()
    assert READ(header) == b"1"
