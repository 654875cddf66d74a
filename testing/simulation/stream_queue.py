"""A stream of RabbitMQ as a client of AMQP 0-9-1 has it: each consumer reads all of it, from the first entry on. Pure.

tests/oracle/test_streams.py has its facts on a node of RabbitMQ. Its log has the interface of `QuorumQueue`: a publish
is confirmed, and delivered, when a majority has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from testing.simulation.quorum_queue import Batch, QueueConsumer, StoredMessage

BATCH_MAX = 256


class StreamQueue:
    """`on_append` is called for each message that is there for good."""

    def __init__(self, name: str, on_append: Callable[[bytes], None]) -> None:
        self.name = name
        self.messages: list[StoredMessage] = []
        self.consumers: list[QueueConsumer] = []
        self.cancelled: list[QueueConsumer] = []
        self._positions: dict[QueueConsumer, int] = {}
        self._on_append = on_append

    @property
    def ready_count(self) -> int:
        return len(self.messages)

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.messages), len(self.consumers)

    @property
    def unacked_count(self) -> int:
        return 0

    @property
    def active(self) -> QueueConsumer | None:
        return None

    def bodies(self) -> set[bytes]:
        """Nothing: nothing of it is taken out, so nothing is delivered again."""
        return set()

    def enqueue(self, message: StoredMessage) -> None:
        self.messages.append(message)
        self._on_append(message.body)

    def attach(self, consumer: QueueConsumer) -> None:
        self.consumers.append(consumer)
        self._positions[consumer] = 0

    def settle(self, consumer: QueueConsumer, tags: Iterable[int]) -> None:
        """An acknowledgement is credit for more (test_streams.py)."""
        for tag in tags:
            consumer.unacked.pop(tag, None)

    def cancel(self, consumer: QueueConsumer) -> None:
        self.detach(consumer)

    def detach(self, consumer: QueueConsumer) -> None:
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            del self._positions[consumer]

    def suspect(self, consumer: QueueConsumer) -> list[int]:
        """Nobody sees its node: it reads on when the node is back."""
        return []

    def restore(self, consumer: QueueConsumer) -> None:
        """It reads on."""

    def next_batch(self) -> tuple[QueueConsumer, Batch] | None:
        for consumer in self.consumers:
            position = self._positions[consumer]
            room = min(consumer.prefetch - len(consumer.unacked), BATCH_MAX)
            entries = self.messages[position : position + room] if room > 0 else []
            if not entries:
                continue
            self._positions[consumer] = position + len(entries)
            batch: Batch = []
            for message in entries:
                consumer.channel.last_tag += 1
                consumer.unacked[consumer.channel.last_tag] = message
                batch.append((consumer.channel.last_tag, message))
            return consumer, batch
        return None
