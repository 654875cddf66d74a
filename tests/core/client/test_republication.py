"""Properties of copies of a message."""

from __future__ import annotations

import pytest

from lbg_core.amqp import BasicProperties
from lbg_core.amqp.field_table import Table
from lbg_core.client import Delivery
from lbg_core.client.republication import copied_properties, cut_reason, is_copyable, published_header

DEATHS: Table = {"x-death": [{"queue": "q", "reason": "rejected", "count": 1}], "x-first-death-queue": "q"}
NOT_COPIED: Table = {
    "CC": ["another.key"],
    "x-delivery-count": 2,
    "x-acquired-count": 3,
    "x-stream-offset": 7,
    "x-session-seq": 1,
    "x-session-epoch": "e",
}
FRAME_OVERHEAD_BYTES = 8 + 12
"""Of a frame, and of a content header in it."""


def delivery(headers: Table, **properties: str) -> Delivery:
    made = Delivery.__new__(Delivery)
    made.header = BasicProperties(headers=headers, content_type="text/plain", **properties).encode()
    return made


def test_a_copy_has_the_publishers_headers_and_none_of_the_broker_it_came_from() -> None:
    copy = copied_properties(
        delivery({"own": 1, "old": 2} | DEATHS | NOT_COPIED), without=["old"], added={"new": 3}
    )
    assert copy == BasicProperties(content_type="text/plain", headers={"own": 1, "new": 3} | DEATHS)


def test_a_copy_without_headers_has_no_table() -> None:
    assert copied_properties(delivery(NOT_COPIED)).headers is None


def test_a_copy_does_not_name_its_publishers_user_whom_a_broker_refuses_from_another() -> None:
    signed = delivery({"own": 1}, user_id="somebody")
    assert copied_properties(signed).user_id is None
    assert published_header(signed) == delivery({"own": 1}).header


def test_a_copy_does_not_expire_as_rabbitmqs_dead_letters_do_not() -> None:
    mortal = delivery({"own": 1}, expiration="60000")
    assert copied_properties(mortal).expiration is None
    assert published_header(mortal) == delivery({"own": 1}).header


def test_a_message_goes_as_it_came_but_for_what_its_broker_added() -> None:
    own = {"own": 1} | DEATHS
    assert published_header(delivery(own)) == delivery(own).header
    assert published_header(delivery(own | NOT_COPIED)) == delivery(own).header


@pytest.mark.long
@pytest.mark.parametrize("frame_max_bytes", [8192, 131_072])
def test_what_counts_as_copyable_has_room_for_the_longest_reason(frame_max_bytes: int) -> None:
    size = frame_max_bytes
    while not is_copyable(largest := delivery({"x": "x" * size}), frame_max_bytes):
        size -= 1
    assert size > frame_max_bytes / 3
    added = {"lbg-reason": cut_reason("\N{PILE OF POO}" * 2000), "lbg-member-name": "m" * 255}
    encoded = copied_properties(largest, added=added).encode()
    assert len(encoded) + FRAME_OVERHEAD_BYTES <= frame_max_bytes


def test_a_reason_is_cut_at_a_whole_character() -> None:
    assert cut_reason("é" * 3000) == "é" * 1000
    assert cut_reason("xé" + "é" * 3000) == "x" + "é" * 999
    assert cut_reason("short") == "short"
