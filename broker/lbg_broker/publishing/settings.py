"""How much a publisher keeps under way, and how it waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishingSettings:
    """The limits of ordered publishing.

    `window_messages`: unconfirmed messages per queue, at most; it bounds what a crash can repeat.
    `first_window_messages`: where a connection's window starts; it doubles each round trip up to the maximum.
    `read_ahead_bytes`: accepted and not yet confirmed, over all queues; publish() waits beyond it. This is
        what lets other queues go on while one is full.
    `span_messages`: how far acceptance may run ahead of the oldest unconfirmed message; it bounds what is
        kept in memory about messages that are done while one queue is stuck.
    `backoff_first_s`, `backoff_max_s`: the wait before a refused message is tried again, doubling while the
        queue stays full.
    `one_per_key`: never two unconfirmed messages of one key. It makes an inversion impossible on a broker
        without ordered refusal (RabbitMQ), and costs throughput when few keys carry the load: about one
        message per key and round trip.
    `max_message_bytes`: a larger body is not accepted; None: as large as the broker announces to take. RabbitMQ
        announces nothing, and ends the publisher (SizeRefused) at a message over its own `max_message_size`.
    `first_connection_s`: how long a publisher waits for its first connection before it gives up; None: for
        ever. Later ones are always waited for.
    """

    window_messages: int = 256
    first_window_messages: int = 16
    read_ahead_bytes: int = 8 * 1024 * 1024
    span_messages: int = 100_000
    backoff_first_s: float = 0.01
    backoff_max_s: float = 1.0
    one_per_key: bool = False
    max_message_bytes: int | None = None
    first_connection_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("window_messages", "first_window_messages", "read_ahead_bytes", "span_messages"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.max_message_bytes is not None and self.max_message_bytes < 1:
            raise ValueError(f"max_message_bytes must be at least 1, not {self.max_message_bytes}")
        if not 0 < self.backoff_first_s <= self.backoff_max_s:
            raise ValueError("0 < backoff_first_s <= backoff_max_s must hold")
