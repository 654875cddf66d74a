"""Headers of somebody's message that is published again: all of a message have to fit into one frame.

A publisher's headers may fill it (AMQP 0-9-1, section 4.2.6), so whoever adds some asks here first.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Final

from lbg_core.amqp import BasicProperties
from lbg_core.amqp.field_table import Table
from lbg_core.client.messages import Delivery

ADDED_BY_BROKER: Final = frozenset(
    ("x-delivery-count", "x-acquired-count", "x-session-seq", "x-session-epoch", "x-stream-offset")
)
"""Headers that a broker adds to a message that it delivers, also where the frame is larger than agreed then."""

FRAME_MAX_BYTES: Final = 131072
"""Frame size that brokers and clients agree on as a rule."""

PUBLISHERS_PART: Final = 7 / 8
"""Of a frame, for a publisher's headers: the rest is for those of a copy, of which the longest is a reason of 2000
characters."""

GROWTH_MAX: Final = 2.5
"""Of headers that are decoded and encoded again, as of small integers: 2 bytes become 5."""


def copied_properties(
    delivery: Delivery, *, without: Container[str] = (), added: Table | None = None
) -> BasicProperties:
    """For a copy of the message: without headers that the broker has added, and with these."""
    headers = delivery.headers
    copied = {name: headers[name] for name in headers if name not in ADDED_BY_BROKER and name not in without}
    return replace(delivery.properties, headers=copied | dict(added or {}) or None)


def published_header(delivery: Delivery) -> bytes:
    """The encoded properties without headers that the broker has added: they fitted into a frame."""
    if ADDED_BY_BROKER.isdisjoint(delivery.headers):
        return delivery.header
    return copied_properties(delivery).encode()


def is_copyable(delivery: Delivery, frame_max_bytes: int) -> bool:
    """True if the message's headers leave room for those of a copy."""
    is_small = len(delivery.header) * GROWTH_MAX <= frame_max_bytes * PUBLISHERS_PART
    return is_small or leaves_room(delivery.properties, frame_max_bytes)


def leaves_room(properties: BasicProperties, frame_max_bytes: int) -> bool:
    """The same for properties."""
    return len(properties.encode()) <= frame_max_bytes * PUBLISHERS_PART
