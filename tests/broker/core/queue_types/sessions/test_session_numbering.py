"""The sequence number among a message's headers: everything else stays as the publisher sent it."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lbg_broker.core.queue_types.session_headers import END, SEQUENCE, end_of_session, numbered
from lbg_core.amqp import NO_PROPERTIES, BasicProperties
from lbg_core.publisher.stamper import HeaderEncoder, StampedMessage
from lbg_sidecar.message import quick_stamp
from testing.exploration import example_count

TEXTS = st.none() | st.text(max_size=20)
VALUES: st.SearchStrategy[Any] = st.one_of(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.text(max_size=8),
    st.booleans(),
    st.none(),
    st.dictionaries(st.sampled_from(["a", SEQUENCE]), st.integers(0, 9)),
)
HEADERS = st.none() | st.dictionaries(st.sampled_from(["a", "b", "é", "x-session-", SEQUENCE, END]), VALUES)


@pytest.mark.long
@settings(max_examples=example_count(300))
@given(
    content_type=TEXTS,
    content_encoding=TEXTS,
    headers=HEADERS,
    priority=st.none() | st.integers(0, 9),
    message_id=TEXTS,
    sequence=st.integers(1, 1 << 40),
)
def test_only_the_number_is_added(
    content_type: str | None,
    content_encoding: str | None,
    headers: dict[str, Any] | None,
    priority: int | None,
    message_id: str | None,
    sequence: int,
) -> None:
    properties = BasicProperties(
        content_type=content_type,
        content_encoding=content_encoding,
        headers=headers,
        priority=priority,
        message_id=message_id,
    )
    found = BasicProperties.decode(numbered(properties.encode(), sequence))
    others = {name: value for name, value in (headers or {}).items() if name not in (SEQUENCE, END)}
    assert dict(found.headers or {}) == {**others, SEQUENCE: sequence}
    properties.headers = found.headers = None
    assert found == properties


def test_a_message_without_properties_gets_a_table() -> None:
    found = BasicProperties.decode(numbered(NO_PROPERTIES, 7))
    assert found == BasicProperties(headers={SEQUENCE: 7})


def test_the_number_is_64_bits_wide_however_small() -> None:
    assert numbered(NO_PROPERTIES, 1).endswith(b"\x0dx-session-seql" + bytes(7) + b"\x01")


def test_a_publisher_cannot_say_what_only_the_broker_says() -> None:
    lie = BasicProperties(headers={SEQUENCE: 99, END: True, "a": 1}).encode()
    assert BasicProperties.decode(numbered(lie, 1)).headers == {"a": 1, SEQUENCE: 1}


def test_the_end_of_a_session_is_numbered_too() -> None:
    assert BasicProperties.decode(end_of_session(8)).headers == {END: True, SEQUENCE: 8}


def test_members_still_find_the_stamp_of_our_publishers_without_decoding() -> None:
    header = HeaderEncoder("p", "application/json").of(StampedMessage("k", 1, 0, 5, 6, "p.1.t", b"", 0))
    found, expected = quick_stamp(numbered(header, 3)), quick_stamp(header)
    assert expected is not None
    assert found == (expected[0], False)
