from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lbg_core.amqp import BasicProperties
from lbg_core.publisher.stamper import HeaderEncoder, StampedMessage, properties_of


@given(
    st.none() | st.text(min_size=1, max_size=300),
    st.integers(0, 65535),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**62),
)
def test_the_hand_made_header_is_what_the_codec_reads(
    key: str | None, hash_: int, seq: int, sent_at_us: int
) -> None:
    message = StampedMessage(key, hash_, 0, seq, 0, "r", b"", 0, sent_at_us=sent_at_us)
    if key is not None and any(0xD800 <= ord(character) < 0xE000 for character in key):
        return  # no key: stamping refuses it
    header = HeaderEncoder("flights-0a", "application/json").of(message)
    assert BasicProperties.decode(header) == properties_of(message, "flights-0a", "application/json")


def test_names_that_do_not_fit_a_short_string_are_refused() -> None:
    with pytest.raises(ValueError, match="180 bytes"):
        HeaderEncoder("p", "x" * 200)
