"""A message with its place in the order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Extra:
    """What one message carries beside key and body: its own headers, and a content type in place of its publisher's."""

    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None

    @property
    def size_bytes(self) -> int:
        """Of names and values, in characters: it counts towards `PublishingSettings.read_ahead_bytes`."""
        return sum(len(name) + len(value) for name, value in self.headers.items())


@dataclass(slots=True, eq=False)
class Stamped:
    """One accepted message. What is stamped on it (hash, sequence, routing key) never changes again.

    `position` counts accepted messages from 0; `digest` is a checksum over this message and all before it.
    """

    key: str | None
    hash: int
    queue: int
    seq: int
    position: int
    routing_key: str
    body: bytes
    digest: int
    accepted: bool | None = None  # what the broker said to the last attempt; None while it is open
    unknown: bool = False  # an attempt ended without an answer: the message may be there twice
    inverted: bool = False  # accepted while an earlier message of its key is still to come
    confirmed: bool = False
    sends: int = 0
    sent_at_us: int = 0  # the first time
    body_bytes: int = 0
    weight_bytes: int = 0
    extra: Extra | None = None
