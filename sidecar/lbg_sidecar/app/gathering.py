"""What waits to go in a batch, and when it goes. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..consuming.held import Held
from ..errors import SettingsError
from ..message import Message

ALONE_FROM_ATTEMPT = 3
"""A message that failed twice goes in a request of its own: one that makes every batch fail must not use up the
attempts of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """How messages are gathered. Raises SettingsError.

    - `size`: messages in a request, at most. A member that is told no `concurrency` takes `size` x `requests`; with
      less, batches stay smaller.
    - `max_bytes`: bodies in a request, at most; a larger message goes alone. 512 KiB stays below the 1 MiB that many
      servers take, with the attributes.
    - `linger_ms`: how long a message waits for others while another request is on its way; 0: not at all. 5 ms is
      little beside a request, and at 10,000 messages/s makes batches of 50.
    - `requests`: under way at once. 2: the application has the next one when it replies.
    - `abort_wait_s`: a request of which some messages were aborted is waited for so long, then closed.
    """

    size: int = 200
    max_bytes: int = 512 * 1024
    linger_ms: float = 5.0
    requests: int = 2
    abort_wait_s: float = 1.0

    def __post_init__(self) -> None:
        for name in ("size", "max_bytes", "requests"):
            if getattr(self, name) < 1:
                raise SettingsError(f"batch {name}", getattr(self, name), "must be at least 1")
        for name in ("linger_ms", "abort_wait_s"):
            if not getattr(self, name) >= 0:
                raise SettingsError(f"batch {name}", getattr(self, name), "must be at least 0")


class Gathering:
    """The messages of the next request. It is due when the first of them has waited for the linger."""

    def __init__(self, settings: BatchSettings) -> None:
        self.due_at = 0.0
        self._settings = settings
        self._messages: list[Message] = []
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def is_full(self) -> bool:
        return len(self._messages) >= self._settings.size

    def add(self, message: Message, now: float) -> Sequence[list[Message]]:
        """Returns the batches that go at once because of it: one without room for it, or itself alone."""
        if message.attempt >= ALONE_FROM_ATTEMPT:
            return ([message],)
        size = len(message.delivery.body)
        sent: Sequence[list[Message]] = ()
        if self._messages and self._bytes + size > self._settings.max_bytes:
            sent = (self.take(),)
        if not self._messages:
            self.due_at = now + self._settings.linger_ms / 1000
        self._messages.append(message)
        self._bytes += size
        return sent

    def take(self) -> list[Message]:
        """All of it."""
        messages, self._messages, self._bytes = self._messages, [], 0
        return messages

    def remove(self, held: Held) -> Message | None:
        """It is not to be sent after all; None if it is not here."""
        for message in self._messages:
            if message.held is held:
                self._messages.remove(message)
                self._bytes -= len(message.delivery.body)
                return message
        return None
