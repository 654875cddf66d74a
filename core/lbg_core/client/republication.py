"""Properties of somebody's message that is published again: all of a message have to fit into one frame.

A publisher's headers may fill it (AMQP 0-9-1, section 4.2.6), so whoever adds some asks here first.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Final

from lbg_core.amqp import BasicProperties
from lbg_core.amqp.field_table import Table
from lbg_core.client.messages import Delivery

NOT_COPIED: Final = frozenset(
    ("x-delivery-count", "x-acquired-count", "x-session-seq", "x-session-epoch", "x-stream-offset", "CC")
)
"""Headers that a broker adds to a message that it delivers, also where the frame is larger than agreed then; and CC, by
which it would route the copy to further queues, that have had theirs (RabbitMQ, "Sender-Selected Distribution")."""

FRAME_MAX_BYTES: Final = 131072
"""Frame size that brokers and clients agree on as a rule."""

COPY_BYTES: Final = 4096
"""Of a frame, for what a copy has beside a publisher's properties: the longest is a reason of `REASON_MAX_BYTES`."""

REASON_MAX_BYTES: Final = 2000
"""The first lines of a traceback matter most."""

GROWTH_MAX: Final = 2.5
"""Of headers that are decoded and encoded again, as of small integers: 2 bytes become 5."""


def copied_properties(
    delivery: Delivery, *, without: Container[str] = (), added: Table | None = None
) -> BasicProperties:
    """For a copy of the message: without the headers `NOT_COPIED`, with these, and without the publisher's
    user, whose name a broker refuses from another, and its expiration, by which a dead letter would be lost."""
    headers = delivery.headers
    copied = {name: headers[name] for name in headers if name not in NOT_COPIED and name not in without}
    return replace(
        delivery.properties, headers=copied | dict(added or {}) or None, user_id=None, expiration=None
    )


def published_header(delivery: Delivery) -> bytes:
    """The encoded properties of a copy to which nothing is added: they fitted into a frame."""
    if copied_properties(delivery) == delivery.properties:
        return delivery.header
    return copied_properties(delivery).encode()


def is_copyable(delivery: Delivery, frame_max_bytes: int) -> bool:
    """True if the message's headers leave room for those of a copy."""
    is_small = len(delivery.header) * GROWTH_MAX <= frame_max_bytes - COPY_BYTES
    return is_small or leaves_room(delivery.properties, frame_max_bytes)


def leaves_room(properties: BasicProperties, frame_max_bytes: int) -> bool:
    """The same for properties."""
    return len(properties.encode()) <= frame_max_bytes - COPY_BYTES


def cut_reason(reason: str) -> str:
    """The beginning of a reason that a header has room for."""
    return reason.encode(errors="replace")[:REASON_MAX_BYTES].decode(errors="ignore")
