"""The JSON that goes to commands and streams: by template, and the same as from the message's fields."""

from __future__ import annotations

import json
import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lbg_sidecar import Message
from lbg_sidecar.app.cloudevents import message_json, no_constant
from testing.app.application_channel import delivered

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
OTHER_HEADERS = st.dictionaries(
    TEXT.filter(lambda name: 0 < len(name.encode()) < 200), TEXT | st.integers(0, 9)
)


@given(
    key=st.none() | TEXT,
    seq=st.integers(0, 2**62),
    body=st.binary() | TEXT.map(str.encode),
    headers=st.none() | OTHER_HEADERS,
    content_type=st.sampled_from([None, "", "text/plain"]),
    redelivered=st.booleans(),
)
def test_what_is_written_says_what_the_message_says(
    key: str | None,
    seq: int,
    body: bytes,
    headers: dict[str, Any] | None,
    content_type: str | None,
    redelivered: bool,
) -> None:
    held = delivered(seq, key=key, body=body, headers=headers, content_type=content_type)
    held.delivery.redelivered = redelivered
    message = Message(held, 'g"ü')
    text = message_json(message)
    assert json.loads(text) == message.as_json()
    assert text.isascii()
    assert "\n" not in text


def test_a_header_that_is_not_ours_is_there_too() -> None:
    assert json.loads(message_json(Message(delivered(1, headers={"x": 1}), "g")))["headers"]["x"] == 1


def test_a_number_that_json_does_not_have_is_text() -> None:
    headers = {"x": math.nan, "y": [math.inf, -math.inf], "z": 0.5}
    found = json.loads(message_json(Message(delivered(1, headers=headers), "g")), parse_constant=no_constant)
    assert {name: found["headers"][name] for name in headers} == {"x": "nan", "y": ["inf", "-inf"], "z": 0.5}
