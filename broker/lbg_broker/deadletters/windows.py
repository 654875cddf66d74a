"""How much of the dead letters may be here at a time. No I/O here.

What is neither replayed nor discarded stays unacknowledged until the end, or it would come again; so a consumer that
passes letters over fills up, and a further one goes on behind it. A window is such a consumer with its prefetch count.
"""

from __future__ import annotations

PAGE_MESSAGES = 64

FIRST_MESSAGES = 256
"""Under way when all of them are acknowledged."""

LARGEST_MESSAGES = 65_535
"""A prefetch count has 16 bits (AMQP 0-9-1, basic.qos), and none at all means 2,000 to a quorum queue."""

HELD_MAX_BYTES = 128 * 1024 * 1024
"""Of bodies in one window, if none is larger than the largest so far. Only a window's letters can be in memory."""


class Windows:
    """Doubling, so that memory is used where many letters are passed over, and there are few consumers: of up to 32 of
    them RabbitMQ gives back in their order what they held (a map of Erlang is sorted up to 32 keys)."""

    def __init__(self) -> None:
        self.opened = 0
        self._size = 0
        self._largest_bytes = 1
        self._held = 0

    def open(self) -> int:
        """The size of a further window; what came before belongs to none any more."""
        fits = max(PAGE_MESSAGES, HELD_MAX_BYTES // self._largest_bytes)
        self._size = min(max(FIRST_MESSAGES, 2 * self._size), LARGEST_MESSAGES, fits)
        self._held = 0
        self.opened += 1
        return self._size

    def came(self, size_bytes: int) -> None:
        self._held += 1
        self._largest_bytes = max(self._largest_bytes, size_bytes)

    def acked(self) -> None:
        """One that came since the window was opened."""
        self._held -= 1

    @property
    def is_crowded(self) -> bool:
        """Asked when everything that came was dealt with: whether less than a page of others fits in."""
        return self._size - self._held < PAGE_MESSAGES
